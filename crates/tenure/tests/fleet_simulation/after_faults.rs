//! Checks after the faults: the fleet must reach the wanted state (L6), stay there, and send few requests (L7).

use std::collections::{BTreeMap, BTreeSet};

use super::config::Script;
use super::host::Count;
use super::member::{Process, index};
use super::world::{SimEvent, World};
use tenure_rig::simulation::clock::{MILLI, SECOND};

impl World {
    /// Ends all faults. In a world without faults, starts the change of its script.
    pub(crate) fn calm_down(&mut self) -> Result<(), String> {
        self.trace(|| "calm".to_owned());
        let last = self.hosts.len() - 1;
        match self.config.script {
            Script::Chaos => self.end_faults()?,
            Script::Join => self.at(self.now, SimEvent::Start(last)),
            Script::Leave => self.at(self.now, SimEvent::Leave(last)),
            Script::Lists => self.make_lists_differ(last),
            Script::Restart => {
                for host in 0..self.hosts.len() {
                    if self.hosts[host].process.is_some() {
                        self.kill(host)?;
                        let at = self.now + self.rng.u64(0..SECOND);
                        self.at(at, SimEvent::Start(host));
                    }
                }
            }
        }
        if self.config.script != Script::Chaos {
            self.check_state()?;
            self.start_counting();
        }
        Ok(())
    }

    fn end_faults(&mut self) -> Result<(), String> {
        self.calm = true;
        self.store_down_until = 0;
        self.store.unlock_all();
        for host in 0..self.hosts.len() {
            self.hosts[host].clear_faults();
        }
        self.publish(5 * SECOND);
        let same_id = self.hosts.len() - 1;
        if !self.config.same_id_stays {
            self.kill(same_id)?;
        }
        // Most hosts without a process start one again.
        for host in 0..same_id {
            if self.hosts[host].process.is_none() && self.rng.u8(0..4) > 0 {
                self.start(host);
            }
        }
        if self.hosts.iter().all(|host| host.process.is_none()) {
            self.start(0);
        }
        Ok(())
    }

    /// Some members list all shards, some half of them, one or none; and a member joins that cannot read its list yet.
    fn make_lists_differ(&mut self, joins: usize) {
        let all = 2 * self.config.shards;
        for host in 0..joins {
            self.hosts[host].hidden_shards = match self.rng.u8(0..6) {
                0 => (0..all).collect(),
                1 => (1..all).collect(),
                2 => (0..all / 4).collect(),
                3 => (0..all).filter(|_| self.rng.bool()).collect(),
                _ => BTreeSet::new(),
            };
        }
        self.publish(5 * SECOND);
        self.hosts[joins].unreadable_until = self.now + self.rng.u64(0..4 * self.config.ttl());
        self.at(self.now, SimEvent::Start(joins));
        self.at(self.now, SimEvent::CheckOwners);
        if !self.config.lists_differ {
            let at = self.now + (self.config.settled_at - self.now) / 2;
            self.at(at, SimEvent::SameLists);
        }
    }

    /// All members list all shards from now on.
    pub(crate) fn make_lists_equal(&mut self) {
        for host in &mut self.hosts {
            host.hidden_shards.clear();
        }
        self.publish(5 * SECOND);
    }

    /// F53, F54, without other faults: a shard that a running member lists has an owner within 2 × TTL, and a process that has
    /// not read its list is not a member.
    pub(crate) fn check_owners(&mut self) -> Result<(), String> {
        let no_list = |process: &Process| process.is_member() && !process.has_list();
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
            if self.now - since > 2 * self.config.ttl() {
                return Err(format!(
                    "L6 LISTED_IS_OWNED: shard {shard} has no owner since {since}, and a living member lists it"
                ));
            }
        }
        self.at(self.now + self.config.ttl() / 8, SimEvent::CheckOwners);
        Ok(())
    }

    fn start_counting(&mut self) {
        self.counting = true;
        self.late_terms = 0;
        for host in &mut self.hosts {
            host.count = Count::default();
        }
    }

    pub(crate) fn settled(&mut self) -> Result<(), String> {
        self.trace(|| "settled".to_owned());
        let members = self.config.hosts.len() as u64;
        let shards = self.config.shards as u64;
        let claims: u64 = self.hosts.iter().map(|host| host.count.claimed).sum();
        let bound = shards.div_ceil(members) + members;
        match self.config.script {
            Script::Join | Script::Leave if self.late_terms > bound => {
                return Err(format!(
                    "L6 FEW_MOVES: {} moves of {shards} shards over {members} members, and {bound} are enough",
                    self.late_terms
                ));
            }
            // Two claims for each shard and member, because its last term still blocks the first, and some reserve.
            Script::Restart if claims > 3 * (shards + members) => {
                return Err(format!(
                    "L7 FRUGAL: {claims} claims for {shards} shards and {members} members that started again"
                ));
            }
            _ => {}
        }
        self.start_counting();
        if self.config.script == Script::Chaos {
            self.at(self.now, SimEvent::CheckOwners);
        }
        self.check_settled()
    }

    pub(crate) fn check_settled(&mut self) -> Result<(), String> {
        self.check_state()?;
        self.settled_checks += 1;
        for shard in self.without_owner() {
            *self.unowned.entry(shard).or_default() += 1;
        }
        self.at(self.now + self.config.ttl() / 2, SimEvent::CheckSettled);
        Ok(())
    }

    /// Checks L6 for the current state.
    fn check_state(&self) -> Result<(), String> {
        if let Some(host) = self.hosts.iter().find(|host| host.leaving && host.process.is_some()) {
            return Err(format!("L6 LEAVE_ENDS: {} was told to leave, and has not", host.id));
        }
        let mut owners: BTreeSet<usize> = BTreeSet::new();
        let mut shares = BTreeMap::new();
        for host in &self.hosts {
            let Some(process) = &host.process else { continue };
            let owned: Vec<usize> = process.leads().collect();
            let drained = self.store.overrides.drained.contains(&host.id);
            // Of two processes with the same id one is a member; all others are members.
            if !process.is_member() {
                let same_id = self.hosts.iter().any(|other| {
                    let process = other.process.as_ref();
                    other.id == host.id && process.is_some_and(|process| process.is_member())
                });
                if !same_id {
                    return Err(format!("L6 {} is no member", host.id));
                }
            } else if !drained {
                shares.insert(host.index, owned.len());
            }
            if (drained || !process.is_member()) && !owned.is_empty() {
                return Err(format!("L6 {} should own nothing, and owns {owned:?}", host.id));
            }
            owners.extend(owned);
        }
        let paused: BTreeSet<usize> = self.store.overrides.paused.iter().map(index).collect();
        if let Some(at) = owners.iter().find(|at| paused.contains(at) || !self.listed.contains(at))
        {
            return Err(format!("L6 shard {at} is paused or gone, and owned"));
        }
        if self.config.lists_differ {
            // Adopted shards are offered again now and then, so shares and owners may change.
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
            if process.is_member() && coverage.unowned > 0 && !shares.is_empty() {
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
            all.filter(|(_, process)| process.is_member())
        };
        let drained = &self.store.overrides.drained;
        for (_, process) in members().filter(|(host, _)| !drained.contains(&host.id)) {
            without.extend(process.lists().iter().map(index));
        }
        let paused = self.store.overrides.paused.iter().map(index);
        for shard in members().flat_map(|(_, process)| process.leads()).chain(paused) {
            without.remove(&shard);
        }
        without
    }

    /// Checks that no shard has moved since the world settled, and that the members have sent only the necessary requests.
    pub(crate) fn check_end(&self) -> Result<(), String> {
        self.check_state()?;
        // There are two checks per TTL. A shard is offered to each other member in turn, for one TTL each. The member that
        // adopts it offers it again for one TTL after four TTLs, and then less and less often.
        let members = self.hosts.iter().filter_map(|host| host.process.as_ref());
        let members = members.filter(|process| process.is_member()).count() as u64;
        let most = 2 * members + 1 + self.settled_checks / 5;
        if let Some((shard, times)) = self.unowned.iter().find(|(_, times)| **times > most) {
            return Err(format!(
                "L6 ALL_OWNED: shard {shard} had no owner {times} times of {}, allowed are {most}",
                self.settled_checks
            ));
        }
        if self.config.lists_differ {
            return Ok(());
        }
        if self.late_terms > 0 {
            return Err(format!("L6 STEADY: {} moves while nothing changed", self.late_terms));
        }
        let tail = self.config.end - self.config.settled_at;
        let timing = &self.config.timing;
        let intervals = |every: std::time::Duration, first: u64| {
            // Timers fire up to a hundredth early, so that they fire together; and clocks drift.
            let every = u64::try_from(every.as_nanos()).expect("short");
            tail * 102 / (every * 100) + first
        };
        for host in &self.hosts {
            let Some(process) = &host.process else { continue };
            let Count {
                renewed,
                renewals,
                claimed,
                released,
                observed,
                observations,
                fleet_observations,
            } = host.count;
            let leases = process.leads().count() as u64 + u64::from(process.is_member());
            let others = process.lists().len() as u64;
            let renewing = intervals(timing.renew_every, 1);
            let observing = intervals(timing.retry, 1);
            // It observes the fleet when the first known membership lease would expire: not before two thirds of a TTL.
            let around = intervals(timing.ttl.saturating_sub(timing.renew_every), 2);
            // A second process with the same id waits for the membership lease, and claims it a little more often.
            let claims = if process.is_member() { 0 } else { 2 * observing };
            let within = renewed <= leases * renewing
                && renewals <= 100 * renewing
                && observed <= others * observing
                && observations <= 100 * observing
                && fleet_observations <= around + tail / (500 * MILLI * 1_000)
                && claimed <= claims
                && released == 0;
            if !within {
                return Err(format!(
                    "L7 FRUGAL: {} with {leases} leases of {others} asked {:?} of the store; allowed are {renewing} rounds of renewals, {observing} of looks, {around} looks around",
                    host.id, host.count
                ));
            }
        }
        Ok(())
    }
}
