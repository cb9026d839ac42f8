//! The faults, and the actions of operators.

use tenure::fleet::node;

use super::world::{SimEvent, World, shard};
use tenure_rig::simulation::clock::{SECOND, Time};

impl World {
    /// Injects one fault and schedules the next.
    pub(crate) fn inject_fault(&mut self) -> Result<(), String> {
        if self.now >= self.config.calm_from {
            return Ok(());
        }
        let host = self.rng.usize(0..self.hosts.len());
        let ttl = self.config.ttl();
        let some_time = self.rng.u64(1..ttl * 3);
        let until = self.now + some_time;
        let kind = self.rng.u8(0..22);
        self.trace(|| format!("strike {kind} on {} for {some_time} ns", self.hosts[host].id));
        match kind {
            0..=1 => self.hosts[host].paused_until = until,
            2 => {
                self.kill(host)?;
                // It starts again with the same id or a new one.
                if self.rng.bool() {
                    self.hosts[host].id = self.new_id();
                }
                self.at(until, SimEvent::Start(host));
            }
            3 => self.hosts[host].requests_lost_until = until,
            4 => self.hosts[host].replies_lost_until = until,
            5 => self.hosts[host].slow_until = until,
            6 => {
                self.hosts[host].requests_lost_until = until;
                self.hosts[host].replies_lost_until = until;
            }
            7..=8 => {
                self.at(self.now, SimEvent::Leave(host));
                self.at(until + 2 * ttl, SimEvent::Start(host));
            }
            9 => self.start_new_member(until),
            10 => self.start_same_id(until),
            11 => self.store_down_until = self.now + some_time / 2,
            12..=13 => self.lock_records(host, some_time * 2),
            14..=15 => self.change_lists(),
            16..=17 => self.pause_some(),
            18 => self.drain_some(),
            19 => self.hosts[host].busy_until = until,
            20 => {
                let at = self.rng.usize(0..self.config.shards);
                let name = self.name(at).clone();
                self.store.revoke(self.now, &name);
                self.notify_watchers();
            }
            // All processes are killed at once.
            _ => {
                for host in 0..self.hosts.len() {
                    if self.hosts[host].process.is_some() {
                        self.kill(host)?;
                        let at = self.now + self.rng.u64(0..2 * SECOND);
                        self.at(at, SimEvent::Start(host));
                    }
                }
            }
        }
        self.outcome.faults += 1;
        let next = self.now + self.rng.u64(1..ttl * 4);
        self.at(next, SimEvent::InjectFault);
        Ok(())
    }

    fn start_new_member(&mut self, until: Time) {
        let idle: Vec<usize> =
            (0..self.hosts.len()).filter(|host| self.hosts[*host].process.is_none()).collect();
        if !idle.is_empty() {
            let host = idle[self.rng.usize(0..idle.len())];
            self.hosts[host].id = self.new_id();
            self.start(host);
        } else {
            let host = self.rng.usize(0..self.hosts.len());
            self.hosts[host].paused_until = until;
        }
    }

    /// Starts a process on the last host with the id of another.
    fn start_same_id(&mut self, until: Time) {
        let (second, of) = (self.hosts.len() - 1, self.rng.usize(0..self.hosts.len() - 1));
        if self.hosts[second].process.is_none() {
            self.hosts[second].id = self.hosts[of].id.clone();
            self.start(second);
            if !self.config.same_id_stays {
                self.at(until + self.config.ttl(), SimEvent::Kill(second));
            }
        }
    }

    /// Locks some records: those of some shards, or that of a member.
    fn lock_records(&mut self, host: usize, some_time: Time) {
        let until = self.now + some_time;
        if self.rng.bool() {
            let name = node(&self.store.fleet, &self.hosts[host].id);
            return self.store.lock(name, until);
        }
        for _ in 0..self.rng.usize(1..=8) {
            let at = self.rng.usize(0..self.config.shards);
            let name = self.name(at).clone();
            self.store.lock(name, until);
        }
    }

    /// Adds and removes shards; the sources change at different times.
    fn change_lists(&mut self) {
        for _ in 0..self.rng.usize(1..=1 + self.config.shards / 8) {
            let at = self.rng.usize(0..2 * self.config.shards);
            if !self.listed.remove(&at) {
                self.listed.insert(at);
            }
        }
        self.publish(30 * SECOND);
    }

    pub(crate) fn publish(&mut self, within: Time) {
        self.edition += 1;
        for host in 0..self.hosts.len() {
            let at = self.now + self.rng.u64(0..within);
            let list = self.list_for(host);
            self.at(at, SimEvent::List(host, self.edition, list));
        }
    }

    fn pause_some(&mut self) {
        for _ in 0..self.rng.usize(1..=4) {
            let at = shard(self.rng.usize(0..2 * self.config.shards));
            if !self.store.overrides.paused.remove(&at) {
                self.store.overrides.paused.insert(at);
            }
        }
        self.nudge_all();
    }

    fn drain_some(&mut self) {
        let host = self.rng.usize(0..self.hosts.len());
        let id = self.hosts[host].id.clone();
        if !self.store.overrides.drained.remove(&id) {
            self.store.overrides.drained.insert(id);
        }
        self.nudge_all();
    }

    fn nudge_all(&mut self) {
        for host in 0..self.hosts.len() {
            self.nudge(host);
        }
    }
}
