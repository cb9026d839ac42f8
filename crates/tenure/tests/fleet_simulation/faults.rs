//! What goes wrong, and what people do meanwhile.

use tenure::fleet::node;

use super::clock::{SECOND, Time};
use super::world::{Happening, World, shard};

impl World {
    /// One fault, and when the next one comes.
    pub(crate) fn strike(&mut self) -> Result<(), String> {
        if self.now >= self.plan.calm_from {
            return Ok(());
        }
        let host = self.rng.usize(0..self.hosts.len());
        let ttl = self.plan.ttl();
        let some_time = self.rng.u64(1..ttl * 3);
        let until = self.now + some_time;
        let kind = self.rng.u8(0..22);
        self.say(|| format!("strike {kind} on {} for {some_time} ns", self.hosts[host].id));
        match kind {
            0..=1 => self.hosts[host].paused_until = until,
            2 => {
                self.kill(host)?;
                // It comes back as itself, or as somebody new.
                if self.rng.bool() {
                    self.hosts[host].id = self.new_id();
                }
                self.at(until, Happening::Start(host));
            }
            3 => self.hosts[host].requests_lost_until = until,
            4 => self.hosts[host].replies_lost_until = until,
            5 => self.hosts[host].slow_until = until,
            6 => {
                self.hosts[host].requests_lost_until = until;
                self.hosts[host].replies_lost_until = until;
            }
            7..=8 => {
                self.at(self.now, Happening::Leave(host));
                self.at(until + 2 * ttl, Happening::Start(host));
            }
            9 => self.start_somebody(until),
            10 => self.start_double(until),
            11 => self.store_down_until = self.now + some_time / 2,
            12..=13 => self.stick(host, some_time * 2),
            14..=15 => self.relist(),
            16..=17 => self.pause_some(),
            18 => self.drain_some(),
            19 => self.hosts[host].busy_until = until,
            20 => {
                let at = self.rng.usize(0..self.plan.shards);
                let name = self.name(at).clone();
                self.store.revoke(self.now, &name);
                self.spread();
            }
            // All at once.
            _ => {
                for host in 0..self.hosts.len() {
                    if self.hosts[host].process.is_some() {
                        self.kill(host)?;
                        let at = self.now + self.rng.u64(0..2 * SECOND);
                        self.at(at, Happening::Start(host));
                    }
                }
            }
        }
        self.outcome.faults += 1;
        let next = self.now + self.rng.u64(1..ttl * 4);
        self.at(next, Happening::Strike);
        Ok(())
    }

    fn start_somebody(&mut self, until: Time) {
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

    /// On the last host, with the id of another.
    fn start_double(&mut self, until: Time) {
        let (double, of) = (self.hosts.len() - 1, self.rng.usize(0..self.hosts.len() - 1));
        if self.hosts[double].process.is_none() {
            self.hosts[double].id = self.hosts[of].id.clone();
            self.start(double);
            if !self.plan.twins_stay {
                self.at(until + self.plan.ttl(), Happening::Kill(double));
            }
        }
    }

    /// Some records cannot be got at: those of some shards, or that of a member.
    fn stick(&mut self, host: usize, some_time: Time) {
        let until = self.now + some_time;
        if self.rng.bool() {
            let name = node(&self.store.fleet, &self.hosts[host].id);
            return self.store.stick(name, until);
        }
        for _ in 0..self.rng.usize(1..=8) {
            let at = self.rng.usize(0..self.plan.shards);
            let name = self.name(at).clone();
            self.store.stick(name, until);
        }
    }

    /// Shards come and go; each source says so in its own time.
    fn relist(&mut self) {
        for _ in 0..self.rng.usize(1..=1 + self.plan.shards / 8) {
            let at = self.rng.usize(0..2 * self.plan.shards);
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
            self.at(at, Happening::List(host, self.edition, list));
        }
    }

    fn pause_some(&mut self) {
        for _ in 0..self.rng.usize(1..=4) {
            let at = shard(self.rng.usize(0..2 * self.plan.shards));
            if !self.store.control.paused.remove(&at) {
                self.store.control.paused.insert(at);
            }
        }
        self.tell_all();
    }

    fn drain_some(&mut self) {
        let host = self.rng.usize(0..self.hosts.len());
        let id = self.hosts[host].id.clone();
        if !self.store.control.drained.remove(&id) {
            self.store.control.drained.insert(id);
        }
        self.tell_all();
    }

    fn tell_all(&mut self) {
        for host in 0..self.hosts.len() {
            self.nudge(host);
        }
    }
}
