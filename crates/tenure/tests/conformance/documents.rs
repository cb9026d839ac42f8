//! The compare-and-swap layer over a fake service that keeps documents, for each way in which leases expire, with renewals in
//! one round trip and without.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::cas::{CasStore, Expiry};
use tenure::store::conformance::{Capability, Fixture, Property};
use tenure::store::memory::Corruption;
use tenure::store::{Store, StoreExt, codec};
use tenure::{CandidateId, Claim, Clock, Name, Nonce, Token};
use tenure_rig::document_service::{
    DocumentBackend, DocumentService, ExpiryKind, Observation, ServerLease, StoreClock,
};

use crate::Subject;

pub(crate) fn subjects() -> Vec<Arc<dyn Subject>> {
    vec![
        Arc::new(Documents::<StoreClock>::new("cas-clock", false)),
        Arc::new(Documents::<StoreClock>::new("cas-clock-touch", true)),
        Arc::new(Documents::<ServerLease>::new("cas-session", false)),
        Arc::new(Documents::<ServerLease>::new("cas-session-touch", true)),
        Arc::new(Documents::<Observation>::new("cas-observation", false)),
    ]
}

struct Documents<K> {
    name: &'static str,
    touches: bool,
    kind: PhantomData<K>,
}

impl<K> Documents<K> {
    fn new(name: &'static str, touches: bool) -> Self {
        Documents { name, touches, kind: PhantomData }
    }
}

#[async_trait]
impl<K: ExpiryKind> Subject for Documents<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn has_capability(&self, _capability: Capability) -> bool {
        true
    }

    fn skip_reason(&self, property: &Property) -> Option<&'static str> {
        let by_observation = K::EXPIRY == Expiry::Observation;
        (by_observation && property.name == "save_does_not_extend").then_some(
            "a save changes the document, and a challenger that judges by observation waits a TTL after every change",
        )
    }

    // Each trial has its own service, because advancing a shared clock would affect all trials.
    async fn fixture(&self, _alone: bool) -> Result<Box<dyn Fixture>, String> {
        let clock = Clock::manual();
        Ok(Box::new(InDocuments::<K> {
            service: DocumentService::new(clock.clone(), K::EXPIRY),
            clock,
            touches: self.touches,
            garbage: Mutex::default(),
            kind: PhantomData,
        }))
    }
}

struct InDocuments<K> {
    service: Arc<DocumentService>,
    clock: Clock,
    touches: bool,
    garbage: Mutex<HashMap<Name, Vec<u8>>>,
    kind: PhantomData<K>,
}

#[async_trait]
impl<K: ExpiryKind> Fixture for InDocuments<K> {
    async fn open(&self) -> Arc<dyn Store> {
        let backend = DocumentBackend::<K>::new(&self.service, self.touches);
        Arc::new(CasStore::new(backend, self.clock.clone()))
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    fn frees_within(&self, ttl: Duration) -> Duration {
        // A challenger that judges by observation adds the drift of a thousandth and 5 ms.
        ttl + ttl / 1_000 + Duration::from_millis(20)
    }

    fn max_left(&self, ttl: Duration) -> Duration {
        match K::EXPIRY {
            Expiry::StoreClock => ttl,
            // A revoked term under a session is judged by observation too.
            Expiry::ServerLease | Expiry::Observation => self.frees_within(ttl),
        }
    }

    async fn corrupt(&self, name: &Name, spoil: Corruption) -> bool {
        match spoil {
            Corruption::Locked => self.service.lock(name),
            Corruption::Garbage => {
                let mut all = self.garbage.lock().expect("no test panicked");
                let bytes = match all.len() % 4 {
                    0 => b"notes of another program".to_vec(),
                    1 => Vec::new(),
                    2 => b"{\"format\":1}".to_vec(),
                    _ => vec![b'x'; 1 << 20],
                };
                self.service.put_bytes(name, bytes.clone());
                all.insert(name.clone(), bytes);
            }
        }
        true
    }

    async fn is_untouched(&self, name: &Name) -> bool {
        let expected = self.garbage.lock().expect("no test panicked").get(name).cloned();
        self.service.bytes(name) == expected
    }

    async fn set_token(&self, name: &Name, last: Token) -> bool {
        // A record whose last term was released, with another token in place of its own.
        let store = self.open().await;
        let id = CandidateId::new("planter").expect("an id");
        let claim = Claim::new(name.clone(), id, Nonce::random(), Duration::from_secs(60));
        let grant = store
            .acquire(&[claim])
            .await
            .expect("an answer")
            .remove(0)
            .expect("an answer")
            .held()
            .expect("free");
        store.release_one(grant.hold).await.expect("released");
        let bytes = self.service.bytes(name).expect("a record");
        let mut record = codec::decode(name, &bytes).expect("a record");
        (record.origin, record.token, record.before) = (last, last, tenure::Ended::Nothing);
        self.service.put_bytes(name, codec::encode(name, &record).expect("encoded"));
        true
    }

    async fn restart(&self) -> bool {
        self.service.restart();
        true
    }

    async fn take_as_foreign_holder(&self, name: &Name, id: &str, ttl: Duration) -> bool {
        self.service.put_foreign(name, id, ttl);
        true
    }
}
