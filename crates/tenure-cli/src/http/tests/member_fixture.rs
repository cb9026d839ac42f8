//! A member of a fleet behind a port. A thread receives the fleet's events and holds its work, as `tenure fleet run` does.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tenure::fleet::{self, source};
use tenure::store::memory::MemoryStore;
use tenure::{Clock, Fleet, HealthGate, Store};
use tenure_rig::servers::Scratch;
use tokio::runtime::Runtime;

use super::candidate_fixture::{Client, open_listener, until};
use super::counting_store::{SwitchedStore, Switches};
use crate::http::{HttpLimits, HttpMember, HttpServer, RunStats};

const GATE: HealthGate = HealthGate::new(Duration::from_millis(20), 3, 2);

/// The settings of a member.
pub(super) struct MemberSetup {
    pub(super) secret: bool,
    pub(super) limits: HttpLimits,
    pub(super) ttl: Duration,
    pub(super) shards: Vec<String>,
    /// Another member already has this id.
    pub(super) taken: bool,
    /// The health of the member, checked often.
    pub(super) healthy: Option<Arc<AtomicBool>>,
}

impl Default for MemberSetup {
    fn default() -> MemberSetup {
        MemberSetup {
            secret: true,
            limits: HttpLimits::default(),
            ttl: Duration::from_secs(10),
            shards: ["a", "b", "tenant \"7\""].map(str::to_owned).into(),
            taken: false,
            healthy: None,
        }
    }
}

/// A running member.
pub(super) struct MemberFixture {
    pub(super) runtime: Runtime,
    pub(super) fleet: Arc<Fleet>,
    pub(super) member: Arc<HttpMember>,
    pub(super) work: Arc<RunStats>,
    pub(super) store: Arc<dyn Store>,
    pub(super) switches: Arc<Switches>,
    pub(super) clock: Clock,
    client: Client,
    /// Takes part until it is dropped.
    _other: Option<Fleet>,
    server: Option<HttpServer>,
    event_thread: Option<JoinHandle<()>>,
    _scratch: Scratch,
}

impl MemberFixture {
    pub(super) fn new(setup: MemberSetup) -> MemberFixture {
        let _scratch = Scratch::new();
        let listener = open_listener(&_scratch, "0", setup.secret, Vec::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let clock = Clock::boot();
        let (store, switches) = SwitchedStore::wrap(Arc::new(MemoryStore::new(clock.clone())));
        let join = || {
            let builder = Fleet::builder("poll").member("api-1").ttl(setup.ttl);
            let builder = builder.note("http://127.0.0.1:3000").shards(source::list(&setup.shards));
            let builder = match setup.healthy.clone() {
                Some(healthy) => builder.health(GATE, move || {
                    let healthy = healthy.load(Ordering::Relaxed);
                    async move { healthy }
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
        let server =
            HttpServer::start(listener, Arc::clone(&member), &store, setup.limits).unwrap();
        let client = Client(server.address());
        let (event_fleet, event_member) = (Arc::clone(&fleet), Arc::clone(&member));
        let event_thread =
            Some(std::thread::spawn(move || handle_events(&event_fleet, &event_member)));
        let server = Some(server);
        MemberFixture {
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
            event_thread,
            _scratch,
        }
    }

    pub(super) fn until(&self, condition: impl FnMut() -> bool) {
        self.runtime.block_on(until(&self.clock, condition));
    }

    pub(super) fn sleep(&self, time: Duration) {
        self.runtime.block_on(self.clock.sleep(time));
    }

    /// Waits until the fleet has settled and its shards have been counted.
    pub(super) fn settled(&self, shards: u64) {
        self.until(|| self.get("/status").json()["shards"] == shards);
    }
}

/// Handles the fleet's events with work that ends at once when it is revoked.
fn handle_events(fleet: &Fleet, member: &HttpMember) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut work = HashMap::new();
    while let Some(event) = runtime.block_on(fleet.next()) {
        member.note(&event);
        match event {
            fleet::FleetEvent::Assigned { shard, work: shard_work, .. } => {
                drop(work.insert(shard, shard_work))
            }
            fleet::FleetEvent::Revoked { shard, .. } => drop(work.remove(&shard)),
            _ => {}
        }
    }
}

impl Deref for MemberFixture {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for MemberFixture {
    fn drop(&mut self) {
        self.runtime.block_on(self.fleet.leave());
        if let Some(event_thread) = self.event_thread.take() {
            let _ = event_thread.join();
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
