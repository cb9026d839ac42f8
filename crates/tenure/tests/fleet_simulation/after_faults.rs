//! After the faults: what must come true (L6), stay so, and cost little (L7).

use std::collections::{BTreeMap, BTreeSet};

use super::clock::{MILLI, SECOND};
use super::config::Script;
use super::host::Count;
use super::member::{Process, index};
use super::world::{Happening, World};

impl World {
    /// Everything is mended. In a quiet world, this is when its script happens.
    pub(crate) fn calm_down(&mut self) -> Result<(), String> {
        self.say(|| "calm".to_owned());
        let last = self.hosts.len() - 1;
        match self.plan.script {
            Script::Chaos => self.mend()?,
            Script::Join => self.at(self.now, Happening::Start(last)),
            Script::Leave => self.at(self.now, Happening::Leave(last)),
            Script::Lists => self.make_lists_differ(last),
            Script::Restart => {
                for host in 0..self.hosts.len() {
                    if self.hosts[host].process.is_some() {
                        self.kill(host)?;
                        let at = self.now + self.rng.u64(0..SECOND);
                        self.at(at, Happening::Start(host));
                    }
                }
            }
        }
        if self.plan.script != Script::Chaos {
            self.all_is_well()?;
            self.begin_to_count();
        }
        Ok(())
    }

    fn mend(&mut self) -> Result<(), String> {
        self.calm = true;
        self.store_down_until = 0;
        self.store.unstick();
        for host in 0..self.hosts.len() {
            self.hosts[host].heal();
        }
        self.publish(5 * SECOND);
        let double = self.hosts.len() - 1;
        if !self.plan.twins_stay {
            self.kill(double)?;
        }
        // Those that were away come back, as a rule.
        for host in 0..double {
            if self.hosts[host].process.is_none() && self.rng.u8(0..4) > 0 {
                self.start(host);
            }
        }
        if self.hosts.iter().all(|host| host.process.is_none()) {
            self.start(0);
        }
        Ok(())
    }

    /// Some members list everything, some half of it, one shard or nothing; and one joins that cannot read its list yet.
    fn make_lists_differ(&mut self, joins: usize) {
        let all = 2 * self.plan.shards;
        for host in 0..joins {
            self.hosts[host].blind = match self.rng.u8(0..6) {
                0 => (0..all).collect(),
                1 => (1..all).collect(),
                2 => (0..all / 4).collect(),
                3 => (0..all).filter(|_| self.rng.bool()).collect(),
                _ => BTreeSet::new(),
            };
        }
        self.publish(5 * SECOND);
        self.hosts[joins].unreadable_until = self.now + self.rng.u64(0..4 * self.plan.ttl());
        self.at(self.now, Happening::Start(joins));
        self.at(self.now, Happening::CheckOwners);
        if !self.plan.blind {
            let at = self.now + (self.plan.settled_at - self.now) / 2;
            self.at(at, Happening::SameLists);
        }
    }

    /// Every member lists everything from now on.
    pub(crate) fn make_lists_equal(&mut self) {
        for host in &mut self.hosts {
            host.blind.clear();
        }
        self.publish(5 * SECOND);
    }

    /// F53, F54, with no other fault: shards that a living member lists are owned within 2 × TTL, and a member that has read no
    /// list is none.
    pub(crate) fn check_owners(&mut self) -> Result<(), String> {
        let no_list = |process: &Process| process.is_seated() && !process.has_list();
        let mut hosts = self.hosts.iter();
        if let Some(host) = hosts.find(|host| host.process.as_deref().is_some_and(no_list)) {
            return Err(format!(
                "L6 NO_LIST_NO_MEMBER: {} is a member and has read no list",
                host.id
            ));
        }
        let without = self.without_owner();
        self.unowned_since.retain(|shard, _| without.contains(shard));
        for shard in without {
            let since = *self.unowned_since.entry(shard).or_insert(self.now);
            if self.now - since > 2 * self.plan.ttl() {
                return Err(format!(
                    "L6 LISTED_IS_OWNED: shard {shard} has no owner since {since}, and a living member lists it"
                ));
            }
        }
        self.at(self.now + self.plan.ttl() / 8, Happening::CheckOwners);
        Ok(())
    }

    fn begin_to_count(&mut self) {
        self.counting = true;
        self.late_terms = 0;
        for host in &mut self.hosts {
            host.count = Count::default();
        }
    }

    pub(crate) fn settled(&mut self) -> Result<(), String> {
        self.say(|| "settled".to_owned());
        let members = self.plan.hosts.len() as u64;
        let shards = self.plan.shards as u64;
        let claims: u64 = self.hosts.iter().map(|host| host.count.claimed).sum();
        let bound = shards.div_ceil(members) + members;
        match self.plan.script {
            Script::Join | Script::Leave if self.late_terms > bound => {
                return Err(format!(
                    "L6 FEW_MOVES: {} moves of {shards} shards over {members} members, and {bound} are enough",
                    self.late_terms
                ));
            }
            // Twice for each shard, as its last term still stands in the way, and for each member; and a little.
            Script::Restart if claims > 3 * (shards + members) => {
                return Err(format!(
                    "L7 FRUGAL: {claims} claims for {shards} shards and {members} members that started again"
                ));
            }
            _ => {}
        }
        self.begin_to_count();
        if self.plan.script == Script::Chaos {
            self.at(self.now, Happening::CheckOwners);
        }
        self.look_around()
    }

    pub(crate) fn look_around(&mut self) -> Result<(), String> {
        self.all_is_well()?;
        self.looks += 1;
        for shard in self.without_owner() {
            *self.unowned.entry(shard).or_default() += 1;
        }
        self.at(self.now + self.plan.ttl() / 2, Happening::Look);
        Ok(())
    }

    /// L6, as it stands now.
    fn all_is_well(&self) -> Result<(), String> {
        if let Some(host) = self.hosts.iter().find(|host| host.leaving && host.process.is_some()) {
            return Err(format!("L6 LEAVE_ENDS: {} was told to leave, and has not", host.id));
        }
        let mut owners: BTreeSet<usize> = BTreeSet::new();
        let mut shares = BTreeMap::new();
        for host in &self.hosts {
            let Some(process) = &host.process else { continue };
            let owned: Vec<usize> = process.leads().collect();
            let drained = self.store.control.drained.contains(&host.id);
            // Of two with the same id one is a member, and of all others each.
            if !process.is_seated() {
                let double = self.hosts.iter().any(|other| {
                    let process = other.process.as_ref();
                    other.id == host.id && process.is_some_and(|process| process.is_seated())
                });
                if !double {
                    return Err(format!("L6 {} is no member", host.id));
                }
            } else if !drained {
                shares.insert(host.index, owned.len());
            }
            if (drained || !process.is_seated()) && !owned.is_empty() {
                return Err(format!("L6 {} should own nothing, and owns {owned:?}", host.id));
            }
            owners.extend(owned);
        }
        let paused: BTreeSet<usize> = self.store.control.paused.iter().map(index).collect();
        if let Some(at) = owners.iter().find(|at| paused.contains(at) || !self.listed.contains(at))
        {
            return Err(format!("L6 shard {at} is paused or gone, and owned"));
        }
        if self.plan.blind {
            // It is tried now and then whether those that should have a shard know of it by now.
            return Ok(());
        }
        if let Some(at) = self.without_owner().first() {
            let lease = self.store.lease(self.now, self.name(*at));
            return Err(format!("L6 ALL_OWNED: nobody owns shard {at}: {lease:?}"));
        }
        let (most, least) = (shares.values().max(), shares.values().min());
        if let (Some(most), Some(least)) = (most, least)
            && most - least > 1
        {
            return Err(format!("L6 SPREAD: shares are {shares:?}"));
        }
        for host in &self.hosts {
            let Some(process) = &host.process else { continue };
            let coverage = process.coverage(host.clock.at(self.now));
            if process.is_seated() && coverage.unowned > 0 && !shares.is_empty() {
                return Err(format!(
                    "L6 {} believes that some have no owner: {coverage:?}",
                    host.id
                ));
            }
        }
        Ok(())
    }

    /// Shards that should have an owner, because a member that takes its share lists them, and have none.
    fn without_owner(&self) -> BTreeSet<usize> {
        let mut without = BTreeSet::new();
        let members = || {
            let all = self.hosts.iter().filter_map(|host| Some((host, host.process.as_ref()?)));
            all.filter(|(_, process)| process.is_seated())
        };
        let drained = &self.store.control.drained;
        for (_, process) in members().filter(|(host, _)| !drained.contains(&host.id)) {
            without.extend(process.lists().iter().map(index));
        }
        let paused = self.store.control.paused.iter().map(index);
        for shard in members().flat_map(|(_, process)| process.leads()).chain(paused) {
            without.remove(&shard);
        }
        without
    }

    /// Nothing has moved since it was settled, and the store was asked no more than that needs.
    pub(crate) fn final_word(&self) -> Result<(), String> {
        self.all_is_well()?;
        // Two looks a TTL. Once it is offered to each of the others in turn, a TTL long; whoever takes it at last gives it
        // away again for a TTL after four, and later less often.
        let members = self.hosts.iter().filter_map(|host| host.process.as_ref());
        let members = members.filter(|process| process.is_seated()).count() as u64;
        let most = 2 * members + 1 + self.looks / 5;
        if let Some((shard, times)) = self.unowned.iter().find(|(_, times)| **times > most) {
            return Err(format!(
                "L6 ALL_OWNED: shard {shard} had no owner {times} times of {}, allowed are {most}",
                self.looks
            ));
        }
        if self.plan.blind {
            return Ok(());
        }
        if self.late_terms > 0 {
            return Err(format!("L6 STEADY: {} moves while nothing changed", self.late_terms));
        }
        let tail = self.plan.end - self.plan.settled_at;
        let timing = &self.plan.timing;
        let intervals = |every: std::time::Duration, first: u64| {
            // They fall a hundredth early at most, so that they fall together; and drift.
            let every = u64::try_from(every.as_nanos()).expect("short");
            tail * 102 / (every * 100) + first
        };
        for host in &self.hosts {
            let Some(process) = &host.process else { continue };
            let Count { renewed, renewals, claimed, released, observed, observations, looks } =
                host.count;
            let leases = process.leads().count() as u64 + u64::from(process.is_seated());
            let others = process.lists().len() as u64;
            let renewing = intervals(timing.renew_every, 1);
            let looking = intervals(timing.retry, 1);
            // It looks around when the first known membership would run out: no sooner than two thirds of a TTL.
            let around = intervals(timing.ttl.saturating_sub(timing.renew_every), 2);
            // A second one with the same id waits for the membership, and a little more often.
            let claims = if process.is_seated() { 0 } else { 2 * looking };
            let within = renewed <= leases * renewing
                && renewals <= 100 * renewing
                && observed <= others * looking
                && observations <= 100 * looking
                && looks <= around + tail / (500 * MILLI * 1_000)
                && claimed <= claims
                && released == 0;
            if !within {
                return Err(format!(
                    "L7 FRUGAL: {} with {leases} leases of {others} asked {:?} of the store; allowed are {renewing} rounds of renewals, {looking} of looks, {around} looks around",
                    host.id, host.count
                ));
            }
        }
        Ok(())
    }
}
