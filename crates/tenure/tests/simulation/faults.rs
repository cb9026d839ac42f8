//! What goes wrong, and in the calm after it: what must go right.

use std::time::Duration;

use tenure::machine::{Input, Phase, Request};

use super::clock::{SECOND, Time};
use super::config::Judge;
use super::fact::{Fact, NodeIndex};
use super::world::{Happening, World};

impl World {
    /// One fault, and when the next one comes.
    pub(crate) fn strike(&mut self) -> Result<(), String> {
        let node = self.rng.usize(0..self.nodes.len());
        let ttl = nanos(self.plan.longest_ttl);
        let some_time = self.rng.u64(1..ttl * 3);
        let until = self.now + some_time;
        match self.rng.u8(0..17) {
            0..=2 => self.nodes[node].paused_until = until,
            3 if !self.plan.forgetful => self.crash(node, some_time)?,
            4 => self.nodes[node].requests_lost_until = until,
            5 => self.nodes[node].replies_lost_until = until,
            6 => self.nodes[node].slow_until = until,
            7 => {
                self.nodes[node].requests_lost_until = until;
                self.nodes[node].replies_lost_until = until;
            }
            8 => {
                let successor = self.rng.usize(0..self.nodes.len());
                let next = self.rng.bool().then(|| self.nodes[successor].id.clone());
                self.tell(node, Input::Asked(Request::Resign(next)));
            }
            9 => {
                self.tell(node, Input::Health(false));
                self.at(until, Happening::Tell(node, Box::new(Input::Health(true))));
            }
            10 => {
                self.tell(node, Input::Asked(Request::Drain));
                self.at(until, Happening::Tell(node, Box::new(Input::Asked(Request::Undrain))));
            }
            11 => self.store_down_until = self.now + some_time / 2,
            12 if !self.plan.forgetful => self.stop_cleanly(node, until),
            13 if !self.plan.forgetful => {
                // Somebody clears it away, but not while its holder may still count on it: that would be a flush.
                self.store.spoil(true);
                self.spoilt_until = until.max(self.now + 4 * ttl);
                self.at(self.spoilt_until, Happening::Unspoil);
            }
            14 | 15 if self.plan.restarts_empty => self.store.restart_empty(self.now),
            14 if self.plan.forgetful && self.all_will_notice() => self.store.forget(),
            15 if self.plan.forgetful && self.all_have_seen() => {
                let by = Duration::from_nanos(self.rng.u64(1..ttl * 2));
                self.store.set_clock_forward(by);
            }
            16 => self.store.revoke(self.now),
            // The leader is the one worth hitting.
            _ => {
                if let Some(leader) = self.leader() {
                    self.nodes[leader].paused_until = until;
                }
            }
        }
        self.faults += 1;
        let next = self.now + self.rng.u64(1..ttl * 5);
        let happening =
            if next < self.plan.calm_from { Happening::Strike } else { Happening::Calm };
        self.at(next.min(self.plan.calm_from), happening);
        Ok(())
    }

    /// Whether nobody can be misled by a store that forgets. Who knows of any term notices that the record begins anew, and
    /// takes whoever it does not know of for one with a lease as long as its own.
    fn all_will_notice(&self) -> bool {
        (self.ttls_are_alike() && self.nodes.iter().all(|node| node.knows)) || self.all_have_seen()
    }

    fn ttls_are_alike(&self) -> bool {
        let longest = self.plan.longest_ttl;
        self.plan.nodes.iter().all(|node| node.timing.ttl == longest)
    }

    /// Whether every candidate but the holder remembers a holder of the record as it is now; where TTLs differ, the
    /// holder of the moment: how long the lease of another lasts, it does not know.
    fn all_have_seen(&self) -> bool {
        let Some(lease) = self.store.lease(self.now) else {
            return false;
        };
        let origin = lease.lineage.map(|lineage| lineage.origin);
        let holder = lease.holder.map(|holder| holder.id);
        self.nodes.iter().filter(|node| Some(node.id.as_str()) != holder.as_deref()).all(|node| {
            let same_term = node.saw_token == lease.token;
            let same_record = node.saw_origin.is_some() && node.saw_origin == origin;
            same_record && (same_term || self.ttls_are_alike())
        })
    }

    fn stop_cleanly(&mut self, node: NodeIndex, until: Time) {
        self.nodes[node].stopping = true;
        self.tell(node, Input::Stop);
        // Started again, if it has stopped by then.
        self.at(until + 3 * SECOND, Happening::Restart(node));
    }

    pub(crate) fn leader(&self) -> Option<NodeIndex> {
        (0..self.nodes.len()).find(|&node| {
            let machine = self.nodes[node].machine.as_ref();
            machine.is_some_and(|machine| machine.phase() == Phase::Leading)
        })
    }

    /// Everything is mended, and all but one at the most are willing.
    pub(crate) fn calm_down(&mut self) -> Result<(), String> {
        self.calm = true;
        self.store_down_until = 0;
        for node in 0..self.nodes.len() {
            self.nodes[node].heal();
            if self.nodes[node].machine.is_none() {
                self.start(node);
            }
        }
        // What was on its way to somebody who was paused has arrived by then.
        let ttl = nanos(self.plan.longest_ttl);
        let arrived = self.now + 4 * ttl;
        // Sometimes one only looks on; the others are enough.
        let onlooker = self.rng.u8(0..3) == 0;
        for node in 0..self.nodes.len() {
            let ask = if onlooker && node == 0 { Request::Drain } else { Request::Undrain };
            self.at(arrived, Happening::Tell(node, Box::new(Input::Health(true))));
            self.at(arrived, Happening::Tell(node, Box::new(Input::Asked(ask))));
            // An order to stop that came to it only when it ran again has ended that run too.
            self.at(arrived, Happening::Restart(node));
        }
        let settle = 8 * ttl + 10 * SECOND;
        self.at(self.now + settle, Happening::Exercise);
        Ok(())
    }

    /// In the calm: the leader dies, or resigns, and the next one has to come in time.
    pub(crate) fn exercise(&mut self) -> Result<(), String> {
        self.see(Fact::Calm)?;
        let ttl = nanos(self.plan.longest_ttl);
        let Some(leader) = self.leader() else {
            return Err("L5: somebody was told to lead, and does not".to_owned());
        };
        if self.rng.bool() {
            let bound = self.crash_bound();
            self.see(Fact::LeaderDied { bound })?;
            self.prefer(leader)?;
            self.crash(leader, 3 * ttl)?;
        } else {
            let bound = self.resign_bound();
            let next = self.rng.bool().then(|| {
                let successor = (leader + 1) % self.nodes.len();
                self.nodes[successor].id.clone()
            });
            self.see(Fact::Resigned { bound })?;
            if next.is_none() {
                self.prefer(leader)?;
            }
            self.tell(leader, Input::Asked(Request::Resign(next)));
        }
        let next = self.now + 6 * ttl + 2 * SECOND;
        if next + 4 * ttl < self.plan.end {
            self.at(next, Happening::Exercise);
        }
        Ok(())
    }

    /// Tells the invariants which candidates come before the others when `leader` is gone.
    fn prefer(&mut self, leader: NodeIndex) -> Result<(), String> {
        // Where each candidate observes the expiry for itself, one may know of it a TTL before another.
        if self.plan.judge == Judge::Observation {
            return Ok(());
        }
        let campaigns = |node: &NodeIndex| {
            let machine = self.nodes[*node].machine.as_ref().filter(|_| *node != leader);
            machine
                .is_some_and(|machine| machine.phase() == Phase::Waiting && !machine.is_drained())
        };
        let rank = |node: NodeIndex| self.nodes[node].plan.rank;
        let mut nodes: Vec<NodeIndex> = (0..self.nodes.len()).filter(campaigns).collect();
        let lowest = nodes.iter().map(|node| rank(*node)).min();
        nodes.retain(|node| Some(rank(*node)) == lowest);
        self.see(Fact::Preferred { nodes })
    }
}

pub(crate) fn nanos(duration: Duration) -> Time {
    u64::try_from(duration.as_nanos()).expect("short")
}
