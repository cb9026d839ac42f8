//! PURE: what each verb does to a record. The same rules as the reference's [`Ledger`](crate::store::memory::Ledger),
//! on a record whose standing somebody else has judged.

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
use crate::store::memory::{never_seen, older_save};

/// How long a verb without a TTL waits for somebody else's lock.
const PATIENCE: Duration = Duration::from_millis(100);
const PATIENCE_MIN: Duration = Duration::from_millis(20);

/// What is true of a record's term now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// There is none.
    Free,
    /// Its holder has this long left.
    Live(Duration),
    /// It stands there, but is over: expired or died.
    Over(Ended),
}

/// A record and what was judged of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundRecord<'a> {
    pub(super) record: &'a Record,
    pub(super) standing: Standing,
}

/// The circumstances of a verb.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleContext<'a> {
    pub(super) now: Moment,
    /// The clock under the tokens.
    pub(super) minting_micros: u64,
    /// Our own boot and time namespace, on whose clock `now` is.
    pub(super) era: &'a BootId,
    /// The file that goes with our process.
    pub(super) live: Option<&'a LivenessId>,
    /// The greatest token remembered of this name.
    pub(super) floor: Option<Token>,
}

/// What comes of a verb.
#[derive(Debug)]
pub(super) enum Step<T> {
    /// The answer; the record stays as it is.
    Answer(T),
    /// The answer once this record stands there.
    Write(Box<Record>, T),
    /// The answer once the record is removed.
    Remove(T),
}

/// One of the store's verbs on one name.
pub(super) trait Operation {
    type Answer;

    /// It changes nothing but the holder's time, which needs no fsync.
    const RENEWS: bool = false;

    /// It may make a record where there was none.
    const CLAIMS: bool = false;

    fn name(&self) -> &Name;

    /// How long it waits for a name that is locked.
    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn step(
        &self,
        found: Option<FoundRecord<'_>>,
        at: RuleContext<'_>,
    ) -> Result<Step<Self::Answer>>;
}

impl Operation for Claim {
    type Answer = Answer<Grant>;

    const CLAIMS: bool = true;

    fn name(&self) -> &Name {
        &self.name
    }

    fn patience(&self) -> Duration {
        (self.ttl / 10).max(PATIENCE_MIN)
    }

    fn step(
        &self,
        found: Option<FoundRecord<'_>>,
        at: RuleContext<'_>,
    ) -> Result<Step<Self::Answer>> {
        let mut record = match found {
            None => {
                let token = Token::mint(at.floor, at.minting_micros)?;
                Record::new(self.name.clone(), token)
            }
            Some(FoundRecord { record, standing: Standing::Live(_) }) => {
                let mut record = record.clone();
                let ours = |term: &&mut TermRecord| {
                    term.nonce == Some(self.nonce) && term.candidate == self.candidate
                };
                return Ok(match record.term.as_mut().filter(ours) {
                    None => Step::Answer(Answer::Taken(Box::new(lease(found, &self.name, at)))),
                    // The reply to an earlier try was lost, or the holder changes its note: the same answer again,
                    // extended.
                    Some(term) => {
                        term.note = self.note.clone();
                        term.extend(self.ttl, at);
                        record.claim_wait(self, at);
                        let grant = record.grant(self, at);
                        Step::Write(Box::new(record), Answer::Held(grant))
                    }
                });
            }
            Some(FoundRecord { record, standing }) => {
                let mut record = record.clone();
                record.end(standing);
                record.token = Token::mint(Some(record.token), at.minting_micros)?;
                record
            }
        };
        record.next = None;
        record.ephemeral = is_ephemeral(self);
        let mut term = TermRecord {
            candidate: self.candidate.clone(),
            nonce: Some(self.nonce),
            ttl: self.ttl,
            since_micros: at.minting_micros,
            note: self.note.clone(),
            saved: None,
            era: at.era.clone(),
            live: at.live.filter(|_| self.ends_with_process).cloned(),
            until: None,
        };
        term.extend(self.ttl, at);
        record.term = Some(term);
        record.claim_wait(self, at);
        let grant = record.grant(self, at);
        Ok(Step::Write(Box::new(record), Answer::Held(grant)))
    }
}

/// A hold to be extended.
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

    fn patience(&self) -> Duration {
        (self.ttl / 10).max(PATIENCE_MIN)
    }

    fn step(
        &self,
        found: Option<FoundRecord<'_>>,
        at: RuleContext<'_>,
    ) -> Result<Step<Self::Answer>> {
        let Some((mut record, mut term)) = held(found, &self.hold) else {
            return Ok(taken(found, &self.hold.name, at));
        };
        term.extend(self.ttl, at);
        record.term = Some(term);
        Ok(Step::Write(Box::new(record), Answer::Held(())))
    }
}

impl Operation for Release {
    type Answer = ();

    fn name(&self) -> &Name {
        &self.hold.name
    }

    fn step(&self, found: Option<FoundRecord<'_>>, _at: RuleContext<'_>) -> Result<Step<()>> {
        let Some((mut record, _term)) = held(found, &self.hold) else {
            return Ok(Step::Answer(()));
        };
        if record.ephemeral {
            // The next token of this name is the clock, which is greater than the last one unless the clock was set back,
            // and no right was ever granted by it.
            return Ok(Step::Remove(()));
        }
        record.term = None;
        record.before = Ended::Released(record.token);
        record.next = self.next.clone();
        Ok(Step::Write(Box::new(record), ()))
    }
}

/// A checkpoint to be left under a hold.
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

    fn step(
        &self,
        found: Option<FoundRecord<'_>>,
        at: RuleContext<'_>,
    ) -> Result<Step<Self::Answer>> {
        let Some((mut record, mut term)) = held(found, &self.hold) else {
            return Ok(taken(found, &self.hold.name, at));
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

/// A name to be taken from its holder.
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

    fn step(&self, found: Option<FoundRecord<'_>>, at: RuleContext<'_>) -> Result<Step<Lease>> {
        let Some(FoundRecord { record, standing }) = found else {
            let name = &self.name;
            return Err(Error::invalid(format!("there is no lease '{name}' to revoke")));
        };
        let mut record = record.clone();
        let last = record.token;
        record.token = Token::mint(Some(last), at.minting_micros)?;
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
            // The operator vouches for it that no earlier holder is at work.
            record.leads_from = None;
        }
        let lease = lease(Some(FoundRecord { record: &record, standing }), &self.name, at);
        Ok(Step::Write(Box::new(record), lease))
    }
}

/// The record and its term, taken out, if `hold` is the live term of it.
fn held(found: Option<FoundRecord<'_>>, hold: &Hold) -> Option<(Record, TermRecord)> {
    let FoundRecord { record, standing: Standing::Live(_) } = found? else {
        return None;
    };
    let mut record = record.clone();
    let term = record.term.take()?;
    let same_candidate = term.nonce == Some(hold.nonce) && term.candidate == hold.candidate;
    (same_candidate && record.token == hold.token).then_some((record, term))
}

fn taken(found: Option<FoundRecord<'_>>, name: &Name, at: RuleContext<'_>) -> Step<Answer> {
    Step::Answer(Answer::Taken(Box::new(lease(found, name, at))))
}

/// The lease as it is shown.
pub(super) fn lease(found: Option<FoundRecord<'_>>, name: &Name, at: RuleContext<'_>) -> Lease {
    let Some(FoundRecord { record, standing }) = found else {
        return never_seen(name);
    };
    let (term, left) = match standing {
        Standing::Live(left) => (record.term.as_ref(), left),
        Standing::Free | Standing::Over(_) => (None, Duration::ZERO),
    };
    let before = match standing {
        // Nobody has come yet since it ended.
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
        store_time: Some(store_time(at.now)),
        wait: term.and_then(|_| record.wait(at)),
    }
}

fn store_time(now: Moment) -> StoreTime {
    StoreTime(now.as_nanos() / 1_000)
}

impl Record {
    /// The record of a name that never had a term, free.
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

    fn claim_wait(&mut self, claim: &Claim, at: RuleContext<'_>) {
        self.leads_from = LeadsFrom::claimed(self.leads_from, claim.wait, at.minting_micros);
    }

    fn wait(&self, at: RuleContext<'_>) -> Option<StartupWait> {
        LeadsFrom::wait(self.leads_from, at.minting_micros)
    }

    /// Clears away a term that is over.
    fn end(&mut self, standing: Standing) {
        if let Standing::Over(ended) = standing {
            self.term = None;
            self.before = ended;
        }
    }

    fn grant(&self, claim: &Claim, at: RuleContext<'_>) -> Grant {
        Grant {
            hold: claim.held_in(self.token),
            lineage: Lineage { origin: self.origin, before: self.before },
            checkpoint: self.checkpoint.clone(),
            store_time: Some(store_time(at.now)),
            wait: self.wait(at),
        }
    }
}

impl TermRecord {
    /// From now on for `ttl`, on our own clock.
    fn extend(&mut self, ttl: Duration, at: RuleContext<'_>) {
        // The head keeps whole microseconds; rounded up, so that the record never says less than was granted.
        let micros = u64::try_from(ttl.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        self.ttl = Duration::from_micros(micros);
        self.era = at.era.clone();
        self.until = Some(at.now + self.ttl);
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
