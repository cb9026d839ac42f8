//! A member of a fleet behind a port. Somebody listens to the fleet and keeps its work, as `tenure fleet run` does.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tenure::fleet::{self, source};
use tenure::store::memory::MemoryStore;
use tenure::{Clock, Fleet, HealthGate, Store};
use tokio::runtime::Runtime;

use super::counting_store::{Switched, Switches};
use super::support::{Client, Folder, door, until};
use crate::http::{HttpLimits, HttpMember, HttpServer, RunStats};

const GATE: HealthGate = HealthGate { every: Duration::from_millis(20), fails: 3, passes: 2 };

/// How a member is to be.
pub(super) struct Setup {
    pub(super) secret: bool,
    pub(super) limits: HttpLimits,
    pub(super) ttl: Duration,
    pub(super) shards: Vec<String>,
    /// Another one has its id already.
    pub(super) taken: bool,
    /// Asked often whether it is fit to work.
    pub(super) fit: Option<Arc<AtomicBool>>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            secret: true,
            limits: HttpLimits::default(),
            ttl: Duration::from_secs(10),
            shards: ["a", "b", "tenant \"7\""].map(str::to_owned).into(),
            taken: false,
            fit: None,
        }
    }
}

/// A member at work.
pub(super) struct Crew {
    pub(super) runtime: Runtime,
    pub(super) fleet: Arc<Fleet>,
    pub(super) member: Arc<HttpMember>,
    pub(super) work: Arc<RunStats>,
    pub(super) store: Arc<dyn Store>,
    pub(super) switches: Arc<Switches>,
    pub(super) clock: Clock,
    client: Client,
    /// Takes part as long as it is here.
    _other: Option<Fleet>,
    server: Option<HttpServer>,
    listening: Option<JoinHandle<()>>,
    _folder: Folder,
}

impl Crew {
    pub(super) fn new(setup: Setup) -> Crew {
        let _folder = Folder::new();
        let door = door(&_folder, "0", setup.secret, Vec::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let clock = Clock::boot();
        let (store, switches) = Switched::around(Arc::new(MemoryStore::new(clock.clone())));
        let join = || {
            let builder = Fleet::builder("poll").member("api-1").ttl(setup.ttl);
            let builder = builder.note("http://127.0.0.1:3000").shards(source::list(&setup.shards));
            let builder = match setup.fit.clone() {
                Some(fit) => builder.health(GATE, move || {
                    let fit = fit.load(Ordering::Relaxed);
                    async move { fit }
                }),
                None => builder,
            };
            runtime.block_on(builder.join(Arc::clone(&store))).unwrap()
        };
        let _other = setup.taken.then(|| {
            let other = join();
            runtime.block_on(until(&clock, || other.is_member()));
            other
        });
        let fleet = Arc::new(join());
        let work = Arc::<RunStats>::default();
        let member = HttpMember::new(Arc::clone(&fleet), Arc::clone(&work), &store);
        let server = HttpServer::start(door, Arc::clone(&member), &store, setup.limits).unwrap();
        let client = Client(server.address());
        let (heard, noted) = (Arc::clone(&fleet), Arc::clone(&member));
        let listening = Some(std::thread::spawn(move || listen(&heard, &noted)));
        let server = Some(server);
        Crew {
            runtime,
            fleet,
            member,
            work,
            store,
            switches,
            clock,
            client,
            _other,
            server,
            listening,
            _folder,
        }
    }

    pub(super) fn until(&self, holds: impl FnMut() -> bool) {
        self.runtime.block_on(until(&self.clock, holds));
    }

    pub(super) fn sleep(&self, time: Duration) {
        self.runtime.block_on(self.clock.sleep(time));
    }

    /// Until the fleet has settled and has been counted.
    pub(super) fn settled(&self, shards: u64) {
        self.until(|| self.get("/status").json()["shards"] == shards);
    }
}

/// Work that ends as soon as it is told to.
fn listen(fleet: &Fleet, member: &HttpMember) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut work = HashMap::new();
    while let Some(event) = runtime.block_on(fleet.next()) {
        member.note(&event);
        match event {
            fleet::FleetEvent::Assigned { shard, work: begun, .. } => {
                drop(work.insert(shard, begun))
            }
            fleet::FleetEvent::Revoked { shard, .. } => drop(work.remove(&shard)),
            _ => {}
        }
    }
}

impl Deref for Crew {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.runtime.block_on(self.fleet.leave());
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
        if let Some(server) = self.server.take() {
            server.stop();
        }
        if !std::thread::panicking() {
            let held = Arc::strong_count(&self.member);
            assert_eq!(held, 1, "a server that was stopped keeps nothing");
        }
    }
}
