//! Between the members and the store: what is late, lost or repeated, each by itself.

use tenure::Name;
use tenure::fleet::leases_prefix;
use tenure::store::Change;

use super::clock::{MILLI, SECOND, Time};
use super::host::Count;
use super::invariants::number;
use super::store::Call;
use super::world::{Happening, World};

/// A store gives up a look that has no answer.
const LOOK_LIMIT: Time = 5 * SECOND;

impl World {
    pub(super) fn count(&mut self, host: usize, call: &Call) {
        let Count { renewed, renewals, claimed, released, observed, observations, looks } =
            &mut self.hosts[host].count;
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
            Call::Look(_) => *looks += 1,
        }
    }

    pub(super) fn delay(&mut self, host: usize) -> Time {
        let usual = self.rng.u64(MILLI / 10..3 * MILLI);
        if self.now < self.hosts[host].slow_until {
            return usual + self.rng.u64(0..2 * self.plan.ttl());
        }
        match self.rng.u16(0..1_000) {
            0..=4 if !self.calm => usual + self.rng.u64(0..self.plan.ttl()),
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
        if self.one_in(300) && !matches!(call, Call::Look(_)) {
            // A repeat, with its reply thrown away.
            let at = self.now + self.delay(host) + self.rng.u64(0..3 * SECOND);
            self.at(at, Happening::Arrive { host, run, call: call.clone(), mute: true });
        }
        let at = self.now + self.delay(host);
        self.at(at, Happening::Arrive { host, run, call, mute: false });
    }

    /// Machines notice by themselves that no answer comes; a look fails.
    fn lose(&mut self, host: usize, call: &Call) {
        if matches!(call, Call::Look(_)) {
            let at = self.now + LOOK_LIMIT;
            self.at(at, Happening::LookFails(host, self.hosts[host].run));
        }
    }

    pub(super) fn arrive(
        &mut self,
        host: usize,
        run: u32,
        call: &Call,
        mute: bool,
    ) -> Result<(), String> {
        if self.now < self.store_down_until {
            self.lose(host, call);
            return Ok(());
        }
        let reply = self.store.serve(self.now, call);
        for (name, token) in std::mem::take(&mut self.store.released) {
            if let Some(shard) = self.shard_of(&name) {
                self.judge.released(shard, number(token));
            }
        }
        self.spread();
        if mute {
            return Ok(());
        }
        if self.now < self.hosts[host].replies_lost_until || self.one_in(500) {
            self.lose(host, call);
            return Ok(());
        }
        let at = self.now + self.delay(host);
        self.at(at, Happening::Deliver(host, run, reply));
        Ok(())
    }

    fn shard_of(&self, name: &Name) -> Option<usize> {
        name.as_str().strip_prefix(&leases_prefix(&self.store.fleet))?[1..].parse().ok()
    }

    /// The watch: to everybody, a little later, and not to be relied on.
    pub(crate) fn spread(&mut self) {
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
            let heard: Vec<Change> =
                of_shards.iter().filter(|_| !self.one_in(20)).cloned().collect();
            if !heard.is_empty() {
                if self.one_in(30) {
                    let at = self.now + self.delay(host) + self.rng.u64(0..SECOND);
                    self.at(at, Happening::Hints(host, run, heard.clone()));
                }
                let at = self.now + self.delay(host);
                self.at(at, Happening::Hints(host, run, heard));
            }
            if !of_members.is_empty() && !self.one_in(5) {
                self.nudge(host);
            }
        }
    }

    /// Members learn of each other, and of what people have said, at different times.
    pub(crate) fn nudge(&mut self, host: usize) {
        let late = if self.one_in(3) { self.rng.u64(0..SECOND) } else { 0 };
        let at = self.now + late + self.delay(host);
        self.at(at, Happening::Nudge(host, self.hosts[host].run));
    }
}
