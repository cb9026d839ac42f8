//! PURE: the record of one lease, and the rules of acquire, renew, release, save and revoke, written once for every store.
//!
//! A store reads the record of a name and judges its `Standing`: whether the recorded term is live. `Operation::apply` then
//! returns a `Step`: the answer, and the record to write, if any. The answer is valid once that record is written, and the
//! store must write it only if the record it read is still the current one: under a lock (`file:`), in one process
//! (`memory:`), or by a compare-and-swap ([`cas`](super::cas)). Redis repeats these rules in Lua.
//!
//! When a term ends is not part of the record. Each store keeps that in its own way: a time on its clock, a lease or session
//! of its server, or nothing at all where challengers observe that the record does not change.

use std::time::Duration;

use super::Revoke;
use super::ephemeral::is_ephemeral;
use crate::error::{Error, Result};
use crate::lease::{
    Answer, CandidateId, Checkpoint, Claim, ClaimedWait, Ended, Grant, Hold, Holder, Lease,
    Lineage, Name, Nonce, Note, PastTerm, PastTermOutcome, Release, StartupWait, StoreTime, Token,
    WaitReason,
};

pub use super::leads_from::LeadsFrom;

/// The number of ended terms that a record keeps. With ids of the greatest length they take less than 8 KiB.
pub const MAX_HISTORY_TERMS: usize = 32;

/// All that a store keeps of one lease, except when its term ends.
///
/// It outlives the term: the token must survive every lease of the name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The first token of this record. It changes only if the record vanished and was created again.
    pub origin: Token,
    /// The token of the current or last term; a revocation raises it.
    pub token: Token,
    /// How the term before `term` ended; if there is no term now, how the last term ended.
    pub before: Ended,
    /// The current term. It may be over, if no candidate has acquired the lease since.
    pub term: Option<TermRecord>,
    /// The preferred successor that the last holder named.
    pub next: Option<CandidateId>,
    /// The last checkpoint that a leader saved.
    pub checkpoint: Option<Checkpoint>,
    /// From when the holder may lead, if it has to wait.
    pub leads_from: Option<LeadsFrom>,
    /// The lease belongs to a participant (presence, membership, a request): see [`Record::is_forgettable`].
    pub ephemeral: bool,
    /// The last terms that ended, the oldest first. `None` if the lease keeps none: see [`Claim::keeps_history`].
    pub history: Option<Vec<PastTerm>>,
}

/// The term of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TermRecord {
    /// The id of the holder.
    pub candidate: CandidateId,
    /// The campaign of the holder. `None` after a revocation: no candidate can renew the term, and it blocks claims until its
    /// time has passed.
    pub nonce: Option<Nonce>,
    /// The TTL of the last grant or renewal.
    pub ttl: Duration,
    /// When the term began, on the clock that tokens are minted from, in microseconds.
    pub since_micros: u64,
    /// The holder's note.
    pub note: Note,
    /// The number of the last save.
    pub saved: Option<u64>,
}

/// The state of a record's term now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The record has no term.
    Free,
    /// The term is live; its holder has this much time left.
    Live(Duration),
    /// The record still has a term, but it is over: expired or died.
    Over(Ended),
}

impl Standing {
    /// The standing of a term with this much time left.
    pub(crate) fn of(record: &Record, left: Duration) -> Standing {
        match (&record.term, left) {
            (None, _) => Standing::Free,
            (Some(_), Duration::ZERO) => Standing::Over(Ended::Expired(record.token)),
            (Some(_), left) => Standing::Live(left),
        }
    }
}

/// A record and the state of its term.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundRecord<'a> {
    pub(crate) record: &'a Record,
    pub(crate) standing: Standing,
}

/// The times at which an operation is applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleContext {
    /// The store's own clock, if it has one: reported with every answer.
    pub(crate) store_time: Option<StoreTime>,
    /// The clock that start-up waits are recorded on, in microseconds.
    pub(crate) wait_micros: u64,
    /// The clock that tokens are minted from, in microseconds.
    pub(crate) minting_micros: u64,
    /// The greatest token of this name that this process knows. It matters only if the record is gone.
    pub(crate) floor: Option<Token>,
}

/// The result of applying an operation: the answer, valid once the record is written.
#[derive(Debug)]
pub(crate) struct Step<T> {
    pub(crate) answer: T,
    pub(crate) write: Option<RecordWrite>,
}

impl<T> Step<T> {
    /// The record stays unchanged.
    fn answer(answer: T) -> Self {
        Step { answer, write: None }
    }

    fn write(record: Record, condition: Condition, time: TermTime, answer: T) -> Self {
        Step { answer, write: Some(RecordWrite { record, condition, time }) }
    }
}

/// A record to write.
#[derive(Clone, Debug)]
pub(crate) struct RecordWrite {
    pub(crate) record: Record,
    pub(crate) condition: Condition,
    pub(crate) time: TermTime,
}

/// What must still be true of the term that was read when the record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing is compared.
    None,
    /// The term is not over.
    TermIsLive,
    /// The term is over, or there is none.
    TermIsOver,
}

/// What a write does to the time of the record's term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermTime {
    /// A new term begins: it lasts for its TTL from now.
    Begins,
    /// The term lasts for its TTL from now.
    Extended,
    /// The term ends when it would have ended before the write.
    Unchanged,
    /// The record has no term.
    None,
}

/// A store operation on one name.
pub(crate) trait Operation {
    type Answer;

    /// Whether the answer shows the time that another holder has left.
    const SHOWS_TIME_LEFT: bool = false;

    fn name(&self) -> &Name;

    /// The answer while another program holds the name.
    fn excluded(&self, lease: Lease) -> Result<Self::Answer>;

    /// Applies the operation to what was found under its name.
    fn apply(
        &self,
        found: Option<FoundRecord<'_>>,
        context: &RuleContext,
    ) -> Result<Step<Self::Answer>>;
}

impl Operation for Claim {
    type Answer = Answer<Grant>;

    const SHOWS_TIME_LEFT: bool = true;

    fn name(&self) -> &Name {
        &self.name
    }

    fn excluded(&self, lease: Lease) -> Result<Self::Answer> {
        Ok(Answer::Taken(Box::new(lease)))
    }

    fn apply(
        &self,
        found: Option<FoundRecord<'_>>,
        context: &RuleContext,
    ) -> Result<Step<Self::Answer>> {
        let mut record = match found {
            None => Record::new(Token::mint(context.floor, context.minting_micros)?),
            Some(FoundRecord { record, standing: Standing::Live(_) }) => {
                let same_campaign = |term: &TermRecord| {
                    term.nonce == Some(self.nonce) && term.candidate == self.candidate
                };
                if !record.term.as_ref().is_some_and(same_campaign) {
                    return Ok(Step::answer(taken(found, &self.name, context)));
                }
                return Ok(self.repeat(record.clone(), context));
            }
            Some(FoundRecord { record, standing }) => {
                let mut record = record.clone();
                record.end(standing, context);
                record.token = Token::mint(Some(record.token), context.minting_micros)?;
                record
            }
        };
        record.next = None;
        record.ephemeral = is_ephemeral(self);
        record.history = self.keeps_history.then(|| record.history.unwrap_or_default());
        record.term = Some(TermRecord {
            candidate: self.candidate.clone(),
            nonce: Some(self.nonce),
            ttl: whole_micros(self.ttl),
            since_micros: context.minting_micros,
            note: self.note.clone(),
            saved: None,
        });
        record.claim_wait(self, context);
        let grant = record.grant(self, context);
        Ok(Step::write(record, Condition::TermIsOver, TermTime::Begins, Answer::Held(grant)))
    }
}

impl Claim {
    /// The reply to an earlier attempt was lost, or the holder records a wait or changes its note: the same answer again,
    /// extended.
    fn repeat(&self, mut record: Record, context: &RuleContext) -> Step<Answer<Grant>> {
        if let Some(term) = record.term.as_mut() {
            term.note = self.note.clone();
            term.ttl = whole_micros(self.ttl);
        }
        record.ephemeral = is_ephemeral(self);
        record.claim_wait(self, context);
        let grant = record.grant(self, context);
        Step::write(record, Condition::TermIsLive, TermTime::Extended, Answer::Held(grant))
    }
}

/// A request to extend a hold.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) hold: Hold,
    pub(crate) ttl: Duration,
}

impl Operation for Renewal {
    type Answer = Answer;

    fn name(&self) -> &Name {
        &self.hold.name
    }

    fn excluded(&self, lease: Lease) -> Result<Self::Answer> {
        Ok(Answer::Taken(Box::new(lease)))
    }

    fn apply(
        &self,
        found: Option<FoundRecord<'_>>,
        context: &RuleContext,
    ) -> Result<Step<Self::Answer>> {
        let Some((mut record, mut term)) = held(found, &self.hold) else {
            return Ok(Step::answer(taken(found, &self.hold.name, context)));
        };
        term.ttl = whole_micros(self.ttl);
        record.term = Some(term);
        Ok(Step::write(record, Condition::TermIsLive, TermTime::Extended, Answer::Held(())))
    }
}

impl Operation for Release {
    /// Whether the release ended a term.
    type Answer = bool;

    fn name(&self) -> &Name {
        &self.hold.name
    }

    fn excluded(&self, _lease: Lease) -> Result<bool> {
        Ok(false)
    }

    fn apply(&self, found: Option<FoundRecord<'_>>, context: &RuleContext) -> Result<Step<bool>> {
        let Some((mut record, term)) = held(found, &self.hold) else {
            return Ok(Step::answer(false));
        };
        record.remember(term, record.token, PastTermOutcome::Released, context);
        record.before = Ended::Released(record.token);
        record.next = self.next.clone();
        Ok(Step::write(record, Condition::TermIsLive, TermTime::None, true))
    }
}

/// A request to save a checkpoint under a hold.
#[derive(Clone, Debug)]
pub(crate) struct Save {
    pub(crate) hold: Hold,
    pub(crate) number: u64,
    pub(crate) checkpoint: Checkpoint,
}

impl Operation for Save {
    type Answer = Answer;

    fn name(&self) -> &Name {
        &self.hold.name
    }

    fn excluded(&self, lease: Lease) -> Result<Self::Answer> {
        Ok(Answer::Taken(Box::new(lease)))
    }

    fn apply(
        &self,
        found: Option<FoundRecord<'_>>,
        context: &RuleContext,
    ) -> Result<Step<Self::Answer>> {
        let Some((mut record, mut term)) = held(found, &self.hold) else {
            return Ok(Step::answer(taken(found, &self.hold.name, context)));
        };
        match term.saved {
            Some(last) if self.number < last => {
                let Save { number, hold, .. } = self;
                Err(older_save(&hold.name, *number, last))
            }
            Some(last) if self.number == last => Ok(Step::answer(Answer::Held(()))),
            _ => {
                term.saved = Some(self.number);
                record.term = Some(term);
                record.checkpoint = Some(self.checkpoint.clone());
                let held = Answer::Held(());
                Ok(Step::write(record, Condition::TermIsLive, TermTime::Unchanged, held))
            }
        }
    }
}

/// A request to revoke a lease.
#[derive(Clone, Debug)]
pub(crate) struct Revocation {
    pub(crate) name: Name,
    pub(crate) when: Revoke,
}

impl Operation for Revocation {
    type Answer = Lease;

    const SHOWS_TIME_LEFT: bool = true;

    fn name(&self) -> &Name {
        &self.name
    }

    fn excluded(&self, _lease: Lease) -> Result<Lease> {
        Err(nothing_to_revoke(&self.name))
    }

    fn apply(&self, found: Option<FoundRecord<'_>>, context: &RuleContext) -> Result<Step<Lease>> {
        let Some(FoundRecord { record, standing }) = found else {
            return Err(nothing_to_revoke(&self.name));
        };
        let mut record = record.clone();
        let last = record.token;
        let (standing, time) = match (standing, self.when) {
            (Standing::Live(_), Revoke::InTime) => {
                record.revoke_term(last, context);
                (standing, TermTime::Unchanged)
            }
            (Standing::Live(_), Revoke::Now) => {
                record.revoke_term(last, context);
                record.term = None;
                record.before = Ended::Expired(last);
                (Standing::Free, TermTime::None)
            }
            (Standing::Free | Standing::Over(_), _) => {
                record.end(standing, context);
                (Standing::Free, TermTime::None)
            }
        };
        record.token = Token::mint(Some(last), context.minting_micros)?;
        if self.when == Revoke::Now {
            // The operator guarantees that no earlier holder is still working.
            record.leads_from = None;
        }
        let lease = lease(Some(FoundRecord { record: &record, standing }), &self.name, context);
        Ok(Step::write(record, Condition::None, time, lease))
    }
}

/// The record without its term, and the term, if `hold` is the record's live term.
fn held(found: Option<FoundRecord<'_>>, hold: &Hold) -> Option<(Record, TermRecord)> {
    let FoundRecord { record, standing: Standing::Live(_) } = found? else {
        return None;
    };
    if !record.is_term_of(hold) {
        return None;
    }
    let mut record = record.clone();
    let term = record.term.take()?;
    Some((record, term))
}

fn taken<T>(found: Option<FoundRecord<'_>>, name: &Name, context: &RuleContext) -> Answer<T> {
    Answer::Taken(Box::new(lease(found, name, context)))
}

/// The lease as a store reports it.
pub(crate) fn lease(found: Option<FoundRecord<'_>>, name: &Name, context: &RuleContext) -> Lease {
    let Some(FoundRecord { record, standing }) = found else {
        return unknown_lease(name);
    };
    let (term, left) = match standing {
        Standing::Live(left) => (record.term.as_ref(), left),
        Standing::Free | Standing::Over(_) => (None, Duration::ZERO),
    };
    let before = match standing {
        // The term has ended, and no candidate has acquired the lease since.
        Standing::Over(ended) => ended,
        Standing::Free | Standing::Live(_) => record.before,
    };
    Lease {
        name: name.clone(),
        holder: term.map(|term| Holder { id: term.candidate.to_string(), nonce: term.nonce }),
        token: Some(record.token),
        ttl: term.map_or(Duration::ZERO, |term| term.ttl),
        left,
        since: term.map(|term| term.since_micros / 1_000),
        note: term.map(|term| term.note.clone()).unwrap_or_default(),
        next: record.next.clone(),
        lineage: Some(Lineage { origin: record.origin, before }),
        checkpoint: record.checkpoint.clone(),
        store_time: context.store_time,
        wait: term.and_then(|_| record.wait(context)),
        history: record.history.clone().unwrap_or_default(),
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
        history: Vec::new(),
    }
}

/// The error for a save that a newer save has overtaken.
pub(crate) fn older_save(name: &Name, number: u64, last: u64) -> Error {
    Error::invalid(format!(
        "save number {number} of '{name}' comes after {last} was saved: numbers must grow within a term"
    ))
}

fn nothing_to_revoke(name: &Name) -> Error {
    Error::invalid(format!("there is no lease '{name}' to revoke"))
}

/// A TTL in whole microseconds, as records store it. Rounded up: a record never states less time than was granted.
pub(super) fn whole_micros(ttl: Duration) -> Duration {
    Duration::from_micros(u64::try_from(ttl.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX))
}

impl Record {
    /// The free record of a name that never had a term.
    pub(crate) fn new(token: Token) -> Self {
        Record {
            origin: token,
            token,
            before: Ended::Nothing,
            term: None,
            next: None,
            checkpoint: None,
            leads_from: None,
            ephemeral: false,
            history: None,
        }
    }

    /// Whether `hold` is the proof of this record's term. The term may be over.
    pub fn is_term_of(&self, hold: &Hold) -> bool {
        let same =
            |term: &TermRecord| term.nonce == Some(hold.nonce) && term.candidate == hold.candidate;
        self.token == hold.token && self.term.as_ref().is_some_and(same)
    }

    /// Whether a store may remove the record instead of keeping it: no candidate needs the record of a participant's lease
    /// after it has ended. The next token of the name is then minted from the clock. It is greater than the last one unless the
    /// clock was set back, and the lease never granted a right.
    pub fn is_forgettable(&self) -> bool {
        self.ephemeral && self.term.is_none()
    }

    fn claim_wait(&mut self, claim: &Claim, context: &RuleContext) {
        self.leads_from = LeadsFrom::claimed(self.leads_from, claim.wait, context.wait_micros);
    }

    /// Requires every later holder to wait this long: a term may have ended before its time.
    pub(crate) fn require_wait(&mut self, left: Duration, context: &RuleContext) {
        let wait = ClaimedWait::AtLeast(StartupWait { left, reason: WaitReason::Observed });
        self.leads_from = LeadsFrom::claimed(self.leads_from, wait, context.wait_micros);
    }

    fn wait(&self, context: &RuleContext) -> Option<StartupWait> {
        LeadsFrom::wait(self.leads_from, context.wait_micros)
    }

    /// Removes a term that is over.
    fn end(&mut self, standing: Standing, context: &RuleContext) {
        let Standing::Over(ended) = standing else { return };
        self.before = ended;
        if let Some(term) = self.term.take() {
            let outcome = match ended {
                Ended::Died(_) => PastTermOutcome::Died,
                _ => PastTermOutcome::Expired,
            };
            self.remember(term, self.token, outcome, context);
        }
    }

    /// Takes the right to renew from the term's holder.
    fn revoke_term(&mut self, token: Token, context: &RuleContext) {
        let Some(term) = self.term.as_mut() else { return };
        let revoked = term.clone();
        term.nonce = None;
        self.remember(revoked, token, PastTermOutcome::Revoked, context);
    }

    /// Adds a term that has ended to the history. A revoked term is in it since its revocation.
    fn remember(
        &mut self,
        term: TermRecord,
        token: Token,
        outcome: PastTermOutcome,
        context: &RuleContext,
    ) {
        let Some(history) = self.history.as_mut().filter(|_| term.nonce.is_some()) else { return };
        history.push(PastTerm {
            token,
            candidate: term.candidate,
            from: term.since_micros / 1_000,
            to: context.minting_micros / 1_000,
            outcome,
        });
        history.drain(..history.len().saturating_sub(MAX_HISTORY_TERMS));
    }

    fn grant(&self, claim: &Claim, context: &RuleContext) -> Grant {
        Grant {
            hold: claim.held_in(self.token),
            lineage: Lineage { origin: self.origin, before: self.before },
            checkpoint: self.checkpoint.clone(),
            store_time: context.store_time,
            wait: self.wait(context),
            counts_from: None,
        }
    }
}

#[cfg(test)]
mod tests;
