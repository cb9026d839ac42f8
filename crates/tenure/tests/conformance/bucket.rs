//! The example of the chapter "Write a store": leases in an object bucket. This is its source, not a copy.
//!
//! Expiry is judged on a manual clock. Watches poll on the boot clock, because no property advances the time for a watch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::cas::CasStore;
use tenure::store::conformance::{Capability, Fixture, Property};
use tenure::store::memory::Corruption;
use tenure::store::{Store, StoreExt, codec};
use tenure::{CandidateId, Claim, Clock, Ended, Name, Nonce, Token};

use crate::Subject;

#[path = "../../examples/bucket_store.rs"]
#[expect(dead_code, reason = "its main function is for `cargo run --example`")]
mod bucket_store;

use bucket_store::{Bucket, BucketBackend, BucketError};

/// Shorter than the time after which a property takes a watch to be quiet.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The line before a record, which is different in every write.
const UNIQUE_LINE_BYTES: usize = 33;

pub(crate) fn subjects() -> Vec<Arc<dyn Subject>> {
    vec![Arc::new(BucketStore)]
}

struct BucketStore;

#[async_trait]
impl Subject for BucketStore {
    fn name(&self) -> &'static str {
        "bucket"
    }

    fn has_capability(&self, capability: Capability) -> bool {
        // No other program takes leases in the bucket.
        capability != Capability::ForeignHolder
    }

    fn skip_reason(&self, property: &Property) -> Option<&'static str> {
        (property.name == "save_does_not_extend").then_some(
            "a save changes the object, and a challenger that judges by observation waits a TTL after every change",
        )
    }

    // Each trial has its own bucket, because advancing a shared clock would affect all trials.
    async fn fixture(&self, _alone: bool) -> Result<Box<dyn Fixture>, String> {
        Ok(Box::new(InBucket {
            bucket: Arc::default(),
            clock: Clock::manual(),
            garbage: Mutex::default(),
        }))
    }
}

struct InBucket {
    bucket: Arc<Bucket>,
    clock: Clock,
    garbage: Mutex<HashMap<Name, Vec<u8>>>,
}

impl InBucket {
    fn object(&self, name: &Name) -> Option<Vec<u8>> {
        self.bucket.objects.lock().expect("no test panicked").get(&key(name)).cloned()
    }

    fn put(&self, name: &Name, object: Vec<u8>) {
        self.bucket.objects.lock().expect("no test panicked").insert(key(name), object);
    }
}

fn key(name: &Name) -> String {
    format!("leases/{name}")
}

#[async_trait]
impl Fixture for InBucket {
    async fn open(&self) -> Arc<dyn Store> {
        let bucket = Arc::clone(&self.bucket);
        let backend = BucketBackend::open(bucket, Clock::boot(), POLL_INTERVAL).await;
        Arc::new(CasStore::new(backend.expect("the bucket answers"), self.clock.clone()))
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    fn frees_within(&self, ttl: Duration) -> Duration {
        // A challenger that judges by observation adds the drift of a thousandth and 5 ms.
        ttl + ttl / 1_000 + Duration::from_millis(20)
    }

    fn max_left(&self, ttl: Duration) -> Duration {
        self.frees_within(ttl)
    }

    async fn corrupt(&self, name: &Name, spoil: Corruption) -> bool {
        match spoil {
            Corruption::Locked => {
                self.bucket.set_fault(&key(name), BucketError::Unreachable);
            }
            Corruption::Garbage => {
                let mut all = self.garbage.lock().expect("no test panicked");
                let line = [b'x'; UNIQUE_LINE_BYTES];
                let garbage = match all.len() % 5 {
                    0 => b"notes of another program, longer than the line before a record".to_vec(),
                    1 => Vec::new(),
                    2 => b"short".to_vec(),
                    3 => [&line[..], b"{\"format\":1}"].concat(),
                    _ => vec![b'x'; 1 << 20],
                };
                self.put(name, garbage.clone());
                all.insert(name.clone(), garbage);
            }
        }
        true
    }

    async fn is_untouched(&self, name: &Name) -> bool {
        self.object(name) == self.garbage.lock().expect("no test panicked").get(name).cloned()
    }

    async fn set_token(&self, name: &Name, last: Token) -> bool {
        // A record whose last term was released, with another token in place of its own.
        let store = self.open().await;
        let id = CandidateId::new("planter").expect("an id");
        let claim = Claim::new(name.clone(), id, Nonce::random(), Duration::from_secs(60));
        let answer = store.acquire_one(&claim).await.expect("an answer");
        store.release_one(answer.held().expect("it is free").hold).await.expect("it is released");
        let object = self.object(name).expect("an object");
        let (line, record) = object.split_at(UNIQUE_LINE_BYTES);
        let mut record = codec::decode(name, record).expect("a record");
        (record.origin, record.token, record.before) = (last, last, Ended::Nothing);
        let record = codec::encode(name, &record).expect("encoded");
        self.put(name, [line, &record].concat());
        true
    }

    async fn restart(&self) -> bool {
        self.bucket.set_fault("", BucketError::Unreachable);
        // Watches notice that the service is gone.
        Clock::boot().sleep(POLL_INTERVAL * 3).await;
        self.bucket.faults.lock().expect("no test panicked").clear();
        true
    }
}
