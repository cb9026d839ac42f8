//! The store of the world: the reference implementation of leases with its own clock, and the overrides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure::fleet::{ListDigest, Shard, ShardNumber, member_of, nodes_prefix};
use tenure::machine::{Input, RequestId};
use tenure::store::memory::Leases;
use tenure::store::{Change, Revoke, Scope};
use tenure::{
    Answer, CandidateId, Claim, Error, Hold, Lease, Moment, Name, Release, Result, Token,
};

use tenure_rig::simulation::clock::{SimulatedClock, Time};

/// A request to the store, batched as by the driver.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Acquire(Vec<(ShardNumber, RequestId, Claim)>),
    Renew(Vec<(ShardNumber, RequestId, Hold)>),
    Release(Vec<(ShardNumber, RequestId, Release)>),
    Observe(Vec<(ShardNumber, RequestId, Name)>),
    /// A member announces its list, in the checkpoint of its membership.
    Announce(Hold, u64, ListDigest),
    /// Observe the members and the overrides; with the time of the request on the member's clock.
    ObserveFleet(Moment),
}

/// A reply of the store.
#[derive(Debug)]
pub(crate) enum Reply {
    Answers(Vec<(ShardNumber, Input)>),
    Snapshot(SimSnapshot),
    Announced(ListDigest),
    /// An answer that no caller waits for.
    Nothing,
}

#[derive(Clone, Debug)]
pub(crate) struct SimSnapshot {
    pub(crate) sent: Moment,
    pub(crate) members: Vec<(CandidateId, Duration, ListDigest)>,
    pub(crate) overrides: SimOverrides,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SimOverrides {
    pub(crate) paused: BTreeSet<Shard>,
    pub(crate) drained: BTreeSet<CandidateId>,
}

pub(crate) struct SimStore {
    pub(crate) fleet: Name,
    pub(crate) overrides: SimOverrides,
    leases: Leases,
    clock: SimulatedClock,
    ttl: Duration,
    /// Records that are locked, and until when.
    locked_until: BTreeMap<Name, Time>,
    pub(crate) hints: Vec<Change>,
    /// Terms that were released.
    pub(crate) released: Vec<(Name, Token)>,
}

impl SimStore {
    pub(crate) fn new(fleet: Name, clock: SimulatedClock, ttl: Duration) -> Self {
        SimStore {
            fleet,
            overrides: SimOverrides::default(),
            leases: Leases::default(),
            clock,
            ttl,
            locked_until: BTreeMap::new(),
            hints: Vec::new(),
            released: Vec::new(),
        }
    }

    pub(crate) fn lock(&mut self, name: Name, until: Time) {
        self.locked_until.insert(name, until);
    }

    pub(crate) fn unlock_all(&mut self) {
        self.locked_until.clear();
    }

    /// Break-glass, in time: no other member can acquire the lease before the holder's lease has expired.
    pub(crate) fn revoke(&mut self, time: Time, name: &Name) {
        let now = self.clock.at(time);
        if self.leases.revoke(now, now.as_nanos() / 1_000, name, Revoke::InTime).is_ok() {
            self.hints.push(Change::Look);
        }
    }

    pub(crate) fn lease(&self, time: Time, name: &Name) -> Option<Lease> {
        self.leases.observe(self.clock.at(time), &Scope::name(name)).pop()?.ok()
    }

    /// When the term of `token` expires, in true time.
    pub(crate) fn expiry(&self, time: Time, name: &Name, token: Token) -> Option<Time> {
        let lease = self.lease(time, name)?;
        let until = self.clock.at(time) + lease.left;
        (lease.token == Some(token)).then(|| self.clock.when(until))
    }

    /// Serves a request, item by item.
    pub(crate) fn serve(&mut self, time: Time, call: &Call) -> Reply {
        let now = self.clock.at(time);
        let answers = match call {
            Call::Acquire(items) => items
                .iter()
                .map(|(number, request, claim)| {
                    let answer = self
                        .check_lock(time, &claim.name)
                        .and_then(|()| self.leases.acquire(now, now.as_nanos() / 1_000, claim));
                    if let Ok(Answer::Held(grant)) = &answer {
                        let Hold { name, candidate, token, .. } = grant.hold.clone();
                        self.hints.push(Change::Granted { name, token, holder: Some(candidate) });
                    }
                    (*number, Input::Acquired(*request, answer))
                })
                .collect(),
            Call::Renew(items) => items
                .iter()
                .map(|(number, request, hold)| {
                    let answer = self
                        .check_lock(time, &hold.name)
                        .and_then(|()| self.leases.renew(now, hold, self.ttl));
                    (*number, Input::Renewed(*request, answer))
                })
                .collect(),
            Call::Release(items) => items
                .iter()
                .map(|(number, request, release)| {
                    let answer = self.release(time, release);
                    (*number, Input::Released(*request, answer))
                })
                .collect(),
            Call::Observe(items) => items
                .iter()
                .map(|(number, request, name)| {
                    let answer = self.check_lock(time, name).and_then(|()| {
                        self.leases.observe(now, &Scope::name(name)).pop().transpose()
                    });
                    (*number, Input::Observed(*request, answer))
                })
                .collect(),
            Call::Announce(hold, number, list) => {
                let checkpoint = list.to_checkpoint().expect("short");
                let unlocked = self.check_lock(time, &hold.name);
                let saved =
                    unlocked.and_then(|()| self.leases.save(now, hold, *number, &checkpoint));
                return match saved {
                    Ok(Answer::Held(())) => Reply::Announced(list.clone()),
                    _ => Reply::Nothing,
                };
            }
            Call::ObserveFleet(sent) => return Reply::Snapshot(self.observe_fleet(now, *sent)),
        };
        Reply::Answers(answers)
    }

    fn release(&mut self, time: Time, release: &Release) -> Result<()> {
        self.check_lock(time, &release.hold.name)?;
        if self.leases.release(
            self.clock.at(time),
            self.clock.at(time).as_nanos() / 1_000,
            release,
        )? {
            let Hold { name, token, .. } = release.hold.clone();
            self.released.push((name.clone(), token));
            self.hints.push(Change::Freed { name, next: release.next.clone() });
        }
        Ok(())
    }

    fn observe_fleet(&self, now: Moment, sent: Moment) -> SimSnapshot {
        let scope = Scope::Prefix(nodes_prefix(&self.fleet));
        let leases = self.leases.observe(now, &scope).into_iter().flatten();
        let members = leases.filter(|lease| lease.holder.is_some()).filter_map(|lease| {
            let list = ListDigest::announced(lease.checkpoint.as_ref());
            Some((member_of(&self.fleet, &lease.name)?, lease.left, list))
        });
        SimSnapshot { sent, members: members.collect(), overrides: self.overrides.clone() }
    }

    fn check_lock(&self, time: Time, name: &Name) -> Result<()> {
        match self.locked_until.get(name) {
            Some(until) if time < *until => {
                Err(Error::unavailable(format!("'{name}' is locked by another program")))
            }
            _ => Ok(()),
        }
    }
}
