//! Real etcd servers. The administrator is `etcdctl`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::conformance::{Capability, Fixture};
use tenure::store::memory::Corruption;
use tenure::store::{Store, StoreExt as _, codec};
use tenure::{CandidateId, Claim, Clock, Name, Nonce, Token};
use tenure_rig::etcd_rig::{self, EtcdMember};
use tokio::sync::OnceCell;

use crate::Subject;

pub(crate) fn subjects() -> Vec<Arc<dyn Subject>> {
    let version =
        |kind| -> Arc<dyn Subject> { Arc::new(Version { kind, shared: OnceCell::new() }) };
    vec![version("etcd-3.4"), version("etcd-3.5")]
}

struct Version {
    kind: &'static str,
    shared: OnceCell<Arc<EtcdMember>>,
}

#[async_trait]
impl Subject for Version {
    fn name(&self) -> &'static str {
        self.kind
    }

    fn has_capability(&self, capability: Capability) -> bool {
        // A key of etcd cannot be locked.
        capability != Capability::Lock
    }

    fn missing(&self) -> Option<String> {
        etcd_rig::missing(self.kind)
    }

    async fn fixture(&self, alone: bool) -> Result<Box<dyn Fixture>, String> {
        let start = || wait_for(EtcdMember::start(self.kind)).map(Arc::new);
        let server = if alone {
            start()?
        } else {
            self.shared.get_or_try_init(|| std::future::ready(start())).await?.clone()
        };
        Ok(Box::new(OnEtcd { server, garbage: Mutex::default() }))
    }
}

/// The compiler cannot prove that probes are `Send` futures, so they stay on this thread.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

struct OnEtcd {
    server: Arc<EtcdMember>,
    garbage: Mutex<HashMap<Name, String>>,
}

impl OnEtcd {
    fn content(&self, name: &Name) -> String {
        let end = format!("{name}$");
        self.server.etcdctl(&["get", name.as_str(), &end, "--write-out=json"])
    }
}

fn record_key(name: &Name) -> String {
    format!("{name}#tenure")
}

#[async_trait]
impl Fixture for OnEtcd {
    async fn open(&self) -> Arc<dyn Store> {
        tenure::open(&self.server.url()).await.expect("the URL is right")
    }

    fn short_ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn frees_within(&self, ttl: Duration) -> Duration {
        // Whole seconds, and the server looks for expired leases twice a second.
        ttl + Duration::from_millis(1_600)
    }

    fn max_left(&self, ttl: Duration) -> Duration {
        // A revoked term is judged by observation.
        ttl + ttl / 1_000 + Duration::from_millis(5)
    }

    fn time_step(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn pass(&self, time: Duration) {
        Clock::boot().sleep(time).await;
    }

    async fn corrupt(&self, name: &Name, spoil: Corruption) -> bool {
        if spoil == Corruption::Locked {
            return false;
        }
        static KIND: AtomicUsize = AtomicUsize::new(0);
        let garbage = match KIND.fetch_add(1, Ordering::Relaxed) % 4 {
            0 => "something else".to_owned(),
            1 => "{\"format\":1}".to_owned(),
            2 => "{\"format\":99}".to_owned(),
            _ => "x".repeat(64 << 10),
        };
        self.server.etcdctl(&["put", &record_key(name), &garbage]);
        self.garbage.lock().expect("not poisoned").insert(name.clone(), self.content(name));
        true
    }

    async fn is_untouched(&self, name: &Name) -> bool {
        let garbage = self.garbage.lock().expect("not poisoned").get(name).cloned();
        // The header has the revision of the cluster, which other trials change.
        let keys = |content: String| content.split_once("\"kvs\"").map(|(_, keys)| keys.to_owned());
        garbage.and_then(keys) == keys(self.content(name))
    }

    async fn set_token(&self, name: &Name, last: Token) -> bool {
        // A record whose last term was released, with another token in place of its own.
        let store = self.open().await;
        let id = CandidateId::new("before").expect("an id");
        let claim = Claim::new(name.clone(), id, Nonce::random(), Duration::from_secs(60));
        let grant = store.acquire_one(&claim).await.expect("an answer").held().expect("it is free");
        store.release_one(grant.hold).await.expect("it is held");
        let key = record_key(name);
        let bytes = self.server.etcdctl(&["get", &key, "--print-value-only"]);
        let mut record = codec::decode(name, bytes.trim_end().as_bytes()).expect("a record");
        (record.origin, record.token, record.before) = (last, last, tenure::Ended::Nothing);
        let bytes = codec::encode(name, &record).expect("a record");
        self.server.etcdctl(&["put", &key, &String::from_utf8(bytes).expect("JSON")]);
        true
    }

    async fn restart(&self) -> bool {
        wait_for(async {
            self.server.kill().await;
            self.server.start_again().await;
        });
        true
    }

    async fn take_as_foreign_holder(&self, name: &Name, id: &str, ttl: Duration) -> bool {
        let seconds = ttl.as_secs().max(1).to_string();
        let granted = self.server.etcdctl(&["lease", "grant", &seconds]);
        let lease = granted.split(' ').nth(1).expect("lease ID granted with TTL(…)");
        self.server.etcdctl(&["put", name.as_str(), id, &format!("--lease={lease}")]);
        true
    }
}
