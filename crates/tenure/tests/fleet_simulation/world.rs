//! The event queue: everything that happens, in true time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fastrand::Rng;
use tenure::fleet::{Shard, ShardNumber, fleet_name};
use tenure::store::Change;
use tenure::{CandidateId, Name, Token};

use super::clock::{MILLI, SECOND, Time};
use super::config::{Plan, Script};
use super::host::Host;
use super::invariants::{Fact, Judge, number};
use super::member::{CoordinatorInput, DriverInput, MemberEffect, Process, index};
use super::mutant::Mutant;
use super::queue::Queue;
use super::store::{Call, Reply, SimStore};

/// As long a source is not read.
const REREAD: Time = 10 * SECOND;

/// More than ever happens in one nanosecond.
const AT_ONCE: u32 = 20_000;

/// What is in the queue; what concerns a process says which run of the host.
pub(crate) enum Happening {
    DriverWakes(usize, u64),
    OfficeWakes(usize, u64),
    Obey(usize, u32),
    ReadNotes(usize, u32),
    Arrive {
        host: usize,
        run: u32,
        call: Call,
        mute: bool,
    },
    Deliver(usize, u32, Reply),
    LookFails(usize, u32),
    Hints(usize, u32, Vec<Change>),
    Nudge(usize, u32),
    Read {
        host: usize,
        run: u32,
        by_hint: bool,
    },
    WorkEnds(usize, u32, ShardNumber, Token),
    /// The source of a host says this now.
    List(usize, u64, Arc<Vec<Shard>>),
    Start(usize),
    Leave(usize),
    Kill(usize),
    Strike,
    Calm,
    Settled,
    Look,
    /// Whether every shard that a member lists has an owner, or had one not long ago.
    CheckOwners,
    SameLists,
}

/// What a run amounted to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) steps: u64,
    pub(crate) terms: u64,
    pub(crate) faults: u64,
    pub(crate) handovers: u64,
    pub(crate) hung: u64,
    pub(crate) claims: u64,
    /// A hash of everything the judge was told.
    pub(crate) history: u64,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) now: Time,
    pub(crate) hosts: Vec<Host>,
    pub(crate) store: SimStore,
    pub(crate) store_down_until: Time,
    pub(crate) calm: bool,
    pub(crate) outcome: Outcome,
    /// What the sources say, or will soon.
    pub(crate) listed: BTreeSet<usize>,
    pub(crate) edition: u64,
    /// Ids that were never used.
    pub(crate) ids: usize,
    /// Terms that began after the world had settled, or after what its script is about.
    pub(crate) late_terms: u64,
    pub(crate) counting: bool,
    /// How often the settled world was looked at, and which shards had no owner then.
    pub(crate) looks: u64,
    pub(crate) unowned: BTreeMap<usize, u64>,
    /// Since when shards have no owner that a living member lists.
    pub(crate) unowned_since: BTreeMap<usize, Time>,
    names: Vec<Name>,
    queue: Queue<Happening>,
    pub(crate) judge: Judge,
    mutant: Mutant,
    talking: bool,
}

impl World {
    pub(crate) fn new(plan: Plan, mutant: Mutant) -> Self {
        let fleet = fleet_name("fleet").expect("a name");
        // Twice as many as there are at the beginning: others come.
        let all = 2 * plan.shards;
        let names = (0..all).map(|at| shard(at).lease(&fleet)).collect();
        let hosts = plan.hosts.iter().enumerate().map(|(at, clock)| Host::new(at, *clock));
        World {
            rng: Rng::with_seed(!plan.seed),
            now: 0,
            hosts: hosts.collect(),
            store: SimStore::new(fleet, plan.store_clock, plan.timing.ttl),
            store_down_until: 0,
            calm: plan.script != Script::Chaos,
            outcome: Outcome::default(),
            listed: (0..plan.shards).collect(),
            edition: 1,
            ids: plan.hosts.len(),
            late_terms: 0,
            counting: false,
            looks: 0,
            unowned: BTreeMap::new(),
            unowned_since: BTreeMap::new(),
            names,
            queue: Queue::new(),
            judge: Judge::new(all, plan.ttl()),
            mutant,
            talking: false,
            plan,
        }
    }

    /// Prints everything, for a look at one seed.
    pub(crate) fn talk(&mut self) {
        self.talking = true;
    }

    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if self.talking {
            println!("{:>12}.{:06} {}", self.now / SECOND, self.now % SECOND / 1_000, what());
        }
    }

    pub(crate) fn run(mut self) -> Result<Outcome, String> {
        for host in 0..self.hosts.len() {
            if self.plan.blind {
                let share = self.rng.f64() / 2.0;
                let unseen = (0..2 * self.plan.shards).filter(|_| self.rng.f64() < share);
                self.hosts[host].blind = unseen.collect();
            }
            self.hosts[host].list = self.list_for(host);
        }
        for host in 0..self.plan.members {
            let at = self.rng.u64(0..2 * SECOND);
            self.at(at, Happening::Start(host));
        }
        if self.plan.script == Script::Chaos {
            self.at(self.plan.ttl(), Happening::Strike);
        }
        self.at(self.plan.calm_from, Happening::Calm);
        self.at(self.plan.settled_at, Happening::Settled);
        let mut at_once = 0;
        while let Some((time, happening)) = self.queue.pop() {
            if time > self.plan.end {
                break;
            }
            // Whoever asks to be woken at once, again and again, would burn a processor.
            at_once = if time == self.now { at_once + 1 } else { 0 };
            if at_once > AT_ONCE {
                let host = happening.process();
                return Err(format!(
                    "BUSY: {AT_ONCE} turns at {time} ns, the last of host {host:?}"
                ));
            }
            self.now = time;
            if let Err(what) = self.happens(happening) {
                return Err(format!("{what} (at {} ns)", self.now));
            }
        }
        self.now = self.plan.end;
        self.final_word()?;
        self.outcome.history = self.judge.history();
        for host in &self.hosts {
            self.outcome.steps += host.process.as_ref().map_or(0, |process| process.steps);
        }
        Ok(self.outcome)
    }

    pub(crate) fn at(&mut self, time: Time, happening: Happening) {
        self.queue.push(time.max(self.now), happening);
    }

    fn see(&mut self, host: usize, fact: &Fact) -> Result<(), String> {
        let who = self.hosts[host].who();
        self.say(|| format!("{} {who:?} {fact:?}", self.hosts[host].id));
        self.judge.see(self.now, who, fact)
    }

    pub(crate) fn name(&self, shard: usize) -> &Name {
        &self.names[shard]
    }

    pub(crate) fn list_for(&self, host: usize) -> Arc<Vec<Shard>> {
        let seen = self.listed.iter().filter(|at| !self.hosts[host].blind.contains(at));
        Arc::new(seen.map(|at| shard(*at)).collect())
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
        (this.driver_timer, this.office_timer) = ((0, 0), (0, 0));
        (this.obeys, this.reads_notes) = (false, false);
        let local = this.clock.at(now);
        let timing = &self.plan.timing;
        let process =
            Process::new(&self.store.fleet, this.id.clone(), timing, seed, self.mutant, local);
        this.process = Some(Box::new(process));
        let run = this.run;
        self.say(|| format!("start {} on host {host}", self.hosts[host].id));
        self.at(self.now, Happening::Read { host, run, by_hint: false });
        self.tend(host);
    }

    pub(crate) fn kill(&mut self, host: usize) -> Result<(), String> {
        if let Some(process) = self.hosts[host].process.take() {
            self.outcome.steps += process.steps;
            self.see(host, &Fact::Gone)?;
        }
        Ok(())
    }

    /// Sets the timers, and wakes whichever thread the other has left something for.
    fn tend(&mut self, host: usize) {
        let this = &mut self.hosts[host];
        let Some(process) = &this.process else { return };
        let run = this.run;
        let driver_at = process.driver_wakes_at().map(|at| this.clock.when(at));
        let office_at = this.clock.when(process.office_wakes_at());
        let obeys = process.has_commands() && !std::mem::replace(&mut this.obeys, true);
        let reads = process.has_notes() && !std::mem::replace(&mut this.reads_notes, true);
        let busy = self.now < this.busy_until;
        if let Some(at) = driver_at
            && this.driver_timer.0 != at.max(1)
        {
            let timer = self.queue.stamp();
            self.hosts[host].driver_timer = (at.max(1), timer);
            self.at(at, Happening::DriverWakes(host, timer));
        }
        if self.hosts[host].office_timer.0 != office_at.max(1) {
            let timer = self.queue.stamp();
            self.hosts[host].office_timer = (office_at.max(1), timer);
            self.at(office_at, Happening::OfficeWakes(host, timer));
        }
        if obeys {
            let at = self.now + self.rng.u64(0..MILLI / 2);
            self.at(at, Happening::Obey(host, run));
        }
        if reads {
            let slow = if busy { SECOND } else { MILLI / 2 };
            let at = self.now + self.rng.u64(0..slow);
            self.at(at, Happening::ReadNotes(host, run));
        }
    }

    fn drive(&mut self, host: usize, input: DriverInput) -> Result<(), String> {
        let this = &mut self.hosts[host];
        let Some(process) = &mut this.process else { return Ok(()) };
        let mut effects = Vec::new();
        process.drive(this.clock.at(self.now), input, &mut effects);
        self.follow(host, effects)
    }

    fn decide(&mut self, host: usize, news: CoordinatorInput) -> Result<(), String> {
        let this = &mut self.hosts[host];
        let Some(process) = &mut this.process else { return Ok(()) };
        let mut effects = Vec::new();
        process.decide(this.clock.at(self.now), news, &mut effects);
        self.follow(host, effects)
    }

    fn follow(&mut self, host: usize, effects: Vec<MemberEffect>) -> Result<(), String> {
        for effect in effects {
            self.effect(host, effect)?;
        }
        self.tend(host);
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
                self.see(host, &Fact::Led { shard, token: Some(number(token)), until })?;
                self.believes(host, shard, token, until)
            }
            MemberEffect::Extended { shard, token, deadline } => {
                let until = clock.when(deadline);
                self.see(host, &Fact::Extended { shard, token: number(token), until })?;
                self.believes(host, shard, token, until)
            }
            MemberEffect::Told { place, shard, token, deadline, lost } => {
                let until = clock.when(deadline);
                self.outcome.handovers += u64::from(!lost);
                self.see(host, &Fact::Told { shard, until, lost })?;
                let takes = self.takes_to_end();
                let run = self.hosts[host].run;
                self.at(self.now + takes, Happening::WorkEnds(host, run, place, token));
                Ok(())
            }
            MemberEffect::Releases { shard, token } => {
                self.see(host, &Fact::SentRelease { shard, token: number(token) })
            }
            MemberEffect::Presumes { shard, deadline } => {
                let until = clock.when(deadline);
                self.see(host, &Fact::Led { shard, token: None, until })
            }
            MemberEffect::Seated(seated) => self.see(host, &Fact::Seated(seated)),
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
        self.see(host, &Fact::Believes { shard: at, until, expiry })
    }

    /// In time, or a good while later: then the lease has to be kept so long.
    fn takes_to_end(&mut self) -> Time {
        let stop_within = self.plan.timing.stop_within.as_nanos();
        match self.rng.u8(0..20) {
            _ if self.calm => self.rng.u64(0..20 * MILLI),
            0 => {
                self.outcome.hung += 1;
                self.rng.u64(0..4 * self.plan.ttl())
            }
            1..=9 => self.rng.u64(0..2 * MILLI),
            _ => self.rng.u64(0..u64::try_from(stop_within).expect("short")),
        }
    }

    fn happens(&mut self, happening: Happening) -> Result<(), String> {
        if let Some(host) = happening.process() {
            // A paused process does nothing; whatever was for it is there when it wakes up.
            let paused_until = self.hosts[host].paused_until;
            if self.now < paused_until {
                self.at(paused_until, happening);
                return Ok(());
            }
        }
        let runs = |host: usize, run: u32| self.hosts[host].run == run;
        match happening {
            Happening::DriverWakes(host, timer) if self.hosts[host].driver_timer.1 == timer => {
                self.hosts[host].driver_timer = (0, 0);
                self.drive(host, DriverInput::Woke)
            }
            Happening::OfficeWakes(host, timer) if self.hosts[host].office_timer.1 == timer => {
                self.hosts[host].office_timer = (0, 0);
                self.decide(host, CoordinatorInput::Woke)
            }
            Happening::Obey(host, run) if runs(host, run) => {
                self.hosts[host].obeys = false;
                self.drive(host, DriverInput::Commands)
            }
            Happening::ReadNotes(host, run) if runs(host, run) => {
                self.hosts[host].reads_notes = false;
                self.decide(host, CoordinatorInput::Notes)
            }
            Happening::Arrive { host, run, call, mute } => self.arrive(host, run, &call, mute),
            Happening::Deliver(host, run, reply) if runs(host, run) => match reply {
                Reply::Answers(answers) => self.drive(host, DriverInput::Answers(answers)),
                Reply::Sight(sight) => self.decide(host, CoordinatorInput::Saw(Some(sight))),
                Reply::Announced(list) => self.decide(host, CoordinatorInput::Announced(list)),
                Reply::Nothing => Ok(()),
            },
            Happening::LookFails(host, run) if runs(host, run) => {
                self.decide(host, CoordinatorInput::Saw(None))
            }
            Happening::Hints(host, run, hints) if runs(host, run) => {
                self.drive(host, DriverInput::Changed(hints))
            }
            Happening::Nudge(host, run) if runs(host, run) => {
                self.decide(host, CoordinatorInput::Nudge)
            }
            Happening::Read { host, run, by_hint } if runs(host, run) => {
                if !by_hint {
                    self.at(self.now + REREAD, Happening::Read { host, run, by_hint });
                }
                if self.now < self.hosts[host].unreadable_until {
                    return Ok(());
                }
                let list = self.hosts[host].list.clone();
                self.decide(host, CoordinatorInput::Read(list))
            }
            Happening::WorkEnds(host, run, place, token) if runs(host, run) => {
                let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
                if let Some(shard) = process.work_ends(place, token) {
                    self.see(host, &Fact::WorkEnded { shard })?;
                    self.tend(host);
                }
                Ok(())
            }
            Happening::List(host, edition, list) => {
                if edition > self.hosts[host].edition {
                    self.hosts[host].edition = edition;
                    self.hosts[host].list = list;
                    if self.rng.bool() {
                        let run = self.hosts[host].run;
                        self.at(self.now, Happening::Read { host, run, by_hint: true });
                    }
                }
                Ok(())
            }
            Happening::Start(host) => {
                self.start(host);
                Ok(())
            }
            Happening::Leave(host) => {
                if let Some(process) = &mut self.hosts[host].process {
                    process.leave();
                    self.hosts[host].leaving = true;
                    self.say(|| format!("{} leaves", self.hosts[host].id));
                    self.tend(host);
                }
                Ok(())
            }
            Happening::Kill(host) => self.kill(host),
            Happening::Strike => self.strike(),
            Happening::Calm => self.calm_down(),
            Happening::Settled => self.settled(),
            Happening::Look => self.look_around(),
            Happening::CheckOwners => self.check_owners(),
            Happening::SameLists => {
                self.make_lists_equal();
                Ok(())
            }
            _ => Ok(()), // For an earlier run of the process, or a timer that was set anew.
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

impl Happening {
    /// The process it happens in, if it is one that can be paused.
    fn process(&self) -> Option<usize> {
        match self {
            Happening::DriverWakes(host, _)
            | Happening::OfficeWakes(host, _)
            | Happening::Obey(host, _)
            | Happening::ReadNotes(host, _)
            | Happening::Deliver(host, ..)
            | Happening::LookFails(host, _)
            | Happening::Hints(host, ..)
            | Happening::Nudge(host, _)
            | Happening::Read { host, .. }
            | Happening::WorkEnds(host, ..) => Some(*host),
            _ => None,
        }
    }
}
