//! The reference store: leases in the memory of this process. Its behaviour defines the [`Store`] contract.
//!
//! [`Leases`] applies the rules of [`record`](super::record) to a map of records. It has no clock: time is an argument, so that
//! the simulation runs the same code. [`MemoryStore`] adds a clock, a mutex and a watch.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::sync::broadcast;

use super::record::{
    FoundRecord, Operation, Record, RecordWrite, Renewal, Revocation, RuleContext, Save, Standing,
    Step, TermTime, lease,
};
use super::{Change, Check, Grade, Limits, Report, Revoke, Scope, Store, Verdict};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::lease::{
    Answer, Checkpoint, Claim, Grant, Hold, Lease, Name, Release, StoreTime, Token,
};

/// How many changes a slow watcher may lag behind before it receives [`Change::Look`] instead.
const WATCH_BUFFER: usize = 1024;

/// The records of all names, and when their terms end; `now` is the store's clock.
#[derive(Clone, Debug, Default)]
pub struct Leases(BTreeMap<Name, MemorySlot>);

#[derive(Clone, Debug)]
enum MemorySlot {
    Record(Box<MemoryRecord>),
    Corrupt(Corruption),
}

/// What a test can put under a name instead of a record, to test the code above the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// Data that is not a valid record.
    Garbage,
    /// A record that no caller can access now.
    Locked,
}

/// A record, and when its term ends.
#[derive(Clone, Debug)]
struct MemoryRecord {
    record: Record,
    until: Moment,
}

impl Leases {
    /// See [`Store::acquire`]. `minting_micros` is the clock that tokens are minted from.
    pub fn acquire(
        &mut self,
        now: Moment,
        minting_micros: u64,
        claim: &Claim,
    ) -> Result<Answer<Grant>> {
        self.run(now, minting_micros, claim)
    }

    /// See [`Store::renew`].
    pub fn renew(&mut self, now: Moment, hold: &Hold, ttl: Duration) -> Result<Answer> {
        self.run(now, now_micros(now), &Renewal { hold: hold.clone(), ttl })
    }

    /// See [`Store::release`]. Returns whether anything changed. `minting_micros` is the time that the history records.
    pub fn release(&mut self, now: Moment, minting_micros: u64, release: &Release) -> Result<bool> {
        self.run(now, minting_micros, release)
    }

    /// See [`Store::save`].
    pub fn save(
        &mut self,
        now: Moment,
        hold: &Hold,
        number: u64,
        checkpoint: &Checkpoint,
    ) -> Result<Answer> {
        let (hold, checkpoint) = (hold.clone(), checkpoint.clone());
        self.run(now, now_micros(now), &Save { hold, number, checkpoint })
    }

    /// See [`Store::revoke`].
    pub fn revoke(
        &mut self,
        now: Moment,
        minting_micros: u64,
        name: &Name,
        when: Revoke,
    ) -> Result<Lease> {
        self.run(now, minting_micros, &Revocation { name: name.clone(), when })
    }

    /// Applies the operation to the record of its name.
    fn run<O: Operation>(
        &mut self,
        now: Moment,
        minting_micros: u64,
        operation: &O,
    ) -> Result<O::Answer> {
        let name = operation.name();
        let found = match self.0.get(name) {
            None => None,
            Some(MemorySlot::Record(found)) => Some(&**found),
            Some(MemorySlot::Corrupt(corruption)) => return Err(corruption.error(name)),
        };
        let context = context(now, minting_micros);
        let Step { answer, write } = operation.apply(found.map(|found| found.at(now)), &context)?;
        if let Some(RecordWrite { record, time, .. }) = write {
            let ttl = record.term.as_ref().map_or(Duration::ZERO, |term| term.ttl);
            let until = match time {
                TermTime::Begins | TermTime::Extended => now + ttl,
                TermTime::Unchanged => found.map_or(now, |found| found.until),
                TermTime::None => now,
            };
            let record = MemorySlot::Record(Box::new(MemoryRecord { record, until }));
            self.0.insert(name.clone(), record);
        }
        Ok(answer)
    }

    /// See [`Store::observe`].
    pub fn observe(&self, now: Moment, scope: &Scope) -> Vec<Result<Lease>> {
        let lease_or_error = |name: &Name, slot: &MemorySlot| match slot {
            MemorySlot::Record(found) => {
                Ok(lease(Some(found.at(now)), name, &context(now, now_micros(now))))
            }
            MemorySlot::Corrupt(corruption) => Err(corruption.error(name)),
        };
        match scope {
            Scope::Names(names) => {
                let found = names.iter().filter_map(|name| Some((name, self.0.get(name)?)));
                found.map(|(name, slot)| lease_or_error(name, slot)).collect()
            }
            Scope::Prefix(_) => {
                let found = self.0.iter().filter(|(name, _)| scope.contains(name));
                found.map(|(name, slot)| lease_or_error(name, slot)).collect()
            }
        }
    }

    /// Replaces the record of `name` with corrupt data.
    pub fn corrupt(&mut self, name: &Name, corruption: Corruption) {
        self.0.insert(name.clone(), MemorySlot::Corrupt(corruption));
    }

    /// Removes the record of `name`, as a flushed server does.
    pub fn forget(&mut self, name: &Name) {
        self.0.remove(name);
    }

    /// Sets the last token of a free name, to test what happens when tokens run out.
    pub fn set_token(&mut self, name: &Name, token: Token) {
        let free = MemoryRecord { record: Record::new(token), until: Moment::PAST };
        self.0.insert(name.clone(), MemorySlot::Record(Box::new(free)));
    }
}

impl Corruption {
    fn error(self, name: &Name) -> Error {
        match self {
            Corruption::Garbage => {
                Error::corrupt(format!("what lies under '{name}' is not a lease"))
            }
            Corruption::Locked => {
                Error::unavailable(format!("'{name}' is locked by another program"))
            }
        }
    }
}

impl MemoryRecord {
    fn at(&self, now: Moment) -> FoundRecord<'_> {
        let standing = Standing::of(&self.record, self.until.since(now));
        FoundRecord { record: &self.record, standing }
    }
}

fn context(now: Moment, minting_micros: u64) -> RuleContext {
    let now_micros = now_micros(now);
    let store_time = Some(StoreTime(now_micros));
    RuleContext { store_time, wait_micros: now_micros, minting_micros, floor: None }
}

fn now_micros(now: Moment) -> u64 {
    now.as_nanos() / 1_000
}

/// Leases in this process: for tests, and for threads that take turns.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use std::time::Duration;
/// use tenure::store::{Store, memory::MemoryStore};
/// use tenure::{CandidateId, Claim, Clock, Name, Nonce};
///
/// let clock = Clock::manual();
/// let store = MemoryStore::new(clock.clone());
/// let claim = |id: &str| {
///     let (name, id) = (Name::new("job").unwrap(), CandidateId::new(id).unwrap());
///     Claim::new(name, id, Nonce::random(), Duration::from_secs(4))
/// };
/// assert!(store.acquire(&[claim("a")]).await?.remove(0)?.is_held());
/// assert!(!store.acquire(&[claim("b")]).await?.remove(0)?.is_held());
/// clock.advance(Duration::from_secs(4));
/// assert!(store.acquire(&[claim("b")]).await?.remove(0)?.is_held());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStore(Arc<MemoryStoreInner>);

#[derive(Debug)]
struct MemoryStoreInner {
    clock: Clock,
    leases: Mutex<Leases>,
    changes: broadcast::Sender<Change>,
}

impl MemoryStore {
    /// A separate store on this clock.
    pub fn new(clock: Clock) -> Self {
        let (changes, _) = broadcast::channel(WATCH_BUFFER);
        MemoryStore(Arc::new(MemoryStoreInner { clock, leases: Mutex::default(), changes }))
    }

    /// The store that `memory:` names: all callers in this process share it.
    pub fn of_this_process() -> Self {
        static SHARED: LazyLock<MemoryStore> = LazyLock::new(|| MemoryStore::new(Clock::boot()));
        SHARED.clone()
    }

    /// The leases themselves, so that a test can corrupt or remove some.
    pub fn leases(&self) -> MutexGuard<'_, Leases> {
        // A panic in another thread cannot leave the leases half changed: every operation checks first and writes last.
        self.0.leases.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn notify(&self, change: Change) {
        // An error only means that there is no subscriber.
        let _ = self.0.changes.send(change);
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn limits(&self) -> Limits {
        let mut limits = Limits::new(Grade::B).this_process_only();
        limits.min_ttl = Duration::from_millis(1);
        limits
    }

    fn url(&self) -> String {
        "memory:".to_owned()
    }

    fn detached(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    async fn acquire(&self, claims: &[Claim]) -> Result<Vec<Result<Answer<Grant>>>> {
        let clock = &self.0.clock;
        let mut leases = self.leases();
        let mut answers = Vec::with_capacity(claims.len());
        for claim in claims {
            let answer = leases.acquire(clock.now(), clock.minting_micros(), claim);
            if let Ok(Answer::Held(grant)) = &answer {
                let Hold { name, candidate, token, .. } = grant.hold.clone();
                self.notify(Change::Granted { name, token, holder: Some(candidate) });
            }
            answers.push(answer);
        }
        Ok(answers)
    }

    async fn renew(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Answer>>> {
        // The clock is read under the lock, here and below. A time read before the lock could be one at which a term was still
        // live, although another caller has observed meanwhile that it expired.
        let mut leases = self.leases();
        let now = self.0.clock.now();
        Ok(holds.iter().map(|hold| leases.renew(now, hold, ttl)).collect())
    }

    async fn release(&self, releases: &[Release]) -> Result<Vec<Result<()>>> {
        let mut leases = self.leases();
        let now = self.0.clock.now();
        let release = |release: &Release| {
            if leases.release(now, self.0.clock.minting_micros(), release)? {
                let (name, next) = (release.hold.name.clone(), release.next.clone());
                self.notify(Change::Freed { name, next });
            }
            Ok(())
        };
        Ok(releases.iter().map(release).collect())
    }

    async fn save(&self, hold: &Hold, number: u64, checkpoint: &Checkpoint) -> Result<Answer> {
        let mut leases = self.leases();
        leases.save(self.0.clock.now(), hold, number, checkpoint)
    }

    async fn revoke(&self, name: &Name, when: Revoke) -> Result<Lease> {
        let clock = &self.0.clock;
        let mut leases = self.leases();
        let lease = leases.revoke(clock.now(), clock.minting_micros(), name, when)?;
        self.notify(Change::Look);
        Ok(lease)
    }

    async fn observe(&self, scope: &Scope) -> Result<Vec<Result<Lease>>> {
        let leases = self.leases();
        Ok(leases.observe(self.0.clock.now(), scope))
    }

    fn watch(&self, scope: &Scope) -> BoxStream<'static, Change> {
        let changes = self.0.changes.subscribe();
        let later = stream::unfold((changes, scope.clone()), async |(mut changes, scope)| {
            loop {
                let change = match changes.recv().await {
                    Ok(change) => change,
                    Err(broadcast::error::RecvError::Lagged(_)) => Change::Look,
                    Err(broadcast::error::RecvError::Closed) => return None,
                };
                if change.concerns(&scope) {
                    return Some((change, (changes, scope)));
                }
            }
        });
        stream::iter([Change::Look]).chain(later).boxed()
    }

    async fn examine(&self) -> Result<Report> {
        Ok(Report {
            what: "this process's memory".to_owned(),
            grade: Grade::B,
            round_trip: Duration::ZERO,
            checks: vec![Check {
                what: "durability",
                verdict: Verdict::Good,
                found:
                    "everything ends with this process, its candidates too; for tests and threads"
                        .to_owned(),
            }],
        })
    }
}
