//! PURE: the rules of each operation on a record. They are the same rules as those of the reference store,
//! [`Leases`](crate::store::memory::Leases), but the caller has already judged whether the recorded term is live.
//!
//! The batch executor calls [`Operation::apply`], and then writes or removes the record as the returned [`Step`] says.

use std::time::Duration;

use super::record::{BootId, LivenessId, Record, TermRecord};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::lease::{
    Answer, Checkpoint, Claim, Ended, Grant, Hold, Holder, Lease, Lineage, Name, Release,
    StartupWait, StoreTime, Token,
};
use crate::store::Revoke;
use crate::store::ephemeral::is_ephemeral;
use crate::store::leads_from::LeadsFrom;
use crate::store::memory::{older_save, unknown_lease};

/// How long an operation without a TTL waits for a lock that another process holds.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);
/// The least time that an operation with a TTL waits for such a lock.
const MIN_LOCK_TIMEOUT: Duration = Duration::from_millis(20);

/// The state of a record's term now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The record has no term.
    Free,
    /// The term is live; its holder has this much time left.
    Live(Duration),
    /// The record still has a term, but it is over: expired or died.
    Over(Ended),
}

/// A record and the state of its term.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundRecord<'a> {
    pub(super) record: &'a Record,
    pub(super) standing: Standing,
}

/// The context in which an operation is applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleContext<'a> {
    pub(super) now: Moment,
    /// The clock that tokens are minted from.
    pub(super) minting_micros: u64,
    /// The boot and time namespace of this process; `now` is on its clock.
    pub(super) era: &'a BootId,
    /// The liveness file of this process.
    pub(super) live: Option<&'a LivenessId>,
    /// The greatest token of this name that this process has read or written.
    pub(super) floor: Option<Token>,
}

/// The result of applying an operation.
#[derive(Debug)]
pub(super) enum Step<T> {
    /// The answer; the record stays unchanged.
    Answer(T),
    /// The answer, valid once this record is written.
    Write(Box<Record>, T),
    /// The answer, valid once the record is removed.
    Remove(T),
}

/// A store operation on one name.
pub(super) trait Operation {
    type Answer;

    /// It changes only the holder's time, which needs no fsync.
    const RENEWS: bool = false;

    /// It may create a record where there was none.
    const CLAIMS: bool = false;

    fn name(&self) -> &Name;

    /// How long it waits while another process holds the lock.
    fn lock_timeout(&self) -> Duration {
        LOCK_TIMEOUT
    }

    fn apply(
        &self,
        found: Option<FoundRecord<'_>>,
        context: RuleContext<'_>,
    ) -> Result<Step<Self::Answer>>;
}

impl Operation for Claim {
    type Answer = Answer<Grant>;

    const CLAIMS: bool = true;

    fn name(&self) -> &Name {
        &self.name
    }

    fn lock_timeout(&self) -> Duration {
        (self.ttl / 10).max(MIN_LOCK_TIMEOUT)
    }

    fn apply(
        &self,
        found: Option<FoundRecord<'_>>,
        context: RuleContext<'_>,
    ) -> Result<Step<Self::Answer>> {
        let mut record = match found {
            None => {
                let token = Token::mint(context.floor, context.minting_micros)?;
                Record::new(self.name.clone(), token)
            }
            Some(FoundRecord { record, standing: Standing::Live(_) }) => {
                let mut record = record.clone();
                let same_campaign = |term: &&mut TermRecord| {
                    term.nonce == Some(self.nonce) && term.candidate == self.candidate
                };
                return Ok(match record.term.as_mut().filter(same_campaign) {
                    None => {
                        Step::Answer(Answer::Taken(Box::new(lease(found, &self.name, context))))
                    }
                    // The reply to an earlier attempt was lost, or the holder changes its note: return the same answer again,
                    // extended.
                    Some(term) => {
                        term.note = self.note.clone();
                        term.extend(self.ttl, context);
                        record.claim_wait(self, context);
                        let grant = record.grant(self, context);
                        Step::Write(Box::new(record), Answer::Held(grant))
                    }
                });
            }
            Some(FoundRecord { record, standing }) => {
                let mut record = record.clone();
                record.end(standing);
                record.token = Token::mint(Some(record.token), context.minting_micros)?;
                record
            }
        };
        record.next = None;
        record.ephemeral = is_ephemeral(self);
        let mut term = TermRecord {
            candidate: self.candidate.clone(),
            nonce: Some(self.nonce),
            ttl: self.ttl,
            since_micros: context.minting_micros,
            note: self.note.clone(),
            saved: None,
            era: context.era.clone(),
            live: context.live.filter(|_| self.ends_with_process).cloned(),
            until: None,
        };
        term.extend(self.ttl, context);
        record.term = Some(term);
        record.claim_wait(self, context);
        let grant = record.grant(self, context);
        Ok(Step::Write(Box::new(record), Answer::Held(grant)))
    }
}

/// A request to extend a hold.
#[derive(Debug)]
pub(super) struct Renewal {
    pub(super) hold: Hold,
    pub(super) ttl: Duration,
}

impl Operation for Renewal {
    type Answer = Answer;

    const RENEWS: bool = true;

    fn name(&self) -> &Name {
        &self.hold.name
    }

    fn lock_timeout(&self) -> Duration {
        (self.ttl / 10).max(MIN_LOCK_TIMEOUT)
    }

    fn apply(
        &self,
        found: Option<FoundRecord<'_>>,
        context: RuleContext<'_>,
    ) -> Result<Step<Self::Answer>> {
        let Some((mut record, mut term)) = held(found, &self.hold) else {
            return Ok(taken(found, &self.hold.name, context));
        };
        term.extend(self.ttl, context);
        record.term = Some(term);
        Ok(Step::Write(Box::new(record), Answer::Held(())))
    }
}

impl Operation for Release {
    type Answer = ();

    fn name(&self) -> &Name {
        &self.hold.name
    }

    fn apply(&self, found: Option<FoundRecord<'_>>, _context: RuleContext<'_>) -> Result<Step<()>> {
        let Some((mut record, _term)) = held(found, &self.hold) else {
            return Ok(Step::Answer(()));
        };
        if record.ephemeral {
            // The next token of this name is minted from the clock. It is greater than the last token unless the clock was set
            // back, and no right was ever granted under that name.
            return Ok(Step::Remove(()));
        }
        record.term = None;
        record.before = Ended::Released(record.token);
        record.next = self.next.clone();
        Ok(Step::Write(Box::new(record), ()))
    }
}

/// A request to save a checkpoint under a hold.
#[derive(Debug)]
pub(super) struct Save {
    pub(super) hold: Hold,
    pub(super) number: u64,
    pub(super) checkpoint: Checkpoint,
}

impl Operation for Save {
    type Answer = Answer;

    fn name(&self) -> &Name {
        &self.hold.name
    }

    fn apply(
        &self,
        found: Option<FoundRecord<'_>>,
        context: RuleContext<'_>,
    ) -> Result<Step<Self::Answer>> {
        let Some((mut record, mut term)) = held(found, &self.hold) else {
            return Ok(taken(found, &self.hold.name, context));
        };
        match term.saved {
            Some(last) if self.number < last => Err(older_save(&self.hold.name, self.number, last)),
            Some(last) if self.number == last => Ok(Step::Answer(Answer::Held(()))),
            _ => {
                term.saved = Some(self.number);
                record.term = Some(term);
                record.checkpoint = Some(self.checkpoint.clone());
                Ok(Step::Write(Box::new(record), Answer::Held(())))
            }
        }
    }
}

/// A request to revoke a lease.
#[derive(Debug)]
pub(super) struct Revocation {
    pub(super) name: Name,
    pub(super) when: Revoke,
}

impl Operation for Revocation {
    type Answer = Lease;

    fn name(&self) -> &Name {
        &self.name
    }

    fn apply(
        &self,
        found: Option<FoundRecord<'_>>,
        context: RuleContext<'_>,
    ) -> Result<Step<Lease>> {
        let Some(FoundRecord { record, standing }) = found else {
            let name = &self.name;
            return Err(Error::invalid(format!("there is no lease '{name}' to revoke")));
        };
        let mut record = record.clone();
        let last = record.token;
        record.token = Token::mint(Some(last), context.minting_micros)?;
        let standing = match (standing, self.when) {
            (Standing::Live(_), Revoke::InTime) => {
                if let Some(term) = record.term.as_mut() {
                    term.nonce = None;
                }
                standing
            }
            (Standing::Live(_), Revoke::Now) => {
                record.term = None;
                record.before = Ended::Expired(last);
                Standing::Free
            }
            (over, _) => {
                record.end(over);
                Standing::Free
            }
        };
        if self.when == Revoke::Now {
            // The operator guarantees that no earlier holder is still working.
            record.leads_from = None;
        }
        let lease = lease(Some(FoundRecord { record: &record, standing }), &self.name, context);
        Ok(Step::Write(Box::new(record), lease))
    }
}

/// The record without its term, and the term, if `hold` is the record's live term.
fn held(found: Option<FoundRecord<'_>>, hold: &Hold) -> Option<(Record, TermRecord)> {
    let FoundRecord { record, standing: Standing::Live(_) } = found? else {
        return None;
    };
    let mut record = record.clone();
    let term = record.term.take()?;
    let same_candidate = term.nonce == Some(hold.nonce) && term.candidate == hold.candidate;
    (same_candidate && record.token == hold.token).then_some((record, term))
}

fn taken(found: Option<FoundRecord<'_>>, name: &Name, context: RuleContext<'_>) -> Step<Answer> {
    Step::Answer(Answer::Taken(Box::new(lease(found, name, context))))
}

/// The lease as the store reports it.
pub(super) fn lease(
    found: Option<FoundRecord<'_>>,
    name: &Name,
    context: RuleContext<'_>,
) -> Lease {
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
        store_time: Some(store_time(context.now)),
        wait: term.and_then(|_| record.wait(context)),
    }
}

fn store_time(now: Moment) -> StoreTime {
    StoreTime(now.as_nanos() / 1_000)
}

impl Record {
    /// The free record of a name that never had a term.
    pub(super) fn new(name: Name, token: Token) -> Self {
        Record {
            name,
            origin: token,
            token,
            before: Ended::Nothing,
            term: None,
            next: None,
            checkpoint: None,
            leads_from: None,
            ephemeral: false,
        }
    }

    fn claim_wait(&mut self, claim: &Claim, context: RuleContext<'_>) {
        self.leads_from = LeadsFrom::claimed(self.leads_from, claim.wait, context.minting_micros);
    }

    fn wait(&self, context: RuleContext<'_>) -> Option<StartupWait> {
        LeadsFrom::wait(self.leads_from, context.minting_micros)
    }

    /// Removes a term that is over.
    fn end(&mut self, standing: Standing) {
        if let Standing::Over(ended) = standing {
            self.term = None;
            self.before = ended;
        }
    }

    fn grant(&self, claim: &Claim, context: RuleContext<'_>) -> Grant {
        Grant {
            hold: claim.held_in(self.token),
            lineage: Lineage { origin: self.origin, before: self.before },
            checkpoint: self.checkpoint.clone(),
            store_time: Some(store_time(context.now)),
            wait: self.wait(context),
        }
    }
}

impl TermRecord {
    /// Extends the term by `ttl` from now, on the clock of this process.
    fn extend(&mut self, ttl: Duration, context: RuleContext<'_>) {
        // The head stores whole microseconds, rounded up, so that the record never states less time than was granted.
        let micros = u64::try_from(ttl.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        self.ttl = Duration::from_micros(micros);
        self.era = context.era.clone();
        self.until = Some(context.now + self.ttl);
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
