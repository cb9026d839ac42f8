//! The event queue: everything that happens, in true time.

use std::hash::{DefaultHasher, Hash, Hasher};

use fastrand::Rng;
use tenure::machine::{Effect, EndReason, HOLD_BACK, Input, Phase, TermStart};
use tenure::store::Change;
use tenure::{Answer, Claim, Lease, Moment, Token};

use super::clock::{MILLI, SECOND, Time};
use super::config::{Judge, Plan};
use super::fact::{Fact, NodeIndex};
use super::faults::nanos;
use super::invariants::{self, Invariant};
use super::mutant::Mutant;
use super::node::{Node, Work};
use super::queue::Queue;
use super::store::{Call, Reply, SimStore};

/// What is in the queue.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    /// The node's timer, if it is still this one.
    Timer(NodeIndex, u64),
    /// A request reaches the store; its reply goes back unless `mute`.
    Arrive {
        node: NodeIndex,
        run: u32,
        call: Box<Call>,
        sent: Time,
        mute: bool,
    },
    /// Something reaches this run of the node.
    Deliver(NodeIndex, u32, Box<Reply>, Time),
    Tell(NodeIndex, Box<Input>),
    WorkEnds(NodeIndex, u32),
    Save(NodeIndex, u32),
    Restart(NodeIndex),
    Unspoil,
    Strike,
    Calm,
    Exercise,
}

/// What a run amounted to.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) steps: u64,
    pub(crate) terms: u64,
    pub(crate) faults: u64,
    /// A hash of everything the invariants were told.
    pub(crate) history: u64,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) now: Time,
    pub(crate) nodes: Vec<Node>,
    pub(crate) store: SimStore,
    pub(crate) store_down_until: Time,
    pub(crate) spoilt_until: Time,
    pub(crate) calm: bool,
    pub(crate) faults: u64,
    queue: Queue<Happening>,
    invariants: Vec<Box<dyn Invariant>>,
    mutant: Mutant,
    history: DefaultHasher,
    steps: u64,
    terms: u64,
    counter: u64,
    talking: bool,
    /// The origin that one of the mutants gives to every record.
    first: Token,
}

impl World {
    pub(crate) fn new(plan: Plan, mutant: Mutant) -> Self {
        let nodes = plan.nodes.iter().cloned().enumerate();
        World {
            rng: Rng::with_seed(!plan.seed),
            now: 0,
            nodes: nodes.map(|(index, plan)| Node::new(index, plan)).collect(),
            store: SimStore::new(plan.judge, plan.store_clock, mutant),
            store_down_until: 0,
            spoilt_until: 0,
            calm: false,
            faults: 0,
            queue: Queue::new(),
            invariants: invariants::all(),
            mutant,
            history: DefaultHasher::new(),
            steps: 0,
            terms: 0,
            counter: 0,
            talking: false,
            first: Token::new(1).expect("a token"),
            plan,
        }
    }

    /// Prints everything, for a look at one seed.
    pub(crate) fn talk(&mut self) {
        self.talking = true;
    }

    pub(crate) fn run(mut self) -> Result<Outcome, String> {
        for node in 0..self.nodes.len() {
            self.start(node);
        }
        self.at(self.plan.longest_ttl.as_secs() * SECOND, Happening::Strike);
        while let Some((time, happening)) = self.queue.pop() {
            if time > self.plan.end {
                break;
            }
            self.now = time;
            self.happens(happening)?;
        }
        self.now = self.plan.end;
        self.see(Fact::Over)?;
        let history = self.history.finish();
        Ok(Outcome { steps: self.steps, terms: self.terms, faults: self.faults, history })
    }

    pub(crate) fn at(&mut self, time: Time, happening: Happening) {
        self.queue.push(time.max(self.now), happening);
    }

    pub(crate) fn see(&mut self, fact: Fact) -> Result<(), String> {
        if self.talking {
            println!("{:>18} {fact:?}", self.now);
        }
        (self.now, format_args!("{fact:?}").to_string()).hash(&mut self.history);
        for invariant in &mut self.invariants {
            if let Err(what) = invariant.see(self.now, &fact) {
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
            self.see(Fact::Crashed { node })?;
            self.at(self.now + down_for, Happening::Restart(node));
        }
        Ok(())
    }

    pub(crate) fn tell(&mut self, node: NodeIndex, event: Input) {
        self.at(self.now, Happening::Tell(node, Box::new(event)));
    }

    fn happens(&mut self, happening: Happening) -> Result<(), String> {
        if let Some(node) = happening.process() {
            // A paused process does nothing; whatever was for it is there when it wakes up.
            let paused_until = self.nodes[node].paused_until;
            if self.now < paused_until {
                self.at(paused_until, happening);
                return Ok(());
            }
        }
        match happening {
            Happening::Timer(node, timer) if self.nodes[node].timer == timer => {
                self.step(node, Input::Woke)
            }
            Happening::Arrive { node, run, call, sent, mute } => {
                self.arrive(node, run, *call, sent, mute)
            }
            Happening::Deliver(node, run, reply, sent) if self.nodes[node].run == run => {
                self.deliver(node, *reply, sent)
            }
            Happening::Tell(node, event) => self.step(node, *event),
            Happening::WorkEnds(node, run) if self.nodes[node].run == run => self.work_ends(node),
            Happening::Save(node, run) if self.nodes[node].run == run => self.save(node),
            Happening::Restart(node) => {
                let machine = self.nodes[node].machine.as_ref();
                if machine.is_none_or(|machine| machine.phase() == Phase::Stopped) {
                    self.start(node);
                } else if self.nodes[node].stopping {
                    self.at(self.now + SECOND, Happening::Restart(node));
                }
                Ok(())
            }
            Happening::Unspoil if self.now >= self.spoilt_until => {
                self.store.spoil(false);
                Ok(())
            }
            Happening::Strike => self.strike(),
            Happening::Calm => self.calm_down(),
            Happening::Exercise => self.exercise(),
            _ => Ok(()), // For an earlier run of the process, or a timer that was set anew.
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

    fn send(&mut self, node: NodeIndex, call: Call) {
        let lost = self.now < self.nodes[node].requests_lost_until || self.one_in(500);
        let run = self.nodes[node].run;
        let sent = self.now;
        if lost {
            return;
        }
        if self.one_in(300) {
            // A repeat, with its reply thrown away.
            let at = self.now + self.delay(node) + self.rng.u64(0..3 * SECOND);
            let call = Box::new(call.clone());
            self.at(at, Happening::Arrive { node, run, call, sent, mute: true });
        }
        let at = self.now + self.delay(node);
        self.at(at, Happening::Arrive { node, run, call: Box::new(call), sent, mute: false });
    }

    fn one_in(&mut self, many: u32) -> bool {
        !self.calm && self.rng.u32(0..many) == 0
    }

    fn arrive(
        &mut self,
        node: NodeIndex,
        run: u32,
        call: Call,
        sent: Time,
        mute: bool,
    ) -> Result<(), String> {
        if self.now < self.store_down_until {
            return Ok(());
        }
        let local = self.nodes[node].plan.clock.at(self.now);
        let reply = self.store.serve(self.now, &call, &mut self.nodes[node].seen, local);
        for fact in std::mem::take(&mut self.store.facts) {
            self.see(fact)?;
        }
        for hint in std::mem::take(&mut self.store.hints) {
            self.spread(&hint);
        }
        if let Reply::Saved(value) = reply
            && value > 0
            && !mute
        {
            self.see(Fact::Saved { value })?;
        }
        let lost = mute || self.now < self.nodes[node].replies_lost_until || self.one_in(500);
        if !lost {
            let at = self.now + self.delay(node);
            self.at(at, Happening::Deliver(node, run, Box::new(reply), sent));
        }
        Ok(())
    }

    /// The watch: to everybody, a little later, and not to be relied on.
    fn spread(&mut self, hint: &Change) {
        for node in 0..self.nodes.len() {
            if self.one_in(20) || self.now < self.nodes[node].replies_lost_until {
                continue;
            }
            let at = self.now + self.delay(node);
            let run = self.nodes[node].run;
            let reply = Reply::Event(Input::Changed(hint.clone()));
            self.at(at, Happening::Deliver(node, run, Box::new(reply), self.now));
        }
    }

    fn deliver(&mut self, node: NodeIndex, reply: Reply, sent: Time) -> Result<(), String> {
        match reply {
            Reply::Saved(_) => Ok(()),
            Reply::Event(event) => {
                self.note_sight(node, &event);
                let event = self.lie(node, event);
                let reply_lag = self.now - sent;
                self.step_lagging(node, event, reply_lag)
            }
        }
    }

    /// What two of the mutants do to an answer.
    fn lie(&self, node: NodeIndex, event: Input) -> Input {
        let asked = self.nodes[node].asked.map(|(request, _)| request);
        match (self.mutant, event) {
            (Mutant::LateAnswers, Input::Renewed(request, answer)) => {
                Input::Renewed(asked.unwrap_or(request), answer)
            }
            // Nothing that would show that the store forgot, or that its clock ran ahead.
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

    /// What the machine will remember: an answer that comes too late is not looked at, so it is not remembered either.
    fn note_sight(&mut self, node: NodeIndex, event: &Input) {
        let this = &mut self.nodes[node];
        let (request, seen) = match event {
            Input::Acquired(request, Ok(Answer::Taken(lease)))
            | Input::Renewed(request, Ok(Answer::Taken(lease))) => (*request, Some(&**lease)),
            Input::Observed(request, Ok(Some(lease))) => (*request, Some(lease)),
            Input::Acquired(request, Ok(Answer::Held(_))) => (*request, None),
            _ => return,
        };
        let in_time = this.asked.is_some_and(|(asked, sent)| {
            asked == request && this.plan.clock.at(self.now) < sent + this.plan.timing.try_for()
        });
        this.knows |= in_time && seen.is_none_or(|lease| lease.token.is_some());
        match seen {
            _ if !in_time => {}
            // A grant uses the memory up.
            None => this.saw_origin = None,
            Some(lease) if lease.holder.is_some() => {
                this.saw_origin = lease.lineage.map(|lineage| lineage.origin);
                this.saw_token = lease.token;
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
        let mut actions = Vec::new();
        machine.step(local, event, &mut actions);
        self.steps += 1;
        for action in actions {
            self.act(node, action, lag)?;
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
            self.at(time, Happening::Timer(node, timer));
        }
    }

    fn act(&mut self, node: NodeIndex, action: Effect, lag: Time) -> Result<(), String> {
        if let Effect::Acquire(request, ..) | Effect::Renew(request, _) | Effect::Observe(request) =
            action
        {
            let local = self.nodes[node].plan.clock.at(self.now);
            self.nodes[node].asked = Some((request, local));
        }
        if matches!(
            action,
            Effect::Acquire(..) | Effect::Renew(..) | Effect::Release(..) | Effect::Observe(_)
        ) {
            let ttl = nanos(self.nodes[node].plan.timing.ttl);
            self.see(Fact::Called { node, ttl })?;
        }
        match action {
            Effect::Acquire(request, nonce, wait) => {
                let this = &self.nodes[node];
                let nonce =
                    if self.mutant == Mutant::NoncePerProcess { this.process_nonce } else { nonce };
                let name = self.store.name.clone();
                let mut claim = Claim::new(name, this.id.clone(), nonce, this.plan.timing.ttl);
                claim.wait = wait;
                self.send(node, Call::Acquire(request, claim));
                Ok(())
            }
            Effect::Renew(request, hold) => {
                self.see(Fact::SentRenew { hold: hold.clone() })?;
                let ttl = self.nodes[node].plan.timing.ttl;
                self.send(node, Call::Renew(request, hold, ttl));
                Ok(())
            }
            Effect::Release(request, release) => {
                self.see(Fact::SentRelease { node, hold: release.hold.clone() })?;
                let hold = release.hold.clone();
                self.send(node, Call::Release(request, release));
                if self.mutant == Mutant::RenewalAfterRelease {
                    return self.act(node, Effect::Renew(request + 1, hold), lag);
                }
                Ok(())
            }
            Effect::Observe(request) => {
                self.send(node, Call::Observe(request));
                Ok(())
            }
            Effect::Lead(lead) => self.lead(node, *lead, lag),
            Effect::Extend(deadline) => self.extend(node, deadline, lag),
            Effect::End(ending) => {
                let until = self.believed(node, ending.deadline, 0);
                let wanted = matches!(ending.why, EndReason::Asked | EndReason::Shutdown);
                self.see(Fact::Told { node, until, wanted })?;
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

    /// Until when, in true time, the node's guard answers "held".
    fn believed(&self, node: NodeIndex, deadline: Moment, lag: Time) -> Time {
        let until = self.nodes[node].plan.clock.when(deadline);
        match self.mutant {
            Mutant::DeadlineFromReply if until > 0 => until + lag,
            // Nobody compares with the clock: held until told otherwise.
            Mutant::CachedBool if lag > 0 => Time::MAX,
            _ => until,
        }
    }

    fn lead(&mut self, node: NodeIndex, lead: TermStart, lag: Time) -> Result<(), String> {
        self.terms += 1;
        let until = self.believed(node, lead.deadline, lag);
        let found = lead.checkpoint.as_ref().map_or(0, |checkpoint| {
            String::from_utf8_lossy(checkpoint.as_bytes()).parse().expect("a number")
        });
        self.counter = self.counter.max(found);
        self.see(Fact::Led { node, token: lead.hold.token, until })?;
        if !self.plan.loses_records() && lead.checkpoint.is_some() {
            self.see(Fact::Found { value: found })?;
        }
        self.believes(until, &lead.hold.token)?;
        self.nodes[node].work = Some(Work { hold: lead.hold, told: false, saves: 0 });
        let run = self.nodes[node].run;
        let first = self.now + self.rng.u64(MILLI..SECOND);
        self.at(first, Happening::Save(node, run));
        Ok(())
    }

    fn extend(&mut self, node: NodeIndex, deadline: Moment, lag: Time) -> Result<(), String> {
        let until = self.believed(node, deadline, lag);
        let Some(work) = &self.nodes[node].work else {
            return Ok(());
        };
        let token = work.hold.token;
        self.see(Fact::Extended { node, token, until })?;
        self.believes(until, &token)
    }

    fn believes(&mut self, until: Time, token: &Token) -> Result<(), String> {
        // A store that forgets has no expiry to compare with.
        if self.plan.loses_records() {
            return Ok(());
        }
        let expiry = self.store.expiry(self.now, *token);
        self.see(Fact::Believes { until, expiry })
    }

    /// It ends in its time, or a good while later: then the guard has long said "not held".
    fn stop_work(&mut self, node: NodeIndex) -> Result<(), String> {
        let stop_within = nanos(self.nodes[node].plan.timing.stop_within);
        let takes = match self.rng.u8(0..10) {
            _ if self.calm => self.rng.u64(0..20 * MILLI),
            0 => self.rng.u64(0..3 * nanos(self.plan.longest_ttl)),
            1..=4 => self.rng.u64(0..2 * MILLI),
            _ => self.rng.u64(0..stop_within),
        };
        let run = self.nodes[node].run;
        if let Some(work) = &mut self.nodes[node].work {
            work.told = true;
        }
        self.at(self.now + takes, Happening::WorkEnds(node, run));
        if self.mutant == Mutant::ReleaseBeforeStop {
            self.at(self.now, Happening::Tell(node, Box::new(Input::WorkEnded)));
        }
        Ok(())
    }

    fn work_ends(&mut self, node: NodeIndex) -> Result<(), String> {
        if self.nodes[node].work.take().is_none() {
            return Ok(());
        }
        self.see(Fact::WorkEnded { node })?;
        self.step(node, Input::WorkEnded)
    }

    /// The leader counts, and saves the count; saves overtake each other on the way.
    fn save(&mut self, node: NodeIndex) -> Result<(), String> {
        let calm = self.calm;
        let Some(work) = self.nodes[node].work.as_mut().filter(|work| !work.told) else {
            return Ok(());
        };
        work.saves += 1;
        self.counter += 1;
        let call = Call::Save(work.hold.clone(), work.saves, self.counter);
        self.send(node, call);
        let run = self.nodes[node].run;
        let pause = if calm { 10 * SECOND } else { 2 * SECOND };
        let next = self.now + self.rng.u64(MILLI..pause);
        self.at(next, Happening::Save(node, run));
        Ok(())
    }

    // ---- bounds ----

    /// L1: what is left of the lease, the drift, the timers' slack, a few round trips; observers notice a look later.
    pub(crate) fn crash_bound(&self) -> Time {
        let ttl = nanos(self.plan.longest_ttl);
        let ranks = 250 * MILLI;
        let slack = 60 * MILLI + ttl / 500 + ranks;
        match self.plan.judge {
            Judge::StoreClock => ttl + slack,
            Judge::Observation => 2 * ttl + 2 * slack,
        }
    }

    /// L2: the work's time to end, then 250 ms; ranks and a successor that is not there cost theirs.
    pub(crate) fn resign_bound(&self) -> Time {
        let ranks = 250 * MILLI;
        let held_back = nanos(HOLD_BACK);
        20 * MILLI + 250 * MILLI + ranks + held_back
    }
}

impl Happening {
    /// The process it happens in, if it is one that can be paused.
    fn process(&self) -> Option<NodeIndex> {
        match self {
            Happening::Timer(node, _)
            | Happening::Deliver(node, ..)
            | Happening::Tell(node, _)
            | Happening::WorkEnds(node, _)
            | Happening::Save(node, _) => Some(*node),
            _ => None,
        }
    }
}
