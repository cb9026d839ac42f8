//! A fleet of several members that record their work, and a check that fails if two works on one shard overlap.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::fleet::overrides::{self, Overrides};
use tenure::fleet::{FleetEvent, Reason, Shard, fleet_name, source};
use tenure::{CandidateId, Clock, Fleet, Moment, Store, Token};
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(2);

/// The spans of work on each shard, as recorded by the members: shard, member, token, start and end.
#[derive(Default)]
struct WorkLog {
    spans: Vec<(Shard, String, Token, Moment, Option<Moment>)>,
    reasons: BTreeMap<String, Vec<Reason>>,
}

struct Worker {
    fleet: Arc<Fleet>,
    hang: Arc<AtomicBool>,
    /// The number of shards that it works on, as recorded by itself.
    share: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

pub(crate) struct TestFleet {
    name: String,
    store: Arc<dyn Store>,
    shards: Vec<String>,
    members: BTreeMap<String, Worker>,
    work_log: Arc<Mutex<WorkLog>>,
    grants: Arc<AtomicU64>,
}

impl TestFleet {
    pub(crate) async fn new(shards: usize) -> TestFleet {
        static FLEETS: AtomicU64 = AtomicU64::new(0);
        TestFleet {
            // 'memory:' is one store for the whole process.
            name: format!("fleet-{}", FLEETS.fetch_add(1, Ordering::Relaxed)),
            store: tenure::open("memory:").await.unwrap(),
            shards: (0..shards).map(|number| format!("shard {number}")).collect(),
            members: BTreeMap::new(),
            work_log: Arc::default(),
            grants: Arc::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.shards
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    pub(crate) fn shard(&self, number: usize) -> Shard {
        Shard::new(&self.shards[number]).unwrap()
    }

    pub(crate) fn grants(&self) -> u64 {
        self.grants.load(Ordering::SeqCst)
    }

    pub(crate) async fn join(&mut self, id: &str) {
        let builder = Fleet::builder(&self.name).member(id).ttl(TTL);
        let builder = builder.shards(source::list(&self.shards));
        let fleet = Arc::new(builder.join(self.store.clone()).await.unwrap());
        let hang = Arc::new(AtomicBool::new(false));
        let share = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(work(
            fleet.clone(),
            id.to_owned(),
            (hang.clone(), share.clone()),
            self.work_log.clone(),
            self.grants.clone(),
        ));
        self.members.insert(id.to_owned(), Worker { fleet, hang, share, task });
    }

    pub(crate) async fn leave(&mut self, id: &str) {
        let worker = self.members.remove(id).unwrap();
        worker.fleet.leave().await;
        worker.task.await.unwrap();
    }

    pub(crate) async fn leave_all(&mut self) {
        let all: Vec<String> = self.members.keys().cloned().collect();
        for id in all {
            self.leave(&id).await;
        }
    }

    /// Ends a member without a release: its leases are left to their TTL.
    pub(crate) async fn vanish(&mut self, id: &str) {
        let worker = self.members.remove(id).unwrap();
        worker.task.abort();
        let _ = worker.task.await;
        let mut work_log = self.work_log.lock().unwrap();
        let now = Clock::boot().now();
        for span in work_log.spans.iter_mut().filter(|span| span.1 == id && span.4.is_none()) {
            span.4 = Some(now);
        }
        drop(worker.fleet);
    }

    pub(crate) fn hang(&self, id: &str, hang: bool) {
        self.members[id].hang.store(hang, Ordering::SeqCst);
    }

    pub(crate) async fn change_overrides<T>(
        &self,
        change: impl FnOnce(&mut Overrides) -> T + Send,
    ) {
        let caller = CandidateId::generate();
        let fleet = fleet_name(&self.name).unwrap();
        let wait = Duration::from_secs(5);
        overrides::change(&*self.store, &fleet, &caller, wait, |overrides| drop(change(overrides)))
            .await
            .unwrap();
    }

    pub(crate) fn reasons(&self, id: &str) -> Vec<Reason> {
        self.work_log.lock().unwrap().reasons.get(id).cloned().unwrap_or_default()
    }

    /// The number of shards that each member works on, in the order of their ids.
    pub(crate) fn shares(&self) -> Vec<usize> {
        self.members.values().map(|worker| worker.share.load(Ordering::SeqCst)).collect()
    }

    pub(crate) async fn until(&self, what: &str, limit: Duration, is: impl Fn(&[usize]) -> bool) {
        let clock = Clock::boot();
        let end = clock.now() + limit;
        loop {
            let shares = self.shares();
            if is(&shares) {
                return;
            }
            assert!(clock.now() < end, "not {what} after {limit:?}: {shares:?}");
            Clock::boot().sleep(Duration::from_millis(5)).await;
        }
    }

    /// Checks that no two members ever worked on one shard at the same time, and that tokens increase.
    pub(crate) fn check_work_log(&self) {
        let mut work_log = self.work_log.lock().unwrap();
        work_log.spans.sort_by_key(|span| (span.0.clone(), span.3));
        for pair in work_log.spans.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            let ended = pair[0].4.expect("all work has ended");
            assert!(ended <= pair[1].3, "I12: {pair:?}");
            assert!(pair[0].2 < pair[1].2, "I2: {pair:?}");
        }
    }
}

async fn work(
    fleet: Arc<Fleet>,
    id: String,
    (hang, share): (Arc<AtomicBool>, Arc<AtomicUsize>),
    work_log: Arc<Mutex<WorkLog>>,
    grants: Arc<AtomicU64>,
) {
    let clock = Clock::boot();
    let mut works = HashMap::new();
    let mut stopping = Vec::new();
    loop {
        share.store(works.len(), Ordering::SeqCst);
        let event = tokio::select! {
            event = fleet.next() => event,
            () = clock.sleep(Duration::from_millis(5)) => {
                if !hang.load(Ordering::SeqCst) {
                    for (shard, work) in stopping.drain(..) {
                        end(&work_log, &clock, &shard);
                        drop(work);
                    }
                }
                continue;
            }
        };
        match event {
            Some(FleetEvent::Assigned { shard, token, work, .. }) => {
                grants.fetch_add(1, Ordering::SeqCst);
                let span = (shard.clone(), id.clone(), token, clock.now(), None);
                work_log.lock().unwrap().spans.push(span);
                works.insert(shard, work);
            }
            Some(FleetEvent::Revoked { shard, why, .. }) => {
                work_log.lock().unwrap().reasons.entry(id.clone()).or_default().push(why);
                if let Some(work) = works.remove(&shard) {
                    stopping.push((shard, work));
                }
            }
            Some(_) => {}
            None => return,
        }
    }
}

fn end(work_log: &Mutex<WorkLog>, clock: &Clock, shard: &Shard) {
    let mut work_log = work_log.lock().unwrap();
    let now = clock.now();
    let open = work_log.spans.iter_mut().rev().find(|span| span.0 == *shard && span.4.is_none());
    open.expect("it was begun").4 = Some(now);
}
