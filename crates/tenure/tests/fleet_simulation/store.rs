//! The store of the world: the reference ledger on its own clock, and what people have said.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure::fleet::{ListDigest, Shard, ShardNumber, member_of, nodes_prefix};
use tenure::machine::{Input, RequestId};
use tenure::store::memory::Leases;
use tenure::store::{Change, Revoke, Scope};
use tenure::{
    Answer, CandidateId, Claim, Error, Hold, Lease, Moment, Name, Release, Result, Token,
};

use super::clock::{Clock, Time};

/// What travels to the store, as the driver batches it.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Acquire(Vec<(ShardNumber, RequestId, Claim)>),
    Renew(Vec<(ShardNumber, RequestId, Hold)>),
    Release(Vec<(ShardNumber, RequestId, Release)>),
    Observe(Vec<(ShardNumber, RequestId, Name)>),
    /// A member announces its list, in the checkpoint of its membership.
    Announce(Hold, u64, ListDigest),
    /// Who is there and what people have said; when it was sent, on the member's clock.
    Look(Moment),
}

/// What travels back.
#[derive(Debug)]
pub(crate) enum Reply {
    Answers(Vec<(ShardNumber, Input)>),
    Sight(Sight),
    Announced(ListDigest),
    /// An answer that no caller waits for.
    Nothing,
}

#[derive(Clone, Debug)]
pub(crate) struct Sight {
    pub(crate) sent: Moment,
    pub(crate) members: Vec<(CandidateId, Duration, ListDigest)>,
    pub(crate) control: Control,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Control {
    pub(crate) paused: BTreeSet<Shard>,
    pub(crate) drained: BTreeSet<CandidateId>,
}

pub(crate) struct SimStore {
    pub(crate) fleet: Name,
    pub(crate) control: Control,
    ledger: Leases,
    clock: Clock,
    ttl: Duration,
    /// Records nobody can get at for a while.
    stuck: BTreeMap<Name, Time>,
    pub(crate) hints: Vec<Change>,
    /// Terms that were given back.
    pub(crate) released: Vec<(Name, Token)>,
}

impl SimStore {
    pub(crate) fn new(fleet: Name, clock: Clock, ttl: Duration) -> Self {
        SimStore {
            fleet,
            control: Control::default(),
            ledger: Leases::default(),
            clock,
            ttl,
            stuck: BTreeMap::new(),
            hints: Vec::new(),
            released: Vec::new(),
        }
    }

    pub(crate) fn stick(&mut self, name: Name, until: Time) {
        self.stuck.insert(name, until);
    }

    pub(crate) fn unstick(&mut self) {
        self.stuck.clear();
    }

    /// Break-glass, in time: nobody may have it before the holder's time has run out.
    pub(crate) fn revoke(&mut self, time: Time, name: &Name) {
        let now = self.clock.at(time);
        if self.ledger.revoke(now, now.as_nanos() / 1_000, name, Revoke::InTime).is_ok() {
            self.hints.push(Change::Look);
        }
    }

    pub(crate) fn lease(&self, time: Time, name: &Name) -> Option<Lease> {
        self.ledger.observe(self.clock.at(time), &Scope::name(name)).pop()?.ok()
    }

    /// In true time, when the term of `token` runs out by itself.
    pub(crate) fn expiry(&self, time: Time, name: &Name, token: Token) -> Option<Time> {
        let lease = self.lease(time, name)?;
        let until = self.clock.at(time) + lease.left;
        (lease.token == Some(token)).then(|| self.clock.when(until))
    }

    /// Each item is carried out by itself.
    pub(crate) fn serve(&mut self, time: Time, call: &Call) -> Reply {
        let now = self.clock.at(time);
        let answers = match call {
            Call::Acquire(items) => items
                .iter()
                .map(|(place, request, claim)| {
                    let answer = self
                        .reach(time, &claim.name)
                        .and_then(|()| self.ledger.acquire(now, now.as_nanos() / 1_000, claim));
                    if let Ok(Answer::Held(grant)) = &answer {
                        let Hold { name, candidate, token, .. } = grant.hold.clone();
                        self.hints.push(Change::Granted { name, token, holder: Some(candidate) });
                    }
                    (*place, Input::Acquired(*request, answer))
                })
                .collect(),
            Call::Renew(items) => items
                .iter()
                .map(|(place, request, hold)| {
                    let answer = self
                        .reach(time, &hold.name)
                        .and_then(|()| self.ledger.renew(now, hold, self.ttl));
                    (*place, Input::Renewed(*request, answer))
                })
                .collect(),
            Call::Release(items) => items
                .iter()
                .map(|(place, request, release)| {
                    let answer = self.release(time, release);
                    (*place, Input::Released(*request, answer))
                })
                .collect(),
            Call::Observe(items) => items
                .iter()
                .map(|(place, request, name)| {
                    let answer = self.reach(time, name).and_then(|()| {
                        self.ledger.observe(now, &Scope::name(name)).pop().transpose()
                    });
                    (*place, Input::Observed(*request, answer))
                })
                .collect(),
            Call::Announce(hold, number, list) => {
                let checkpoint = list.to_checkpoint().expect("short");
                let reached = self.reach(time, &hold.name);
                let saved =
                    reached.and_then(|()| self.ledger.save(now, hold, *number, &checkpoint));
                return match saved {
                    Ok(Answer::Held(())) => Reply::Announced(list.clone()),
                    _ => Reply::Nothing,
                };
            }
            Call::Look(sent) => return Reply::Sight(self.look(now, *sent)),
        };
        Reply::Answers(answers)
    }

    fn release(&mut self, time: Time, release: &Release) -> Result<()> {
        self.reach(time, &release.hold.name)?;
        if self.ledger.release(self.clock.at(time), release)? {
            let Hold { name, token, .. } = release.hold.clone();
            self.released.push((name.clone(), token));
            self.hints.push(Change::Freed { name, next: release.next.clone() });
        }
        Ok(())
    }

    fn look(&self, now: Moment, sent: Moment) -> Sight {
        let scope = Scope::Prefix(nodes_prefix(&self.fleet));
        let leases = self.ledger.observe(now, &scope).into_iter().flatten();
        let members = leases.filter(|lease| lease.holder.is_some()).filter_map(|lease| {
            let list = ListDigest::announced(lease.checkpoint.as_ref());
            Some((member_of(&self.fleet, &lease.name)?, lease.left, list))
        });
        Sight { sent, members: members.collect(), control: self.control.clone() }
    }

    fn reach(&self, time: Time, name: &Name) -> Result<()> {
        match self.stuck.get(name) {
            Some(until) if time < *until => {
                Err(Error::unavailable(format!("'{name}' is locked by somebody")))
            }
            _ => Ok(()),
        }
    }
}
