//! A real Kubernetes API server, as the restricted user of the documentation.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tenure::store::conformance::{Capability, Fixture, Property};
use tenure::store::memory::Corruption;
use tenure::store::{Store, StoreExt};
use tenure::{CandidateId, Claim, Clock, Name, Nonce, Token};
use tenure_rig::kubernetes_rig::{self, KubernetesRig, LEASES};
use tokio::sync::OnceCell;

use crate::Subject;

pub(crate) fn subjects() -> Vec<Arc<dyn Subject>> {
    vec![Arc::new(Kubernetes::default())]
}

#[derive(Default)]
struct Kubernetes {
    /// Trials that restart the server use their own, one after the other.
    alone: tokio::sync::Mutex<Option<Arc<KubernetesRig>>>,
    shared: OnceCell<Arc<KubernetesRig>>,
}

#[async_trait]
impl Subject for Kubernetes {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    fn has_capability(&self, capability: Capability) -> bool {
        // An object cannot be locked.
        capability != Capability::Lock
    }

    fn missing(&self) -> Option<String> {
        kubernetes_rig::missing()
    }

    fn skip_reason(&self, property: &Property) -> Option<&'static str> {
        (property.name == "save_does_not_extend").then_some(
            "a save changes the object, and a challenger that judges by observation waits a TTL after every change",
        )
    }

    async fn fixture(&self, alone: bool) -> Result<Box<dyn Fixture>, String> {
        let start = || KubernetesRig::start().map(Arc::new);
        let rig = if alone {
            let mut rig = self.alone.lock().await;
            match &*rig {
                // Not used by another trial.
                Some(rig) if Arc::strong_count(rig) == 1 => rig.clone(),
                _ => rig.insert(start()?).clone(),
            }
        } else {
            self.shared.get_or_try_init(|| std::future::ready(start())).await?.clone()
        };
        Ok(Box::new(InCluster { rig, corrupted: Mutex::default() }))
    }
}

struct InCluster {
    rig: Arc<KubernetesRig>,
    /// The objects after they were corrupted.
    corrupted: Mutex<HashMap<Name, Value>>,
}

/// The name of the object, computed apart from the store: only names of the trials.
fn object_name(name: &Name) -> String {
    let text = name.as_str();
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if text.bytes().all(plain) && !text.starts_with('-') && !text.ends_with('-') {
        return text.to_owned();
    }
    let digest = hmac_sha256::Hash::hash(text.as_bytes());
    let digits: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t-{}", digits.concat())
}

impl InCluster {
    /// Writes the object of a name, over what is there.
    async fn write(&self, name: &Name, change: impl FnOnce(&mut Value)) -> Value {
        let (admin, object) = (self.rig.admin().await, object_name(name));
        let found = admin.lease(&object).await;
        let exists = found.is_some();
        let mut lease = found.unwrap_or_else(|| json!({"metadata": {"name": object}, "spec": {}}));
        change(&mut lease);
        let written = match exists {
            true => admin.replace(&format!("{LEASES}/{object}"), &lease).await,
            false => admin.create(LEASES, &lease).await,
        };
        written.expect("an administrator's write")
    }
}

#[async_trait]
impl Fixture for InCluster {
    async fn open(&self) -> Arc<dyn Store> {
        tenure::open(&self.rig.url()).await.expect("the URL is right")
    }

    async fn pass(&self, time: Duration) {
        Clock::boot().sleep(time).await;
    }

    fn frees_within(&self, ttl: Duration) -> Duration {
        // The drift of a thousandth, 5 ms, and the time until the reply to the last write arrives.
        ttl + ttl / 1_000 + Duration::from_millis(100)
    }

    fn max_left(&self, ttl: Duration) -> Duration {
        ttl + ttl / 1_000 + Duration::from_millis(5)
    }

    async fn corrupt(&self, name: &Name, spoil: Corruption) -> bool {
        if spoil == Corruption::Locked {
            return false;
        }
        static KIND: AtomicUsize = AtomicUsize::new(0);
        let kind = KIND.fetch_add(1, Ordering::Relaxed) % 6;
        let written = self.write(name, |lease| {
            let annotations = &mut lease["metadata"]["annotations"];
            match kind {
                0 => annotations["tenure/record"] = json!("notes of another program"),
                1 => annotations["tenure/record"] = json!(""),
                2 => annotations["tenure/record"] = json!("{\"format\":1}"),
                3 => annotations["tenure/name"] = json!("another-name"),
                4 => {
                    lease["spec"]["holderIdentity"] = json!("x".repeat(10_000));
                    lease["spec"]["leaseDurationSeconds"] = json!(10);
                }
                // A holder without a duration.
                _ => lease["spec"] = json!({"holderIdentity": "someone"}),
            }
        });
        let written = written.await;
        self.corrupted.lock().expect("not poisoned").insert(name.clone(), written);
        true
    }

    async fn is_untouched(&self, name: &Name) -> bool {
        let found = self.rig.admin().await.lease(&object_name(name)).await;
        found.as_ref() == self.corrupted.lock().expect("not poisoned").get(name)
    }

    async fn set_token(&self, name: &Name, last: Token) -> bool {
        // A record whose last term was released, with another token in place of its own.
        let store = self.open().await;
        let id = CandidateId::new("planter").expect("an id");
        let claim = Claim::new(name.clone(), id, Nonce::random(), Duration::from_secs(60));
        let grant = store.acquire_one(&claim).await.expect("an answer").held().expect("free");
        let old = grant.hold.token.to_string();
        store.release_one(grant.hold).await.expect("released");
        self.write(name, |lease| {
            let record = &mut lease["metadata"]["annotations"]["tenure/record"];
            *record = json!(record.as_str().expect("a record").replace(&old, &last.to_string()));
        })
        .await;
        true
    }

    async fn restart(&self) -> bool {
        self.rig.restart();
        true
    }

    async fn take_as_foreign_holder(&self, name: &Name, id: &str, ttl: Duration) -> bool {
        // As client-go does: it updates the `spec` of the object that it has read.
        self.write(name, |lease| {
            lease["spec"] = json!({
                "holderIdentity": id,
                "leaseDurationSeconds": ttl.as_secs(),
                "acquireTime": "2026-01-01T00:00:00.000000Z",
                "renewTime": "2026-01-01T00:00:00.000000Z",
                "leaseTransitions": 1,
            });
        })
        .await;
        true
    }
}
