//! The network between the members and the store: each message may be delayed, lost or repeated.

use tenure::Name;
use tenure::fleet::leases_prefix;
use tenure::store::Change;

use super::host::Count;
use super::invariants::number;
use super::store::Call;
use super::world::{SimEvent, World};
use tenure_rig::simulation::clock::{MILLI, SECOND, Time};

/// The timeout of an observation of the fleet.
const OBSERVE_TIMEOUT: Time = 5 * SECOND;

impl World {
    pub(super) fn count(&mut self, host: usize, call: &Call) {
        let Count {
            renewed,
            renewals,
            claimed,
            released,
            observed,
            observations,
            fleet_observations,
        } = &mut self.hosts[host].count;
        match call {
            Call::Renew(items) => {
                (*renewed, *renewals) = (*renewed + items.len() as u64, *renewals + 1)
            }
            Call::Acquire(items) => {
                *claimed += items.len() as u64;
                self.outcome.claims += items.len() as u64;
            }
            Call::Release(items) => *released += items.len() as u64,
            Call::Observe(items) => {
                (*observed, *observations) = (*observed + items.len() as u64, *observations + 1);
            }
            Call::Announce(..) => {}
            Call::ObserveFleet(_) => *fleet_observations += 1,
        }
    }

    pub(super) fn delay(&mut self, host: usize) -> Time {
        let usual = self.rng.u64(MILLI / 10..3 * MILLI);
        if self.now < self.hosts[host].slow_until {
            return usual + self.rng.u64(0..2 * self.config.ttl());
        }
        match self.rng.u16(0..1_000) {
            0..=4 if !self.calm => usual + self.rng.u64(0..self.config.ttl()),
            _ => usual,
        }
    }

    pub(super) fn one_in(&mut self, many: u32) -> bool {
        !self.calm && self.rng.u32(0..many) == 0
    }

    pub(super) fn send(&mut self, host: usize, call: Call) {
        let run = self.hosts[host].run;
        let lost = self.now < self.hosts[host].requests_lost_until || self.one_in(500);
        if lost {
            return self.lose(host, &call);
        }
        if self.one_in(300) && !matches!(call, Call::ObserveFleet(_)) {
            // A repeated request, whose reply is dropped.
            let at = self.now + self.delay(host) + self.rng.u64(0..3 * SECOND);
            self.at(at, SimEvent::Arrive { host, run, call: call.clone(), drop_reply: true });
        }
        let at = self.now + self.delay(host);
        self.at(at, SimEvent::Arrive { host, run, call, drop_reply: false });
    }

    /// A machine detects a missing answer itself; an observation of the fleet fails after its timeout.
    fn lose(&mut self, host: usize, call: &Call) {
        if matches!(call, Call::ObserveFleet(_)) {
            let at = self.now + OBSERVE_TIMEOUT;
            self.at(at, SimEvent::ObserveFails(host, self.hosts[host].run));
        }
    }

    pub(super) fn arrive(
        &mut self,
        host: usize,
        run: u32,
        call: &Call,
        drop_reply: bool,
    ) -> Result<(), String> {
        if self.now < self.store_down_until {
            self.lose(host, call);
            return Ok(());
        }
        let reply = self.store.serve(self.now, call);
        for (name, token) in std::mem::take(&mut self.store.released) {
            if let Some(shard) = self.shard_of(&name) {
                self.checker.released(shard, number(token));
            }
        }
        self.notify_watchers();
        if drop_reply {
            return Ok(());
        }
        if self.now < self.hosts[host].replies_lost_until || self.one_in(500) {
            self.lose(host, call);
            return Ok(());
        }
        let at = self.now + self.delay(host);
        self.at(at, SimEvent::Deliver(host, run, reply));
        Ok(())
    }

    fn shard_of(&self, name: &Name) -> Option<usize> {
        name.as_str().strip_prefix(&leases_prefix(&self.store.fleet))?[1..].parse().ok()
    }

    /// Delivers the watch hints to all members, with delays and losses.
    pub(crate) fn notify_watchers(&mut self) {
        let hints = std::mem::take(&mut self.store.hints);
        if hints.is_empty() {
            return;
        }
        let is_shard = |hint: &Change| match hint {
            Change::Granted { name, .. } | Change::Freed { name, .. } => {
                self.shard_of(name).is_some()
            }
            _ => true,
        };
        let (of_shards, of_members): (Vec<Change>, Vec<Change>) =
            hints.into_iter().partition(is_shard);
        for host in 0..self.hosts.len() {
            if self.hosts[host].process.is_none() || self.now < self.hosts[host].replies_lost_until
            {
                continue;
            }
            let run = self.hosts[host].run;
            let delivered: Vec<Change> =
                of_shards.iter().filter(|_| !self.one_in(20)).cloned().collect();
            if !delivered.is_empty() {
                if self.one_in(30) {
                    let at = self.now + self.delay(host) + self.rng.u64(0..SECOND);
                    self.at(at, SimEvent::Hints(host, run, delivered.clone()));
                }
                let at = self.now + self.delay(host);
                self.at(at, SimEvent::Hints(host, run, delivered));
            }
            if !of_members.is_empty() && !self.one_in(5) {
                self.nudge(host);
            }
        }
    }

    /// Members are notified of changed members and overrides at different times.
    pub(crate) fn nudge(&mut self, host: usize) {
        let late = if self.one_in(3) { self.rng.u64(0..SECOND) } else { 0 };
        let at = self.now + late + self.delay(host);
        self.at(at, SimEvent::Nudge(host, self.hosts[host].run));
    }
}
