//! The faults of the simulation, and the exercises in the calm phase after them.

use std::time::Duration;

use tenure::machine::{Input, Phase, Request};

use super::config::Judge;
use super::fact::{Fact, NodeIndex};
use super::world::{SimEvent, World};
use tenure_rig::simulation::clock::{SECOND, Time};

impl World {
    /// Injects one fault, and schedules the next.
    pub(crate) fn inject_fault(&mut self) -> Result<(), String> {
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
                self.send_input(node, Input::Requested(Request::Resign(next)));
            }
            9 => {
                self.send_input(node, Input::Health(false));
                self.at(until, SimEvent::Input(node, Box::new(Input::Health(true))));
            }
            10 => {
                self.send_input(node, Input::Requested(Request::Drain));
                self.at(until, SimEvent::Input(node, Box::new(Input::Requested(Request::Undrain))));
            }
            11 => self.store_down_until = self.now + some_time / 2,
            12 if !self.plan.forgetful => self.stop_cleanly(node, until),
            13 if !self.plan.forgetful => {
                // The garbage is removed, but not while its holder may still rely on the lease: that would be a flush.
                self.store.set_garbage(true);
                self.garbage_until = until.max(self.now + 4 * ttl);
                self.at(self.garbage_until, SimEvent::RemoveGarbage);
            }
            14 | 15 if self.plan.restarts_empty => self.store.restart_empty(self.now),
            14 if self.plan.forgetful && self.all_will_notice() => self.store.forget(),
            15 if self.plan.forgetful && self.all_have_observed() => {
                let by = Duration::from_nanos(self.rng.u64(1..ttl * 2));
                self.store.set_clock_forward(by);
            }
            16 => self.store.revoke(self.now),
            // Pauses the leader: the most valuable target.
            _ => {
                if let Some(leader) = self.leader() {
                    self.nodes[leader].paused_until = until;
                }
            }
        }
        self.faults += 1;
        let next = self.now + self.rng.u64(1..ttl * 5);
        let sim_event = if next < self.plan.calm_from { SimEvent::Fault } else { SimEvent::Calm };
        self.at(next.min(self.plan.calm_from), sim_event);
        Ok(())
    }

    /// Whether no candidate can be misled by a store that loses its records. A candidate that knows any term notices that the
    /// record begins again, and assumes that an unknown holder has the same TTL as itself.
    fn all_will_notice(&self) -> bool {
        (self.ttls_are_equal() && self.nodes.iter().all(|node| node.knows_a_term))
            || self.all_have_observed()
    }

    fn ttls_are_equal(&self) -> bool {
        let longest = self.plan.longest_ttl;
        self.plan.nodes.iter().all(|node| node.timing.ttl == longest)
    }

    /// Whether every candidate but the holder remembers a holder of the current record. If TTLs differ, it must be the current
    /// holder: a candidate does not know the TTL of another one.
    fn all_have_observed(&self) -> bool {
        let Some(lease) = self.store.lease(self.now) else {
            return false;
        };
        let origin = lease.lineage.map(|lineage| lineage.origin);
        let holder = lease.holder.map(|holder| holder.id);
        self.nodes.iter().filter(|node| Some(node.id.as_str()) != holder.as_deref()).all(|node| {
            let same_term = node.observed_token == lease.token;
            let same_record = node.observed_origin.is_some() && node.observed_origin == origin;
            same_record && (same_term || self.ttls_are_equal())
        })
    }

    fn stop_cleanly(&mut self, node: NodeIndex, until: Time) {
        self.nodes[node].stopping = true;
        self.send_input(node, Input::Stop);
        // Restarted, if it has stopped by then.
        self.at(until + 3 * SECOND, SimEvent::Restart(node));
    }

    pub(crate) fn leader(&self) -> Option<NodeIndex> {
        (0..self.nodes.len()).find(|&node| {
            let machine = self.nodes[node].machine.as_ref();
            machine.is_some_and(|machine| machine.phase() == Phase::Leading)
        })
    }

    /// Removes all faults. All candidates but at most one campaign.
    pub(crate) fn calm_down(&mut self) -> Result<(), String> {
        self.calm = true;
        self.store_down_until = 0;
        for node in 0..self.nodes.len() {
            self.nodes[node].heal();
            if self.nodes[node].machine.is_none() {
                self.start(node);
            }
        }
        // By then, all events for paused nodes have arrived.
        let ttl = nanos(self.plan.longest_ttl);
        let arrived = self.now + 4 * ttl;
        // Sometimes one candidate only observes; the others are enough.
        let has_observer = self.rng.u8(0..3) == 0;
        for node in 0..self.nodes.len() {
            let request = if has_observer && node == 0 { Request::Drain } else { Request::Undrain };
            self.at(arrived, SimEvent::Input(node, Box::new(Input::Health(true))));
            self.at(arrived, SimEvent::Input(node, Box::new(Input::Requested(request))));
            // A stop that a node received only when it resumed has ended that run too.
            self.at(arrived, SimEvent::Restart(node));
        }
        let settle = 8 * ttl + 10 * SECOND;
        self.at(self.now + settle, SimEvent::Exercise);
        Ok(())
    }

    /// In the calm phase: the leader dies or resigns, and the next one must lead in time.
    pub(crate) fn exercise(&mut self) -> Result<(), String> {
        self.record(Fact::Calm)?;
        let ttl = nanos(self.plan.longest_ttl);
        let Some(leader) = self.leader() else {
            return Err("L5: somebody was told to lead, and does not".to_owned());
        };
        if self.rng.bool() {
            let bound = self.crash_bound();
            self.record(Fact::LeaderDied { bound })?;
            self.prefer(leader)?;
            self.crash(leader, 3 * ttl)?;
        } else {
            let bound = self.resign_bound();
            let next = self.rng.bool().then(|| {
                let successor = (leader + 1) % self.nodes.len();
                self.nodes[successor].id.clone()
            });
            self.record(Fact::Resigned { bound })?;
            if next.is_none() {
                self.prefer(leader)?;
            }
            self.send_input(leader, Input::Requested(Request::Resign(next)));
        }
        let next = self.now + 6 * ttl + 2 * SECOND;
        if next + 4 * ttl < self.plan.end {
            self.at(next, SimEvent::Exercise);
        }
        Ok(())
    }

    /// Records which candidates have priority when `leader` is gone.
    fn prefer(&mut self, leader: NodeIndex) -> Result<(), String> {
        // If each candidate judges the expiry by observation, one may detect it a TTL before another.
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
        self.record(Fact::Preferred { nodes })
    }
}

pub(crate) fn nanos(duration: Duration) -> Time {
    u64::try_from(duration.as_nanos()).expect("short")
}
