//! The simulated world: the event queue in true time, and the handlers of its events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fastrand::Rng;
use tenure::fleet::{Shard, ShardNumber, fleet_name};
use tenure::store::Change;
use tenure::{CandidateId, Name, Token};

use super::config::{Script, SimConfig};
use super::host::Host;
use super::invariants::{Fact, InvariantChecker, number};
use super::member::{CoordinatorInput, DriverInput, MemberEffect, Process, index};
use super::mutant::Mutant;
use super::store::{Call, Reply, SimStore};
use tenure_rig::simulation::clock::{MILLI, SECOND, Time};
use tenure_rig::simulation::queue::Queue;

/// The interval between reads of a source.
const REREAD_INTERVAL: Time = 10 * SECOND;

/// The limit of events at one instant. More means that a process requests to be woken endlessly.
const MAX_EVENTS_AT_ONCE: u32 = 20_000;

/// An event in the queue. An event for a process names the run of its host, so that events for an earlier run are dropped.
pub(crate) enum SimEvent {
    DriverWakes(usize, u64),
    CoordinatorWakes(usize, u64),
    RunCommands(usize, u32),
    ReadInputs(usize, u32),
    Arrive {
        host: usize,
        run: u32,
        call: Call,
        drop_reply: bool,
    },
    Deliver(usize, u32, Reply),
    ObserveFails(usize, u32),
    Hints(usize, u32, Vec<Change>),
    Nudge(usize, u32),
    Read {
        host: usize,
        run: u32,
        by_hint: bool,
    },
    WorkEnds(usize, u32, ShardNumber, Token),
    /// The source of a host has a new list, with this version.
    List(usize, u64, Arc<Vec<Shard>>),
    Start(usize),
    Leave(usize),
    Kill(usize),
    InjectFault,
    Calm,
    Settled,
    CheckSettled,
    /// Check that every shard that a member lists has an owner, or had one within the limit.
    CheckOwners,
    SameLists,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) steps: u64,
    pub(crate) terms: u64,
    pub(crate) faults: u64,
    pub(crate) handovers: u64,
    pub(crate) hung: u64,
    pub(crate) claims: u64,
    /// A hash of all facts that the checker has recorded.
    pub(crate) history: u64,
}

pub(crate) struct World {
    pub(crate) config: SimConfig,
    pub(crate) rng: Rng,
    pub(crate) now: Time,
    pub(crate) hosts: Vec<Host>,
    pub(crate) store: SimStore,
    pub(crate) store_down_until: Time,
    pub(crate) calm: bool,
    pub(crate) outcome: Outcome,
    /// The shards that the sources list, or will list soon.
    pub(crate) listed: BTreeSet<usize>,
    pub(crate) edition: u64,
    /// The number of the last new id: ids are never reused.
    pub(crate) ids: usize,
    /// Terms that began while counting: after the world has settled, or after the change that its script is about.
    pub(crate) late_terms: u64,
    pub(crate) counting: bool,
    /// How often the settled world was checked, and how often each shard had no owner then.
    pub(crate) settled_checks: u64,
    pub(crate) unowned: BTreeMap<usize, u64>,
    /// Since when shards that a running member lists have no owner.
    pub(crate) unowned_since: BTreeMap<usize, Time>,
    names: Vec<Name>,
    queue: Queue<SimEvent>,
    pub(crate) checker: InvariantChecker,
    mutant: Mutant,
    traced: bool,
}

impl World {
    pub(crate) fn new(config: SimConfig, mutant: Mutant) -> Self {
        let fleet = fleet_name("fleet").expect("a name");
        // Twice as many as at the start, because shards are added later.
        let all = 2 * config.shards;
        let names = (0..all).map(|at| shard(at).lease(&fleet)).collect();
        let hosts = config.hosts.iter().enumerate().map(|(at, clock)| Host::new(at, *clock));
        World {
            rng: Rng::with_seed(!config.seed),
            now: 0,
            hosts: hosts.collect(),
            store: SimStore::new(fleet, config.store_clock, config.timing.ttl),
            store_down_until: 0,
            calm: config.script != Script::Chaos,
            outcome: Outcome::default(),
            listed: (0..config.shards).collect(),
            edition: 1,
            ids: config.hosts.len(),
            late_terms: 0,
            counting: false,
            settled_checks: 0,
            unowned: BTreeMap::new(),
            unowned_since: BTreeMap::new(),
            names,
            queue: Queue::new(),
            checker: InvariantChecker::new(all, config.ttl()),
            mutant,
            traced: false,
            config,
        }
    }

    /// Prints every event, to debug one seed.
    pub(crate) fn enable_trace(&mut self) {
        self.traced = true;
    }

    pub(crate) fn trace(&self, what: impl FnOnce() -> String) {
        if self.traced {
            println!("{:>12}.{:06} {}", self.now / SECOND, self.now % SECOND / 1_000, what());
        }
    }

    pub(crate) fn run(mut self) -> Result<Outcome, String> {
        for host in 0..self.hosts.len() {
            if self.config.lists_differ {
                let share = self.rng.f64() / 2.0;
                let hidden = (0..2 * self.config.shards).filter(|_| self.rng.f64() < share);
                self.hosts[host].hidden_shards = hidden.collect();
            }
            self.hosts[host].list = self.list_for(host);
        }
        for host in 0..self.config.members {
            let at = self.rng.u64(0..2 * SECOND);
            self.at(at, SimEvent::Start(host));
        }
        if self.config.script == Script::Chaos {
            self.at(self.config.ttl(), SimEvent::InjectFault);
        }
        self.at(self.config.calm_from, SimEvent::Calm);
        self.at(self.config.settled_at, SimEvent::Settled);
        let mut at_once = 0;
        while let Some((time, event)) = self.queue.pop() {
            if time > self.config.end {
                break;
            }
            // A process that requests to be woken at once, again and again, would be a busy loop.
            at_once = if time == self.now { at_once + 1 } else { 0 };
            if at_once > MAX_EVENTS_AT_ONCE {
                let host = event.process();
                return Err(format!(
                    "BUSY: {MAX_EVENTS_AT_ONCE} turns at {time} ns, the last of host {host:?}"
                ));
            }
            self.now = time;
            if let Err(what) = self.handle(event) {
                return Err(format!("{what} (at {} ns)", self.now));
            }
        }
        self.now = self.config.end;
        self.check_end()?;
        self.outcome.history = self.checker.history();
        for host in &self.hosts {
            self.outcome.steps += host.process.as_ref().map_or(0, |process| process.steps);
        }
        Ok(self.outcome)
    }

    pub(crate) fn at(&mut self, time: Time, event: SimEvent) {
        self.queue.push(time.max(self.now), event);
    }

    fn record(&mut self, host: usize, fact: &Fact) -> Result<(), String> {
        let who = self.hosts[host].who();
        self.trace(|| format!("{} {who:?} {fact:?}", self.hosts[host].id));
        self.checker.record(self.now, who, fact)
    }

    pub(crate) fn name(&self, shard: usize) -> &Name {
        &self.names[shard]
    }

    pub(crate) fn list_for(&self, host: usize) -> Arc<Vec<Shard>> {
        let listed = self.listed.iter().filter(|at| !self.hosts[host].hidden_shards.contains(at));
        Arc::new(listed.map(|at| shard(*at)).collect())
    }

    // ---- processes ----

    pub(crate) fn start(&mut self, host: usize) {
        let (seed, now) = (self.rng.u64(..), self.now);
        let this = &mut self.hosts[host];
        if this.process.is_some() {
            return;
        }
        this.run += 1;
        this.leaving = false;
        (this.driver_timer, this.coordinator_timer) = ((0, 0), (0, 0));
        (this.driver_scheduled, this.coordinator_scheduled) = (false, false);
        let local = this.clock.at(now);
        let timing = &self.config.timing;
        let process =
            Process::new(&self.store.fleet, this.id.clone(), timing, seed, self.mutant, local);
        this.process = Some(Box::new(process));
        let run = this.run;
        self.trace(|| format!("start {} on host {host}", self.hosts[host].id));
        self.at(self.now, SimEvent::Read { host, run, by_hint: false });
        self.schedule(host);
    }

    pub(crate) fn kill(&mut self, host: usize) -> Result<(), String> {
        if let Some(process) = self.hosts[host].process.take() {
            self.outcome.steps += process.steps;
            self.record(host, &Fact::Gone)?;
        }
        Ok(())
    }

    /// Sets the timers, and schedules each thread whose queue is not empty.
    fn schedule(&mut self, host: usize) {
        let this = &mut self.hosts[host];
        let Some(process) = &this.process else { return };
        let run = this.run;
        let driver_at = process.driver_wakes_at().map(|at| this.clock.when(at));
        let coordinator_at = this.clock.when(process.coordinator_wakes_at());
        let driver_scheduled =
            process.has_commands() && !std::mem::replace(&mut this.driver_scheduled, true);
        let reads =
            process.has_inputs() && !std::mem::replace(&mut this.coordinator_scheduled, true);
        let busy = self.now < this.busy_until;
        if let Some(at) = driver_at
            && this.driver_timer.0 != at.max(1)
        {
            let timer = self.queue.stamp();
            self.hosts[host].driver_timer = (at.max(1), timer);
            self.at(at, SimEvent::DriverWakes(host, timer));
        }
        if self.hosts[host].coordinator_timer.0 != coordinator_at.max(1) {
            let timer = self.queue.stamp();
            self.hosts[host].coordinator_timer = (coordinator_at.max(1), timer);
            self.at(coordinator_at, SimEvent::CoordinatorWakes(host, timer));
        }
        if driver_scheduled {
            let at = self.now + self.rng.u64(0..MILLI / 2);
            self.at(at, SimEvent::RunCommands(host, run));
        }
        if reads {
            let slow = if busy { SECOND } else { MILLI / 2 };
            let at = self.now + self.rng.u64(0..slow);
            self.at(at, SimEvent::ReadInputs(host, run));
        }
    }

    fn drive(&mut self, host: usize, input: DriverInput) -> Result<(), String> {
        let this = &mut self.hosts[host];
        let Some(process) = &mut this.process else { return Ok(()) };
        let mut effects = Vec::new();
        process.drive(this.clock.at(self.now), input, &mut effects);
        self.apply_effects(host, effects)
    }

    fn decide(&mut self, host: usize, input: CoordinatorInput) -> Result<(), String> {
        let this = &mut self.hosts[host];
        let Some(process) = &mut this.process else { return Ok(()) };
        let mut effects = Vec::new();
        process.decide(this.clock.at(self.now), input, &mut effects);
        self.apply_effects(host, effects)
    }

    fn apply_effects(&mut self, host: usize, effects: Vec<MemberEffect>) -> Result<(), String> {
        for effect in effects {
            self.effect(host, effect)?;
        }
        self.schedule(host);
        Ok(())
    }

    fn effect(&mut self, host: usize, effect: MemberEffect) -> Result<(), String> {
        let clock = self.hosts[host].clock;
        match effect {
            MemberEffect::Call(call) => {
                self.count(host, &call);
                self.send(host, call);
                Ok(())
            }
            MemberEffect::Led { shard, token, deadline } => {
                self.outcome.terms += 1;
                self.late_terms += u64::from(self.counting);
                let until = clock.when(deadline);
                self.record(host, &Fact::Led { shard, token: Some(number(token)), until })?;
                self.believes(host, shard, token, until)
            }
            MemberEffect::Extended { shard, token, deadline } => {
                let until = clock.when(deadline);
                self.record(host, &Fact::Extended { shard, token: number(token), until })?;
                self.believes(host, shard, token, until)
            }
            MemberEffect::Revoked { number, shard, token, deadline, lost } => {
                let until = clock.when(deadline);
                self.outcome.handovers += u64::from(!lost);
                self.record(host, &Fact::Revoked { shard, until, lost })?;
                let takes = self.takes_to_end();
                let run = self.hosts[host].run;
                self.at(self.now + takes, SimEvent::WorkEnds(host, run, number, token));
                Ok(())
            }
            MemberEffect::Releases { shard, token } => {
                self.record(host, &Fact::SentRelease { shard, token: number(token) })
            }
            MemberEffect::Presumes { shard, deadline } => {
                let until = clock.when(deadline);
                self.record(host, &Fact::Led { shard, token: None, until })
            }
            MemberEffect::MembershipChanged(is_member) => {
                self.record(host, &Fact::MembershipChanged(is_member))
            }
            MemberEffect::Over => self.kill(host),
        }
    }

    fn believes(
        &mut self,
        host: usize,
        at: usize,
        token: Token,
        until: Time,
    ) -> Result<(), String> {
        if self.mutant == Mutant::MembershipIsRight {
            return Ok(());
        }
        let expiry = self.store.expiry(self.now, &self.names[at], token);
        self.record(host, &Fact::Believes { shard: at, until, expiry })
    }

    /// How long work takes to end: mostly in time, sometimes much longer. Then the lease must be kept for that long.
    fn takes_to_end(&mut self) -> Time {
        let stop_within = self.config.timing.stop_within.as_nanos();
        match self.rng.u8(0..20) {
            _ if self.calm => self.rng.u64(0..20 * MILLI),
            0 => {
                self.outcome.hung += 1;
                self.rng.u64(0..4 * self.config.ttl())
            }
            1..=9 => self.rng.u64(0..2 * MILLI),
            _ => self.rng.u64(0..u64::try_from(stop_within).expect("short")),
        }
    }

    fn handle(&mut self, event: SimEvent) -> Result<(), String> {
        if let Some(host) = event.process() {
            // A paused process does nothing; its events are delivered when it continues.
            let paused_until = self.hosts[host].paused_until;
            if self.now < paused_until {
                self.at(paused_until, event);
                return Ok(());
            }
        }
        let runs = |host: usize, run: u32| self.hosts[host].run == run;
        match event {
            SimEvent::DriverWakes(host, timer) if self.hosts[host].driver_timer.1 == timer => {
                self.hosts[host].driver_timer = (0, 0);
                self.drive(host, DriverInput::Woke)
            }
            SimEvent::CoordinatorWakes(host, timer)
                if self.hosts[host].coordinator_timer.1 == timer =>
            {
                self.hosts[host].coordinator_timer = (0, 0);
                self.decide(host, CoordinatorInput::Woke)
            }
            SimEvent::RunCommands(host, run) if runs(host, run) => {
                self.hosts[host].driver_scheduled = false;
                self.drive(host, DriverInput::Commands)
            }
            SimEvent::ReadInputs(host, run) if runs(host, run) => {
                self.hosts[host].coordinator_scheduled = false;
                self.decide(host, CoordinatorInput::Inputs)
            }
            SimEvent::Arrive { host, run, call, drop_reply } => {
                self.arrive(host, run, &call, drop_reply)
            }
            SimEvent::Deliver(host, run, reply) if runs(host, run) => match reply {
                Reply::Answers(answers) => self.drive(host, DriverInput::Answers(answers)),
                Reply::Snapshot(snapshot) => {
                    self.decide(host, CoordinatorInput::Observed(Some(snapshot)))
                }
                Reply::Announced(list) => self.decide(host, CoordinatorInput::Announced(list)),
                Reply::Nothing => Ok(()),
            },
            SimEvent::ObserveFails(host, run) if runs(host, run) => {
                self.decide(host, CoordinatorInput::Observed(None))
            }
            SimEvent::Hints(host, run, hints) if runs(host, run) => {
                self.drive(host, DriverInput::Changed(hints))
            }
            SimEvent::Nudge(host, run) if runs(host, run) => {
                self.decide(host, CoordinatorInput::Nudge)
            }
            SimEvent::Read { host, run, by_hint } if runs(host, run) => {
                if !by_hint {
                    self.at(self.now + REREAD_INTERVAL, SimEvent::Read { host, run, by_hint });
                }
                if self.now < self.hosts[host].unreadable_until {
                    return Ok(());
                }
                let list = self.hosts[host].list.clone();
                self.decide(host, CoordinatorInput::Read(list))
            }
            SimEvent::WorkEnds(host, run, number, token) if runs(host, run) => {
                let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
                if let Some(shard) = process.work_ends(number, token) {
                    self.record(host, &Fact::WorkEnded { shard })?;
                    self.schedule(host);
                }
                Ok(())
            }
            SimEvent::List(host, edition, list) => {
                if edition > self.hosts[host].edition {
                    self.hosts[host].edition = edition;
                    self.hosts[host].list = list;
                    if self.rng.bool() {
                        let run = self.hosts[host].run;
                        self.at(self.now, SimEvent::Read { host, run, by_hint: true });
                    }
                }
                Ok(())
            }
            SimEvent::Start(host) => {
                self.start(host);
                Ok(())
            }
            SimEvent::Leave(host) => {
                if let Some(process) = &mut self.hosts[host].process {
                    process.leave();
                    self.hosts[host].leaving = true;
                    self.trace(|| format!("{} leaves", self.hosts[host].id));
                    self.schedule(host);
                }
                Ok(())
            }
            SimEvent::Kill(host) => self.kill(host),
            SimEvent::InjectFault => self.inject_fault(),
            SimEvent::Calm => self.calm_down(),
            SimEvent::Settled => self.settled(),
            SimEvent::CheckSettled => self.check_settled(),
            SimEvent::CheckOwners => self.check_owners(),
            SimEvent::SameLists => {
                self.make_lists_equal();
                Ok(())
            }
            _ => Ok(()), // For an earlier run of the process, or from a stale timer.
        }
    }

    pub(crate) fn new_id(&mut self) -> CandidateId {
        self.ids += 1;
        CandidateId::new(&format!("m{}", self.ids)).expect("an id")
    }
}

pub(crate) fn shard(at: usize) -> Shard {
    let shard = Shard::new(&format!("s{at:03}")).expect("a shard");
    debug_assert_eq!(index(&shard), at);
    shard
}

impl SimEvent {
    /// The host whose process handles it, if a pause of the process delays it.
    fn process(&self) -> Option<usize> {
        match self {
            SimEvent::DriverWakes(host, _)
            | SimEvent::CoordinatorWakes(host, _)
            | SimEvent::RunCommands(host, _)
            | SimEvent::ReadInputs(host, _)
            | SimEvent::Deliver(host, ..)
            | SimEvent::ObserveFails(host, _)
            | SimEvent::Hints(host, ..)
            | SimEvent::Nudge(host, _)
            | SimEvent::Read { host, .. }
            | SimEvent::WorkEnds(host, ..) => Some(*host),
            _ => None,
        }
    }
}
