//! Real etcd servers. The administrator is `etcdctl`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Signal, kill_process_group};
use tenure::store::conformance::{Capability, Fixture};
use tenure::store::memory::Corruption;
use tenure::store::{Store, StoreExt as _, codec};
use tenure::{CandidateId, Claim, Clock, Name, Nonce, Token};
use tenure_rig::servers::{self, Scratch, Server, free_port};
use tokio::sync::OnceCell;

use crate::Subject;

pub(crate) fn subjects() -> Vec<Arc<dyn Subject>> {
    let version =
        |kind| -> Arc<dyn Subject> { Arc::new(Version { kind, shared: OnceCell::new() }) };
    vec![version("etcd-3.4"), version("etcd-3.5")]
}

struct Version {
    kind: &'static str,
    shared: OnceCell<Arc<Private>>,
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
        servers::find(self.kind, "etcd").is_none().then(|| servers::install_hint(self.kind))
    }

    async fn fixture(&self, alone: bool) -> Result<Box<dyn Fixture>, String> {
        let start = || Private::start(self.kind).map(Arc::new);
        let server = if alone {
            start()?
        } else {
            self.shared.get_or_try_init(|| std::future::ready(start())).await?.clone()
        };
        Ok(Box::new(OnEtcd { server, garbage: Mutex::default() }))
    }
}

/// A private server of one member.
struct Private {
    server: Server,
    etcdctl: PathBuf,
    port: u16,
}

impl Private {
    fn start(kind: &str) -> Result<Self, String> {
        let find = |program| servers::find(kind, program).ok_or("it has just been there");
        let (program, etcdctl) = (find("etcd")?, find("etcdctl")?);
        let (port, peer_port) = (free_port(), free_port());
        let (client, peer) =
            (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
        let arguments = [
            "--name=t".to_owned(),
            "--data-dir=data".to_owned(),
            "--unsafe-no-fsync".to_owned(),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=t={peer}"),
        ];
        let ready = async || answers(&etcdctl, port);
        let server = wait_for(Server::start(Scratch::in_memory(), program, arguments, ready))?;
        Ok(Private { server, etcdctl, port })
    }

    fn run(&self, words: &[&str]) -> String {
        run(&self.etcdctl, self.port, words).expect("an administrator's command")
    }
}

fn run(etcdctl: &PathBuf, port: u16, words: &[&str]) -> Option<String> {
    let output = Command::new(etcdctl)
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints=127.0.0.1:{port}"))
        .args(words)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn answers(etcdctl: &PathBuf, port: u16) -> bool {
    run(etcdctl, port, &["endpoint", "health", "--command-timeout=1s"]).is_some()
}

/// The compiler cannot prove that probes are `Send` futures, so they stay on this thread.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

struct OnEtcd {
    server: Arc<Private>,
    garbage: Mutex<HashMap<Name, String>>,
}

impl OnEtcd {
    fn content(&self, name: &Name) -> String {
        let end = format!("{name}$");
        self.server.run(&["get", name.as_str(), &end, "--write-out=json"])
    }
}

fn record_key(name: &Name) -> String {
    format!("{name}#tenure")
}

#[async_trait]
impl Fixture for OnEtcd {
    async fn open(&self) -> Arc<dyn Store> {
        let url = format!("etcd://127.0.0.1:{}", self.server.port);
        tenure::open(&url).await.expect("the URL is right")
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
        self.server.run(&["put", &record_key(name), &garbage]);
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
        let bytes = self.server.run(&["get", &key, "--print-value-only"]);
        let mut record = codec::decode(name, bytes.trim_end().as_bytes()).expect("a record");
        (record.origin, record.token, record.before) = (last, last, tenure::Ended::Nothing);
        let bytes = codec::encode(name, &record).expect("a record");
        self.server.run(&["put", &key, &String::from_utf8(bytes).expect("JSON")]);
        true
    }

    async fn restart(&self) -> bool {
        let server = &self.server.server;
        if let Some(pid) = server.pid() {
            kill_process_group(pid, Signal::KILL).expect("it runs");
        }
        wait_for(server.stop()).expect("it is dead");
        let private = &self.server;
        let ready = async || answers(&private.etcdctl, private.port);
        wait_for(server.start_again(ready)).expect("it starts as it did before");
        true
    }

    async fn take_as_foreign_holder(&self, name: &Name, id: &str, ttl: Duration) -> bool {
        let seconds = ttl.as_secs().max(1).to_string();
        let granted = self.server.run(&["lease", "grant", &seconds]);
        let lease = granted.split(' ').nth(1).expect("lease ID granted with TTL(…)");
        self.server.run(&["put", name.as_str(), id, &format!("--lease={lease}")]);
        true
    }
}
