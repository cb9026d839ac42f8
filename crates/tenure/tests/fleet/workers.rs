//! Helpers for tests of the work that a member runs: a member with few shards, and a record of the work on each shard.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::fleet::{FleetNotice, Shard, ShardWork, source};
use tenure::{Clock, Fleet, Store, Token};

pub(crate) const TTL: Duration = Duration::from_secs(2);
const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// Joins a fleet with these shards, on the store of this process.
pub(crate) async fn member(fleet: &str, id: &str, shards: &[&str]) -> Arc<Fleet> {
    let store = tenure::open("memory:").await.unwrap();
    member_on(store, fleet, id, shards).await
}

pub(crate) async fn member_on(
    store: Arc<dyn Store>,
    fleet: &str,
    id: &str,
    shards: &[&str],
) -> Arc<Fleet> {
    let builder = Fleet::builder(fleet).member(id).ttl(TTL).shards(source::list(shards));
    Arc::new(builder.join(store).await.unwrap())
}

pub(crate) async fn wait_until(what: &str, is: impl Fn() -> bool) {
    let clock = Clock::boot();
    let end = clock.now() + WAIT_LIMIT;
    while !is() {
        assert!(clock.now() < end, "not within {WAIT_LIMIT:?}: {what}");
        clock.sleep(Duration::from_millis(5)).await;
    }
}

/// The work that runs, and the tokens of the terms in which each shard was worked on. Checks that no two works on one shard run
/// at the same time.
#[derive(Clone, Default)]
pub(crate) struct WorkRecord(Arc<Mutex<RecordState>>);

#[derive(Default)]
struct RecordState {
    running: HashMap<Shard, Token>,
    tokens: HashMap<Shard, Vec<Token>>,
}

impl WorkRecord {
    /// Records that work runs until the result is dropped.
    pub(crate) fn begin(&self, work: &ShardWork) -> RunningWork {
        assert!(work.is_valid() && !work.should_stop());
        let mut state = self.0.lock().unwrap();
        let (shard, token) = (work.shard().clone(), work.token());
        assert_eq!(state.running.insert(shard.clone(), token), None, "two works on {shard}");
        let tokens = state.tokens.entry(shard.clone()).or_default();
        assert!(tokens.last().is_none_or(|last| *last < token), "tokens of {shard} increase");
        tokens.push(token);
        RunningWork { record: self.clone(), shard }
    }

    pub(crate) fn running(&self) -> usize {
        self.0.lock().unwrap().running.len()
    }

    /// How often work on this shard has begun.
    pub(crate) fn terms(&self, shard: &str) -> usize {
        self.0.lock().unwrap().tokens.get(shard).map_or(0, Vec::len)
    }

    /// Work that never ends by itself.
    pub(crate) async fn work_forever(self, work: ShardWork) {
        let _running = self.begin(&work);
        std::future::pending().await
    }
}

pub(crate) struct RunningWork {
    record: WorkRecord,
    shard: Shard,
}

impl Drop for RunningWork {
    fn drop(&mut self) {
        // A failed assertion of another thread must not hide itself behind a second panic here.
        let mut state = self.record.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        state.running.remove(&self.shard);
    }
}

/// Collects the notices of a member in the background.
#[derive(Clone, Default)]
pub(crate) struct Notices {
    seen: Arc<Mutex<Vec<FleetNotice>>>,
    ended: Arc<AtomicBool>,
}

impl Notices {
    pub(crate) fn of(fleet: &Fleet) -> Notices {
        use futures_util::StreamExt as _;
        let (notices, mut events) = (Notices::default(), fleet.events());
        let collected = notices.clone();
        tokio::spawn(async move {
            while let Some(notice) = events.next().await {
                collected.seen.lock().unwrap().push(notice);
            }
            collected.ended.store(true, Ordering::SeqCst);
        });
        notices
    }

    pub(crate) fn count(&self, is: impl Fn(&FleetNotice) -> bool) -> usize {
        self.seen.lock().unwrap().iter().filter(|notice| is(notice)).count()
    }

    /// The notices as text.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|notice| format!("{notice:?}")).collect()
    }

    pub(crate) fn have_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}
