//! Real Consul servers, with access control: the store has exactly the policy of docs/STORES.md.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Signal, kill_process_group};
use tenure::store::Store;
use tenure::store::conformance::{Capability, Fixture, Property};
use tenure::store::memory::Corruption;
use tenure::{Clock, Name, Token};
use tenure_rig::consul_rig::{self, ConsulServer, KIND, PREFIX};
use tokio::sync::OnceCell;

use crate::Subject;

pub(crate) fn subjects() -> Vec<Arc<dyn Subject>> {
    vec![Arc::new(Consul { shared: OnceCell::new() })]
}

struct Consul {
    shared: OnceCell<Arc<ConsulServer>>,
}

#[async_trait]
impl Subject for Consul {
    fn name(&self) -> &'static str {
        KIND
    }

    fn has_capability(&self, capability: Capability) -> bool {
        // A key of Consul cannot be made unreadable.
        capability != Capability::Lock
    }

    fn skip_reason(&self, property: &Property) -> Option<&'static str> {
        (property.name == "remaining_time_is_at_most_the_ttl_and_decreases")
            .then_some("Consul does not say how much time a session has left: it is always the TTL")
    }

    fn missing(&self) -> Option<String> {
        consul_rig::missing()
    }

    async fn fixture(&self, alone: bool) -> Result<Box<dyn Fixture>, String> {
        let start = || wait_for(ConsulServer::start()).map(Arc::new);
        let server = if alone {
            start()?
        } else {
            self.shared.get_or_try_init(|| std::future::ready(start())).await?.clone()
        };
        Ok(Box::new(OnConsul { server, garbage: Mutex::default() }))
    }
}

/// The compiler cannot prove that probes are `Send` futures, so they stay on this thread.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

struct OnConsul {
    server: Arc<ConsulServer>,
    garbage: Mutex<HashMap<Name, String>>,
}

fn key(name: &Name) -> String {
    format!("{PREFIX}{name}")
}

#[async_trait]
impl Fixture for OnConsul {
    async fn open(&self) -> Arc<dyn Store> {
        tenure::open(&self.server.url()).await.expect("the URL is right")
    }

    fn short_ttl(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn frees_within(&self, ttl: Duration) -> Duration {
        // Consul ends a session after two TTLs at most, and then the lock-delay runs, which is the TTL here.
        ttl * 3 + Duration::from_millis(1_500)
    }

    fn max_left(&self, ttl: Duration) -> Duration {
        // A revoked term is judged by observation.
        ttl + ttl / 500
    }

    async fn pass(&self, time: Duration) {
        Clock::boot().sleep(time).await;
    }

    async fn corrupt(&self, name: &Name, corruption: Corruption) -> bool {
        if corruption == Corruption::Locked {
            return false;
        }
        static KIND: AtomicUsize = AtomicUsize::new(0);
        let garbage = match KIND.fetch_add(1, Ordering::Relaxed) % 5 {
            0 => "something else".to_owned(),
            1 => "{\"format\":1}".to_owned(),
            2 => "{\"format\":99}".to_owned(),
            3 => String::new(),
            _ => "x".repeat(64 << 10),
        };
        self.server.set(&key(name), garbage.as_bytes()).await;
        let content = self.server.get(&key(name)).await;
        self.garbage.lock().expect("not poisoned").insert(name.clone(), content);
        true
    }

    async fn is_untouched(&self, name: &Name) -> bool {
        let found = self.server.get(&key(name)).await;
        self.garbage.lock().expect("not poisoned").get(name) == Some(&found)
    }

    async fn set_token(&self, name: &Name, last: Token) -> bool {
        let record = format!(
            r#"{{"format":1,"name":"{name}","origin":1,"token":{last},"before":null,"term":null,"next":null,"checkpoint":null}}"#
        );
        self.server.set(&key(name), record.as_bytes()).await;
        true
    }

    async fn restart(&self) -> bool {
        let server = &self.server;
        if let Some(pid) = server.server.pid() {
            kill_process_group(pid, Signal::KILL).expect("it runs");
        }
        wait_for(server.server.stop()).expect("it is dead");
        wait_for(server.start_again()).expect("it starts as it did before");
        true
    }

    async fn take_as_foreign_holder(&self, name: &Name, id: &str, ttl: Duration) -> bool {
        // As a program that leaves nothing behind: Consul deletes the key with its session.
        let ttl = ttl.as_secs().max(10);
        let session = self.server.create_session("another program", ttl, "delete").await;
        self.server.lock(&key(name), &session, id.as_bytes()).await
    }
}
