//! The simulated world: processes all events from one queue, in true time.

mod leadership;

use std::hash::{DefaultHasher, Hash, Hasher};

use fastrand::Rng;
use tenure::machine::{Effect, EndReason, HOLD_BACK, Input, Phase, TermStart};
use tenure::store::Change;
use tenure::{Answer, Claim, Lease, Moment, Token};

use super::config::{Judge, Plan};
use super::fact::{Fact, NodeIndex};
use super::faults::nanos;
use super::invariants::{self, Invariant};
use super::mutant::Mutant;
use super::node::{SimNode, SimWork};
use super::store::{SimCall, SimReply, SimStore};
use tenure_rig::simulation::clock::{MILLI, SECOND, Time};
use tenure_rig::simulation::queue::Queue;

/// An event in the queue.
#[derive(Clone, Debug)]
pub(crate) enum SimEvent {
    /// The node's timer, if it is still this one.
    Timer(NodeIndex, u64),
    /// A request reaches the store. The reply is sent unless `discard_reply`.
    Arrive {
        node: NodeIndex,
        run: u32,
        call: Box<SimCall>,
        sent: Time,
        discard_reply: bool,
    },
    /// A reply or a notification reaches this run of the node.
    Deliver(NodeIndex, u32, Box<SimReply>, Time),
    Input(NodeIndex, Box<Input>),
    WorkEnds(NodeIndex, u32),
    Save(NodeIndex, u32),
    Restart(NodeIndex),
    RemoveGarbage,
    Fault,
    Calm,
    Exercise,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct RunOutcome {
    pub(crate) steps: u64,
    pub(crate) terms: u64,
    pub(crate) faults: u64,
    /// A hash of all facts that were recorded.
    pub(crate) history: u64,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) now: Time,
    pub(crate) nodes: Vec<SimNode>,
    pub(crate) store: SimStore,
    pub(crate) store_down_until: Time,
    pub(crate) garbage_until: Time,
    pub(crate) calm: bool,
    pub(crate) faults: u64,
    queue: Queue<SimEvent>,
    invariants: Vec<Box<dyn Invariant>>,
    mutant: Mutant,
    history: DefaultHasher,
    steps: u64,
    terms: u64,
    counter: u64,
    trace: bool,
    /// The origin that one of the mutants writes into every record.
    first: Token,
}

impl World {
    pub(crate) fn new(plan: Plan, mutant: Mutant) -> Self {
        let nodes = plan.nodes.iter().cloned().enumerate();
        World {
            rng: Rng::with_seed(!plan.seed),
            now: 0,
            nodes: nodes.map(|(index, plan)| SimNode::new(index, plan)).collect(),
            store: SimStore::new(plan.judge, plan.store_clock, mutant),
            store_down_until: 0,
            garbage_until: 0,
            calm: false,
            faults: 0,
            queue: Queue::new(),
            invariants: invariants::all(),
            mutant,
            history: DefaultHasher::new(),
            steps: 0,
            terms: 0,
            counter: 0,
            trace: false,
            first: Token::new(1).expect("a token"),
            plan,
        }
    }

    /// Prints every fact, to examine one seed.
    pub(crate) fn enable_trace(&mut self) {
        self.trace = true;
    }

    pub(crate) fn run(mut self) -> Result<RunOutcome, String> {
        for node in 0..self.nodes.len() {
            self.start(node);
        }
        self.at(self.plan.longest_ttl.as_secs() * SECOND, SimEvent::Fault);
        while let Some((time, sim_event)) = self.queue.pop() {
            if time > self.plan.end {
                break;
            }
            self.now = time;
            self.handle(sim_event)?;
        }
        self.now = self.plan.end;
        self.record(Fact::Over)?;
        let history = self.history.finish();
        Ok(RunOutcome { steps: self.steps, terms: self.terms, faults: self.faults, history })
    }

    pub(crate) fn at(&mut self, time: Time, sim_event: SimEvent) {
        self.queue.push(time.max(self.now), sim_event);
    }

    pub(crate) fn record(&mut self, fact: Fact) -> Result<(), String> {
        if self.trace {
            println!("{:>18} {fact:?}", self.now);
        }
        (self.now, format_args!("{fact:?}").to_string()).hash(&mut self.history);
        for invariant in &mut self.invariants {
            if let Err(what) = invariant.check(self.now, &fact) {
                return Err(format!("{} at {} ns: {what}", invariant.name(), self.now));
            }
        }
        Ok(())
    }

    pub(crate) fn start(&mut self, node: NodeIndex) {
        let seed = self.rng.u128(..);
        let name = self.store.name.clone();
        self.nodes[node].start(&name, self.now, seed);
        self.set_timer(node);
    }

    pub(crate) fn crash(&mut self, node: NodeIndex, down_for: Time) -> Result<(), String> {
        if self.nodes[node].machine.take().is_some() {
            self.nodes[node].work = None;
            self.record(Fact::Crashed { node })?;
            self.at(self.now + down_for, SimEvent::Restart(node));
        }
        Ok(())
    }

    pub(crate) fn send_input(&mut self, node: NodeIndex, event: Input) {
        self.at(self.now, SimEvent::Input(node, Box::new(event)));
    }

    fn handle(&mut self, sim_event: SimEvent) -> Result<(), String> {
        if let Some(node) = sim_event.process() {
            // A paused process does nothing. It processes its events when it resumes.
            let paused_until = self.nodes[node].paused_until;
            if self.now < paused_until {
                self.at(paused_until, sim_event);
                return Ok(());
            }
        }
        match sim_event {
            SimEvent::Timer(node, timer) if self.nodes[node].timer == timer => {
                self.step(node, Input::Woke)
            }
            SimEvent::Arrive { node, run, call, sent, discard_reply } => {
                self.arrive(node, run, *call, sent, discard_reply)
            }
            SimEvent::Deliver(node, run, reply, sent) if self.nodes[node].run == run => {
                self.deliver(node, *reply, sent)
            }
            SimEvent::Input(node, event) => self.step(node, *event),
            SimEvent::WorkEnds(node, run) if self.nodes[node].run == run => self.work_ends(node),
            SimEvent::Save(node, run) if self.nodes[node].run == run => self.save(node),
            SimEvent::Restart(node) => {
                let machine = self.nodes[node].machine.as_ref();
                if machine.is_none_or(|machine| machine.phase() == Phase::Stopped) {
                    self.start(node);
                } else if self.nodes[node].stopping {
                    self.at(self.now + SECOND, SimEvent::Restart(node));
                }
                Ok(())
            }
            SimEvent::RemoveGarbage if self.now >= self.garbage_until => {
                self.store.set_garbage(false);
                Ok(())
            }
            SimEvent::Fault => self.inject_fault(),
            SimEvent::Calm => self.calm_down(),
            SimEvent::Exercise => self.exercise(),
            _ => Ok(()), // For an earlier run of the process, or a timer that was replaced.
        }
    }

    // ---- the network ----

    fn delay(&mut self, node: NodeIndex) -> Time {
        let usual = self.rng.u64(MILLI / 10..3 * MILLI);
        if self.now < self.nodes[node].slow_until {
            return usual + self.rng.u64(0..2 * nanos(self.plan.longest_ttl));
        }
        match self.rng.u16(0..1_000) {
            0..=4 if !self.calm => usual + self.rng.u64(0..nanos(self.plan.longest_ttl)),
            _ => usual,
        }
    }

    fn send(&mut self, node: NodeIndex, call: SimCall) {
        let lost = self.now < self.nodes[node].requests_lost_until || self.one_in(500);
        let run = self.nodes[node].run;
        let sent = self.now;
        if lost {
            return;
        }
        if self.one_in(300) {
            // A duplicate whose reply is discarded.
            let at = self.now + self.delay(node) + self.rng.u64(0..3 * SECOND);
            let call = Box::new(call.clone());
            self.at(at, SimEvent::Arrive { node, run, call, sent, discard_reply: true });
        }
        let at = self.now + self.delay(node);
        self.at(
            at,
            SimEvent::Arrive { node, run, call: Box::new(call), sent, discard_reply: false },
        );
    }

    fn one_in(&mut self, many: u32) -> bool {
        !self.calm && self.rng.u32(0..many) == 0
    }

    fn arrive(
        &mut self,
        node: NodeIndex,
        run: u32,
        call: SimCall,
        sent: Time,
        discard_reply: bool,
    ) -> Result<(), String> {
        if self.now < self.store_down_until {
            return Ok(());
        }
        let local = self.nodes[node].plan.clock.at(self.now);
        let reply = self.store.serve(self.now, &call, &mut self.nodes[node].observations, local);
        for fact in std::mem::take(&mut self.store.facts) {
            self.record(fact)?;
        }
        for hint in std::mem::take(&mut self.store.hints) {
            self.notify_watchers(&hint);
        }
        if let SimReply::Saved(value) = reply
            && value > 0
            && !discard_reply
        {
            self.record(Fact::Saved { value })?;
        }
        let lost =
            discard_reply || self.now < self.nodes[node].replies_lost_until || self.one_in(500);
        if !lost {
            let at = self.now + self.delay(node);
            self.at(at, SimEvent::Deliver(node, run, Box::new(reply), sent));
        }
        Ok(())
    }

    /// Sends a watch notification to every node, with a delay. Some are lost.
    fn notify_watchers(&mut self, hint: &Change) {
        for node in 0..self.nodes.len() {
            if self.one_in(20) || self.now < self.nodes[node].replies_lost_until {
                continue;
            }
            let at = self.now + self.delay(node);
            let run = self.nodes[node].run;
            let reply = SimReply::Event(Input::Changed(hint.clone()));
            self.at(at, SimEvent::Deliver(node, run, Box::new(reply), self.now));
        }
    }

    fn deliver(&mut self, node: NodeIndex, reply: SimReply, sent: Time) -> Result<(), String> {
        match reply {
            SimReply::Saved(_) => Ok(()),
            SimReply::Event(event) => {
                self.note_observation(node, &event);
                let event = self.mutate_answer(node, event);
                let reply_lag = self.now - sent;
                self.step_lagging(node, event, reply_lag)
            }
        }
    }

    /// Changes an answer as two of the mutants require.
    fn mutate_answer(&self, node: NodeIndex, event: Input) -> Input {
        let last_request = self.nodes[node].last_request.map(|(request, _)| request);
        match (self.mutant, event) {
            (Mutant::LateAnswers, Input::Renewed(request, answer)) => {
                Input::Renewed(last_request.unwrap_or(request), answer)
            }
            // Removes everything that shows that the store lost records, or that its clock ran ahead.
            (Mutant::NoMemory, Input::Acquired(request, Ok(Answer::Taken(mut lease)))) => {
                self.hide_origin(&mut lease);
                Input::Acquired(request, Ok(Answer::Taken(lease)))
            }
            (Mutant::NoMemory, Input::Observed(request, Ok(Some(mut lease)))) => {
                self.hide_origin(&mut lease);
                Input::Observed(request, Ok(Some(lease)))
            }
            (Mutant::NoMemory, Input::Acquired(request, Ok(Answer::Held(mut grant)))) => {
                grant.store_time = None;
                grant.lineage.origin = self.first;
                Input::Acquired(request, Ok(Answer::Held(grant)))
            }
            (_, event) => event,
        }
    }

    fn hide_origin(&self, lease: &mut Lease) {
        lease.store_time = None;
        if let Some(lineage) = &mut lease.lineage {
            lineage.origin = self.first;
        }
    }

    /// Notes what the machine will remember: it ignores late answers, so it does not remember them either.
    fn note_observation(&mut self, node: NodeIndex, event: &Input) {
        let this = &mut self.nodes[node];
        let (request, observed) = match event {
            Input::Acquired(request, Ok(Answer::Taken(lease)))
            | Input::Renewed(request, Ok(Answer::Taken(lease))) => (*request, Some(&**lease)),
            Input::Observed(request, Ok(Some(lease))) => (*request, Some(lease)),
            Input::Acquired(request, Ok(Answer::Held(_))) => (*request, None),
            _ => return,
        };
        let in_time = this.last_request.is_some_and(|(last_request, sent)| {
            last_request == request
                && this.plan.clock.at(self.now) < sent + this.plan.timing.try_for()
        });
        this.knows_a_term |= in_time && observed.is_none_or(|lease| lease.token.is_some());
        match observed {
            _ if !in_time => {}
            // A grant clears the memory.
            None => this.observed_origin = None,
            Some(lease) if lease.holder.is_some() => {
                this.observed_origin = lease.lineage.map(|lineage| lineage.origin);
                this.observed_token = lease.token;
            }
            Some(_) => {}
        }
    }

    // ---- a process ----

    fn step(&mut self, node: NodeIndex, event: Input) -> Result<(), String> {
        self.step_lagging(node, event, 0)
    }

    fn step_lagging(&mut self, node: NodeIndex, event: Input, lag: Time) -> Result<(), String> {
        let local = self.nodes[node].plan.clock.at(self.now);
        let Some(machine) = self.nodes[node].machine.as_mut() else {
            return Ok(());
        };
        let mut effects = Vec::new();
        machine.step(local, event, &mut effects);
        self.steps += 1;
        for effect in effects {
            self.act(node, effect, lag)?;
        }
        self.set_timer(node);
        Ok(())
    }

    fn set_timer(&mut self, node: NodeIndex) {
        let timer = self.queue.stamp();
        let this = &mut self.nodes[node];
        this.timer = timer;
        let wake_at = this.machine.as_ref().and_then(|machine| machine.wake_at());
        if let Some(moment) = wake_at {
            let time = self.nodes[node].plan.clock.when(moment);
            self.at(time, SimEvent::Timer(node, timer));
        }
    }

    fn act(&mut self, node: NodeIndex, effect: Effect, lag: Time) -> Result<(), String> {
        if let Effect::Acquire(request, ..) | Effect::Renew(request, _) | Effect::Observe(request) =
            effect
        {
            let local = self.nodes[node].plan.clock.at(self.now);
            self.nodes[node].last_request = Some((request, local));
        }
        if matches!(
            effect,
            Effect::Acquire(..) | Effect::Renew(..) | Effect::Release(..) | Effect::Observe(_)
        ) {
            let ttl = nanos(self.nodes[node].plan.timing.ttl);
            self.record(Fact::Called { node, ttl })?;
        }
        match effect {
            Effect::Acquire(request, nonce, wait) => {
                let this = &self.nodes[node];
                let nonce =
                    if self.mutant == Mutant::NoncePerProcess { this.process_nonce } else { nonce };
                let name = self.store.name.clone();
                let mut claim = Claim::new(name, this.id.clone(), nonce, this.plan.timing.ttl);
                claim.wait = wait;
                self.send(node, SimCall::Acquire(request, claim));
                Ok(())
            }
            Effect::Renew(request, hold) => {
                self.record(Fact::SentRenew { hold: hold.clone() })?;
                let ttl = self.nodes[node].plan.timing.ttl;
                self.send(node, SimCall::Renew(request, hold, ttl));
                Ok(())
            }
            Effect::Release(request, release) => {
                self.record(Fact::SentRelease { node, hold: release.hold.clone() })?;
                let hold = release.hold.clone();
                self.send(node, SimCall::Release(request, release));
                if self.mutant == Mutant::RenewalAfterRelease {
                    return self.act(node, Effect::Renew(request + 1, hold), lag);
                }
                Ok(())
            }
            Effect::Observe(request) => {
                self.send(node, SimCall::Observe(request));
                Ok(())
            }
            Effect::Lead(lead) => self.lead(node, *lead, lag),
            Effect::Extend(deadline) => self.extend(node, deadline, lag),
            Effect::End(ending) => {
                let until = self.believed(node, ending.deadline, 0);
                let wanted = matches!(ending.reason, EndReason::Asked | EndReason::Shutdown);
                self.record(Fact::StopRequested { node, until, wanted })?;
                self.stop_work(node)
            }
            Effect::Released(_)
            | Effect::Starting(..)
            | Effect::HolderChanged(..)
            | Effect::Unreachable(_)
            | Effect::Back
            | Effect::SameId
            | Effect::Warn(_) => Ok(()),
        }
    }

    // ---- the work ----

    // ---- bounds ----

    /// L1: the rest of the lease, the drift, the slack of timers, a few round trips. Candidates that judge by observation
    /// notice the expiry one poll later.
    pub(crate) fn crash_bound(&self) -> Time {
        let ttl = nanos(self.plan.longest_ttl);
        let ranks = 250 * MILLI;
        let slack = 60 * MILLI + ttl / 500 + ranks;
        match self.plan.judge {
            Judge::StoreClock => ttl + slack,
            Judge::Observation => 2 * ttl + 2 * slack,
        }
    }

    /// L2: the time of the work to end, then 250 ms. Ranks and an absent successor add their delays.
    pub(crate) fn resign_bound(&self) -> Time {
        let ranks = 250 * MILLI;
        let held_back = nanos(HOLD_BACK);
        20 * MILLI + 250 * MILLI + ranks + held_back
    }
}

impl SimEvent {
    /// The process that handles the event, if it can be paused.
    fn process(&self) -> Option<NodeIndex> {
        match self {
            SimEvent::Timer(node, _)
            | SimEvent::Deliver(node, ..)
            | SimEvent::Input(node, _)
            | SimEvent::WorkEnds(node, _)
            | SimEvent::Save(node, _) => Some(*node),
            _ => None,
        }
    }
}
