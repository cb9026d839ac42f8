//! What the world notes about terms and work: until when each candidate believes to lead, and when its work starts, stops and saves.

use super::*;

impl World {
    /// Until when, in true time, the node considers itself the leader.
    pub(super) fn believed(&self, node: NodeIndex, deadline: Moment, lag: Time) -> Time {
        let until = self.nodes[node].plan.clock.when(deadline);
        match self.mutant {
            Mutant::DeadlineFromReply if until > 0 => until + lag,
            // The clock is not compared: held until notified.
            Mutant::CachedBool if lag > 0 => Time::MAX,
            _ => until,
        }
    }

    pub(super) fn lead(
        &mut self,
        node: NodeIndex,
        lead: TermStart,
        lag: Time,
    ) -> Result<(), String> {
        self.terms += 1;
        let until = self.believed(node, lead.deadline, lag);
        let found = lead.checkpoint.as_ref().map_or(0, |checkpoint| {
            String::from_utf8_lossy(checkpoint.as_bytes()).parse().expect("a number")
        });
        self.counter = self.counter.max(found);
        self.record(Fact::Led { node, token: lead.hold.token, until })?;
        if !self.plan.loses_records() && lead.checkpoint.is_some() {
            self.record(Fact::Found { value: found })?;
        }
        self.believes(until, &lead.hold.token)?;
        self.nodes[node].work = Some(SimWork { hold: lead.hold, stop_requested: false, saves: 0 });
        let run = self.nodes[node].run;
        let first = self.now + self.rng.u64(MILLI..SECOND);
        self.at(first, SimEvent::Save(node, run));
        Ok(())
    }

    pub(super) fn extend(
        &mut self,
        node: NodeIndex,
        deadline: Moment,
        lag: Time,
    ) -> Result<(), String> {
        let until = self.believed(node, deadline, lag);
        let Some(work) = &self.nodes[node].work else {
            return Ok(());
        };
        let token = work.hold.token;
        self.record(Fact::Extended { node, token, until })?;
        self.believes(until, &token)
    }

    pub(super) fn believes(&mut self, until: Time, token: &Token) -> Result<(), String> {
        // A store that loses records has no expiry to compare with.
        if self.plan.loses_records() {
            return Ok(());
        }
        let expiry = self.store.expiry(self.now, *token);
        self.record(Fact::Believes { until, expiry })
    }

    /// The work ends within its time, or much later: then the node has long stopped considering itself the leader.
    pub(super) fn stop_work(&mut self, node: NodeIndex) -> Result<(), String> {
        let stop_within = nanos(self.nodes[node].plan.timing.stop_within);
        let takes = match self.rng.u8(0..10) {
            _ if self.calm => self.rng.u64(0..20 * MILLI),
            0 => self.rng.u64(0..3 * nanos(self.plan.longest_ttl)),
            1..=4 => self.rng.u64(0..2 * MILLI),
            _ => self.rng.u64(0..stop_within),
        };
        let run = self.nodes[node].run;
        if let Some(work) = &mut self.nodes[node].work {
            work.stop_requested = true;
        }
        self.at(self.now + takes, SimEvent::WorkEnds(node, run));
        if self.mutant == Mutant::ReleaseBeforeStop {
            self.at(self.now, SimEvent::Input(node, Box::new(Input::WorkEnded)));
        }
        Ok(())
    }

    pub(super) fn work_ends(&mut self, node: NodeIndex) -> Result<(), String> {
        if self.nodes[node].work.take().is_none() {
            return Ok(());
        }
        self.record(Fact::WorkEnded { node })?;
        self.step(node, Input::WorkEnded)
    }

    /// The leader increments a counter and saves it. Saves may overtake each other in flight.
    pub(super) fn save(&mut self, node: NodeIndex) -> Result<(), String> {
        let calm = self.calm;
        let Some(work) = self.nodes[node].work.as_mut().filter(|work| !work.stop_requested) else {
            return Ok(());
        };
        work.saves += 1;
        self.counter += 1;
        let call = SimCall::Save(work.hold.clone(), work.saves, self.counter);
        self.send(node, call);
        let run = self.nodes[node].run;
        let pause = if calm { 10 * SECOND } else { 2 * SECOND };
        let next = self.now + self.rng.u64(MILLI..pause);
        self.at(next, SimEvent::Save(node, run));
        Ok(())
    }
}
