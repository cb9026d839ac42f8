//! The invariants that must always hold, checked in true time with full knowledge of the world. PROOF.md lists their names.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use tenure::Token;

use tenure_rig::simulation::clock::Time;

/// A process: the host, and the number of its run.
pub(crate) type ProcessRun = (usize, u32);

#[derive(Clone, Debug, Hash)]
pub(crate) enum Fact {
    /// Work on a shard began; it counts as valid until `until`. Without a token it has no lease.
    Led {
        shard: usize,
        token: Option<u64>,
        until: Time,
    },
    Extended {
        shard: usize,
        token: u64,
        until: Time,
    },
    /// The work must stop; it may have effects until `until`. `lost`: the term was lost, not resigned.
    Revoked {
        shard: usize,
        until: Time,
        lost: bool,
    },
    WorkEnded {
        shard: usize,
    },
    SentRelease {
        shard: usize,
        token: u64,
    },
    /// A member counts on its lease until `until`; the store keeps the lease until `expiry`.
    Believes {
        shard: usize,
        until: Time,
        expiry: Option<Time>,
    },
    MembershipChanged(bool),
    /// The process has ended, and its work with it.
    Gone,
}

pub(crate) struct InvariantChecker {
    shards: Vec<ShardHistory>,
    not_member_since: BTreeMap<ProcessRun, Time>,
    ttl: Time,
    history: DefaultHasher,
}

#[derive(Clone, Default)]
struct ShardHistory {
    works: BTreeMap<ProcessRun, ObservedWork>,
    last: Option<u64>,
    released: BTreeSet<u64>,
}

#[derive(Clone)]
struct ObservedWork {
    token: Option<u64>,
    until: Time,
    revoked: bool,
    lost: bool,
}

pub(crate) fn number(token: Token) -> u64 {
    token.get()
}

impl InvariantChecker {
    pub(crate) fn new(shards: usize, ttl: Time) -> Self {
        let history = DefaultHasher::new();
        InvariantChecker {
            shards: vec![ShardHistory::default(); shards],
            not_member_since: BTreeMap::new(),
            ttl,
            history,
        }
    }

    pub(crate) fn history(&self) -> u64 {
        self.history.finish()
    }

    /// The store has freed this term because its holder has released it.
    pub(crate) fn released(&mut self, shard: usize, token: u64) {
        (shard, token).hash(&mut self.history);
        self.shards[shard].released.insert(token);
    }

    pub(crate) fn record(&mut self, at: Time, who: ProcessRun, fact: &Fact) -> Result<(), String> {
        (at, who, fact).hash(&mut self.history);
        match *fact {
            Fact::Led { shard, token, until } => self.led(at, who, shard, token, until),
            Fact::Extended { shard, token, until } => self.extended(at, who, shard, token, until),
            Fact::Revoked { shard, until, lost } => {
                if let Some(work) = self.shards[shard].works.get_mut(&who) {
                    work.until = until;
                    work.revoked = true;
                    work.lost |= lost;
                }
                Ok(())
            }
            Fact::WorkEnded { shard } => {
                self.shards[shard].works.remove(&who);
                Ok(())
            }
            Fact::SentRelease { shard, token } => match self.shards[shard].works.get(&who) {
                Some(work) if work.token == Some(token) => Err(format!(
                    "I9 STOP_BEFORE_RELEASE: {who:?} releases shard {shard} while its work runs"
                )),
                _ => Ok(()),
            },
            Fact::Believes { shard, until, expiry: Some(expiry) }
                if at < until && until > expiry =>
            {
                Err(format!(
                    "I5 DEADLINE_BEFORE_EXPIRY: {who:?} believes in shard {shard} until {until}, but the store frees it at {expiry}"
                ))
            }
            Fact::Believes { .. } => Ok(()),
            Fact::MembershipChanged(true) => {
                self.not_member_since.remove(&who);
                Ok(())
            }
            Fact::MembershipChanged(false) => {
                self.not_member_since.insert(who, at);
                Ok(())
            }
            Fact::Gone => {
                for shard in &mut self.shards {
                    shard.works.remove(&who);
                }
                self.not_member_since.remove(&who);
                Ok(())
            }
        }
    }

    fn led(
        &mut self,
        at: Time,
        who: ProcessRun,
        shard: usize,
        token: Option<u64>,
        until: Time,
    ) -> Result<(), String> {
        self.alone(at, who, shard, until)?;
        let this = &mut self.shards[shard];
        let works = this.works.get(&who).is_some_and(|work| work.token.is_some());
        if token.is_some() && works {
            return Err(format!("I9 {who:?} has two works on shard {shard} at a time"));
        }
        let early =
            |work: &&ObservedWork| work.token.is_some_and(|token| this.released.contains(&token));
        if let Some(work) = this.works.values().find(early) {
            return Err(format!(
                "I12 HANDOFF_ORDER: {who:?} begins on shard {shard} while the work of {:?}, which was released, goes on",
                work.token
            ));
        }
        if token.is_some() && token <= this.last {
            return Err(format!(
                "I2 FENCE_STRICT: {who:?} leads shard {shard} under {token:?} after {:?}",
                this.last
            ));
        }
        this.last = this.last.max(token);
        this.works.insert(who, ObservedWork { token, until, revoked: false, lost: false });
        Ok(())
    }

    fn extended(
        &mut self,
        at: Time,
        who: ProcessRun,
        shard: usize,
        token: u64,
        until: Time,
    ) -> Result<(), String> {
        self.alone(at, who, shard, until)?;
        let Some(work) = self.shards[shard].works.get_mut(&who) else { return Ok(()) };
        if work.lost && at < until {
            return Err(format!("I6 NO_RESURRECTION: {who:?} lost shard {shard} and has it again"));
        }
        // Within this time its work was revoked, or the process was paused and has lost the lease.
        let late = 2 * self.ttl + 3_000_000_000;
        match self.not_member_since.get(&who) {
            Some(since) if !work.revoked && at > since + late => {
                return Err(format!(
                    "L6 NO_MEMBER_NO_SHARD: {who:?} is no member since {since} and still has shard {shard}, token {token}"
                ));
            }
            _ => {}
        }
        work.until = until;
        Ok(())
    }

    fn alone(&self, at: Time, who: ProcessRun, shard: usize, until: Time) -> Result<(), String> {
        let others = self.shards[shard].works.iter().filter(|(other, _)| **other != who);
        for (other, work) in others {
            if at < until && at < work.until {
                return Err(format!(
                    "I1 I11 ONE_OWNER_PER_SHARD: {who:?} has shard {shard} while {other:?} has it until {}",
                    work.until
                ));
            }
        }
        Ok(())
    }
}
