//! The reference store: leases in the memory of this process. Its behaviour defines the [`Store`] contract.
//!
//! [`Leases`] holds all rules and has no clock: time is an argument, so that the simulation runs the same code. [`MemoryStore`]
//! adds a clock, a mutex and a watch.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::sync::broadcast;

use super::leads_from::LeadsFrom;
use super::{Change, Check, Grade, Limits, Report, Revoke, Scope, Store, Verdict};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::lease::{
    Answer, CandidateId, Checkpoint, Claim, Ended, Grant, Hold, Holder, Lease, Lineage, Name,
    Nonce, Note, Release, StartupWait, StoreTime, Token,
};

/// How many changes a slow watcher may lag behind before it receives [`Change::Look`] instead.
const WATCH_BUFFER: usize = 1024;

/// The leases and the rules that change them; `now` is the store's clock.
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

#[derive(Clone, Debug)]
struct MemoryRecord {
    origin: Token,
    token: Token,
    term: Option<MemoryTerm>,
    /// How the term before `term` ended; if there is no term now, how the last term ended.
    before: Ended,
    next: Option<CandidateId>,
    checkpoint: Option<Checkpoint>,
    leads_from: Option<LeadsFrom>,
}

#[derive(Clone, Debug)]
struct MemoryTerm {
    candidate: CandidateId,
    /// `None` after a revocation: no candidate can renew the term, and it blocks claims until its time has passed.
    nonce: Option<Nonce>,
    ttl: Duration,
    until: Moment,
    since_micros: u64,
    note: Note,
    /// The number of the last save.
    saved: Option<u64>,
}

impl Leases {
    /// See [`Store::acquire`]. `minting_micros` is the clock that tokens are minted from.
    pub fn acquire(
        &mut self,
        now: Moment,
        minting_micros: u64,
        claim: &Claim,
    ) -> Result<Answer<Grant>> {
        let new = self.found_mut(&claim.name)?.is_none();
        if new {
            let record = MemoryRecord::new(Token::mint(None, minting_micros)?);
            self.0.insert(claim.name.clone(), MemorySlot::Record(Box::new(record)));
        }
        let record = self.found_mut(&claim.name)?.expect("it was found or has just been made");
        if let Some(term) = record.term.as_mut().filter(|term| now < term.until) {
            if term.nonce != Some(claim.nonce) || term.candidate != claim.candidate {
                return Ok(Answer::Taken(Box::new(record.lease(&claim.name, now))));
            }
            // The reply to an earlier attempt was lost, or the holder changes its note: return the same answer again, extended.
            term.note = claim.note.clone();
            term.ttl = claim.ttl;
            term.until = now + claim.ttl;
            record.claim_wait(claim, now);
            return Ok(Answer::Held(record.grant(claim, now)));
        }
        if !new {
            let token = Token::mint(Some(record.token), minting_micros)?;
            record.end_expired();
            record.token = token;
        }
        record.next = None;
        record.claim_wait(claim, now);
        record.term = Some(MemoryTerm {
            candidate: claim.candidate.clone(),
            nonce: Some(claim.nonce),
            ttl: claim.ttl,
            until: now + claim.ttl,
            since_micros: minting_micros,
            note: claim.note.clone(),
            saved: None,
        });
        Ok(Answer::Held(record.grant(claim, now)))
    }

    /// See [`Store::renew`].
    pub fn renew(&mut self, now: Moment, hold: &Hold, ttl: Duration) -> Result<Answer> {
        self.under(now, hold, |record| {
            let term = record.term.as_mut().expect("under() found a live term");
            term.ttl = ttl;
            term.until = now + ttl;
        })
    }

    /// See [`Store::release`]. Returns whether anything changed.
    pub fn release(&mut self, now: Moment, release: &Release) -> Result<bool> {
        let answer = self.under(now, &release.hold, |record| {
            record.term = None;
            record.before = Ended::Released(record.token);
            record.next = release.next.clone();
        })?;
        Ok(answer.is_held())
    }

    /// See [`Store::save`].
    pub fn save(
        &mut self,
        now: Moment,
        hold: &Hold,
        number: u64,
        checkpoint: &Checkpoint,
    ) -> Result<Answer> {
        let mut older = None;
        let answer = self.under(now, hold, |record| {
            let term = record.term.as_mut().expect("under() found a live term");
            match term.saved {
                Some(last) if number < last => older = Some(last),
                Some(last) if number == last => {}
                _ => {
                    term.saved = Some(number);
                    record.checkpoint = Some(checkpoint.clone());
                }
            }
        })?;
        match older {
            Some(last) => Err(older_save(&hold.name, number, last)),
            None => Ok(answer),
        }
    }

    /// See [`Store::revoke`].
    pub fn revoke(
        &mut self,
        now: Moment,
        minting_micros: u64,
        name: &Name,
        when: Revoke,
    ) -> Result<Lease> {
        let Some(record) = self.found_mut(name)? else {
            return Err(Error::invalid(format!("there is no lease '{name}' to revoke")));
        };
        let token = Token::mint(Some(record.token), minting_micros)?;
        match record.term.as_mut() {
            // The term blocks claims until its time has passed, under a token that no candidate has.
            Some(term) if now < term.until && when == Revoke::InTime => term.nonce = None,
            _ => {
                record.end_expired();
                // The operator guarantees that no earlier holder is still working.
                record.leads_from = record.leads_from.filter(|_| when == Revoke::InTime);
            }
        }
        record.token = token;
        Ok(record.lease(name, now))
    }

    /// See [`Store::observe`].
    pub fn observe(&self, now: Moment, scope: &Scope) -> Vec<Result<Lease>> {
        let lease_or_error = |name: &Name, slot: &MemorySlot| match slot {
            MemorySlot::Record(record) => Ok(record.lease(name, now)),
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
        self.0.insert(name.clone(), MemorySlot::Record(Box::new(MemoryRecord::new(token))));
    }

    fn found_mut(&mut self, name: &Name) -> Result<Option<&mut MemoryRecord>> {
        match self.0.get_mut(name) {
            None => Ok(None),
            Some(MemorySlot::Record(record)) => Ok(Some(record)),
            Some(MemorySlot::Corrupt(corruption)) => Err(corruption.error(name)),
        }
    }

    /// Applies `change` to a record only while `hold` is its live term.
    fn under(
        &mut self,
        now: Moment,
        hold: &Hold,
        change: impl FnOnce(&mut MemoryRecord),
    ) -> Result<Answer> {
        let Some(record) = self.found_mut(&hold.name)? else {
            return Ok(Answer::Taken(Box::new(unknown_lease(&hold.name))));
        };
        let live = record.term.as_ref().is_some_and(|term| {
            now < term.until
                && term.nonce == Some(hold.nonce)
                && term.candidate == hold.candidate
                && record.token == hold.token
        });
        if !live {
            return Ok(Answer::Taken(Box::new(record.lease(&hold.name, now))));
        }
        change(record);
        Ok(Answer::Held(()))
    }
}

/// The lease that a store reports when a name has no record.
pub(crate) fn unknown_lease(name: &Name) -> Lease {
    Lease {
        name: name.clone(),
        holder: None,
        token: None,
        ttl: Duration::ZERO,
        left: Duration::ZERO,
        since: None,
        note: Note::default(),
        next: None,
        lineage: None,
        checkpoint: None,
        store_time: None,
        wait: None,
    }
}

/// The error for a save that a newer save has overtaken.
pub(crate) fn older_save(name: &Name, number: u64, last: u64) -> Error {
    Error::invalid(format!(
        "save number {number} of '{name}' comes after {last} was saved: numbers must grow within a term"
    ))
}

impl Corruption {
    fn error(self, name: &Name) -> Error {
        match self {
            Corruption::Garbage => {
                Error::corrupt(format!("what lies under '{name}' is not a lease"))
            }
            Corruption::Locked => Error::unavailable(format!("'{name}' is locked by somebody")),
        }
    }
}

impl MemoryRecord {
    fn new(token: Token) -> Self {
        MemoryRecord {
            origin: token,
            token,
            term: None,
            before: Ended::Nothing,
            next: None,
            checkpoint: None,
            leads_from: None,
        }
    }

    fn claim_wait(&mut self, claim: &Claim, now: Moment) {
        let StoreTime(micros) = store_time(now);
        self.leads_from = LeadsFrom::claimed(self.leads_from, claim.wait, micros);
    }

    fn wait(&self, now: Moment) -> Option<StartupWait> {
        LeadsFrom::wait(self.leads_from, store_time(now).0)
    }

    /// Ends the recorded term, if any: it has expired, and a new term may begin.
    fn end_expired(&mut self) {
        if self.term.take().is_some() {
            self.before = Ended::Expired(self.token);
        }
    }

    fn lineage(&self, now: Moment) -> Lineage {
        let before = match &self.term {
            // It has expired, and no candidate has acquired the lease since.
            Some(term) if now >= term.until => Ended::Expired(self.token),
            _ => self.before,
        };
        Lineage { origin: self.origin, before }
    }

    fn lease(&self, name: &Name, now: Moment) -> Lease {
        let term = self.term.as_ref().filter(|term| now < term.until);
        Lease {
            name: name.clone(),
            holder: term.map(|term| Holder { id: term.candidate.to_string(), nonce: term.nonce }),
            token: Some(self.token),
            ttl: term.map_or(Duration::ZERO, |term| term.ttl),
            left: term.map_or(Duration::ZERO, |term| term.until.since(now)),
            since: term.map(|term| term.since_micros / 1_000),
            note: term.map(|term| term.note.clone()).unwrap_or_default(),
            next: self.next.clone(),
            lineage: Some(self.lineage(now)),
            checkpoint: self.checkpoint.clone(),
            store_time: Some(store_time(now)),
            wait: term.and_then(|_| self.wait(now)),
        }
    }

    fn grant(&self, claim: &Claim, now: Moment) -> Grant {
        Grant {
            hold: claim.held_in(self.token),
            lineage: self.lineage(now),
            checkpoint: self.checkpoint.clone(),
            store_time: Some(store_time(now)),
            wait: self.wait(now),
        }
    }
}

fn store_time(now: Moment) -> StoreTime {
    StoreTime(now.as_nanos() / 1_000)
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
        let mut limits = Limits::new(Grade::B).this_machine_only();
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
            if leases.release(now, release)? {
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
