//! One member as a process: the real machines and the real planner, with a short imitation of the production code around them.
//!
//! [`driver`] mirrors the driver and `MemberContext`, [`coordinator`] the coordinator. In production they are two threads, so
//! here they also communicate through queues, which are read when the world schedules it.

mod coordinator;
mod driver;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tenure::fleet::planner::{PlanStep, Planner};
use tenure::fleet::{ListDigest, Shard, ShardNumber};
use tenure::machine::{Input, Machine, MachineConfig, Phase, RequestId};
use tenure::timing::Timing;
use tenure::{CandidateId, Claim, Hold, Moment, Name, Release, Token};

use super::mutant::Mutant;
use super::store::{Call, SimOverrides};

pub(crate) use coordinator::CoordinatorInput;
pub(crate) use driver::DriverInput;

/// The machine of the membership lease; shards are numbered from one.
pub(crate) const MEMBERSHIP: ShardNumber = 0;

pub(crate) struct Process {
    me: CandidateId,
    fleet: Name,
    timing: Arc<Timing>,
    rng: Rng,
    mutant: Mutant,
    // State of the driver.
    machines: BTreeMap<ShardNumber, TimedMachine>,
    names: HashMap<Name, ShardNumber>,
    timers: BTreeMap<Moment, Vec<ShardNumber>>,
    open: bool,
    batch: Batch,
    pub(crate) steps: u64,
    // Shared state.
    slots: BTreeMap<ShardNumber, Slot>,
    commands: VecDeque<Command>,
    inputs: VecDeque<MemberInput>,
    // State of the coordinator.
    planner: Planner,
    shards: Option<Arc<Vec<Shard>>>,
    overrides: Option<SimOverrides>,
    plan_steps: Vec<PlanStep>,
    leave_at: Option<Moment>,
    /// The notice of a leaving member is over: it releases its shards.
    notice_over: bool,
    /// All shards are released: nothing new is started.
    closing: bool,
    observing: bool,
    observe_again: bool,
    observe_at: Moment,
    /// The membership lease, while it is held.
    membership: Option<Hold>,
    announced: Option<ListDigest>,
    announce_at: Moment,
    announcements: u64,
    /// It has read its list.
    joins: bool,
    /// The list of each member, as last observed, and the delay until the next observation while lists differ.
    observed_lists: Option<BTreeMap<CandidateId, ListDigest>>,
    observe_delay: Duration,
}

struct TimedMachine {
    machine: Machine,
    due: Option<Moment>,
    phase: Phase,
}

struct Slot {
    /// `None` for the membership lease.
    shard: Option<usize>,
    expected: bool,
    work: Option<Work>,
}

struct Work {
    token: Token,
    revoked: bool,
}

/// A command to the driver, from the coordinator or from work that has ended.
#[allow(clippy::large_enum_variant)] // Few are in the queue at a time.
enum Command {
    Tell(ShardNumber, Input),
    Add(ShardNumber, Box<Machine>),
    Close,
}

/// An input of the coordinator, from the driver or the application.
enum MemberInput {
    MembershipAcquired,
    MembershipLost,
    Owner(ShardNumber, Option<String>, bool),
    PhaseChanged(ShardNumber, Phase),
    Answered(ShardNumber),
    Broken(ShardNumber),
    Leave,
}

#[derive(Default)]
struct Batch {
    renew: Vec<(ShardNumber, RequestId, Hold)>,
    release: Vec<(ShardNumber, RequestId, Release)>,
    acquire: Vec<(ShardNumber, RequestId, Claim)>,
    observe: Vec<(ShardNumber, RequestId, Name)>,
}

/// An effect of a process on the world.
pub(crate) enum MemberEffect {
    Call(Call),
    Led {
        shard: usize,
        token: Token,
        deadline: Moment,
    },
    Extended {
        shard: usize,
        token: Token,
        deadline: Moment,
    },
    /// The work must end; `lost`: the term was lost, not resigned.
    Revoked {
        number: ShardNumber,
        shard: usize,
        token: Token,
        deadline: Moment,
        lost: bool,
    },
    Releases {
        shard: usize,
        token: Token,
    },
    /// A mutant works without a lease.
    Presumes {
        shard: usize,
        deadline: Moment,
    },
    MembershipChanged(bool),
    Over,
}

impl Process {
    pub(crate) fn new(
        fleet: &Name,
        me: CandidateId,
        timing: &Arc<Timing>,
        seed: u64,
        mutant: Mutant,
        now: Moment,
    ) -> Self {
        let mut process = Process {
            planner: Planner::new(me.clone(), timing.ttl),
            me,
            fleet: fleet.clone(),
            timing: timing.clone(),
            rng: Rng::with_seed(seed),
            mutant,
            machines: BTreeMap::new(),
            names: HashMap::new(),
            timers: BTreeMap::new(),
            open: true,
            batch: Batch::default(),
            steps: 0,
            slots: BTreeMap::new(),
            commands: VecDeque::new(),
            inputs: VecDeque::new(),
            shards: None,
            overrides: None,
            plan_steps: Vec::new(),
            leave_at: None,
            notice_over: false,
            closing: false,
            observing: false,
            observe_again: true,
            observe_at: now,
            membership: None,
            announced: None,
            announce_at: now,
            announcements: 0,
            joins: false,
            observed_lists: None,
            observe_delay: coordinator::ANNOUNCEMENT_DELAY,
        };
        let name = tenure::fleet::node(fleet, &process.me);
        let machine = process.machine(name, now, mutant == Mutant::JoinsWithoutList);
        process.slots.insert(MEMBERSHIP, Slot { shard: None, expected: true, work: None });
        process.commands.push_back(Command::Add(MEMBERSHIP, Box::new(machine)));
        process
    }

    fn machine(&mut self, name: Name, now: Moment, campaigns: bool) -> Machine {
        let (me, timing, seed) = (self.me.clone(), self.timing.clone(), self.rng.u128(..));
        let mut config = MachineConfig::new(name, me, timing, seed);
        config.campaigns = campaigns;
        Machine::new(config, now)
    }

    /// The application requests to leave.
    pub(crate) fn leave(&mut self) {
        self.inputs.push_back(MemberInput::Leave);
    }

    /// The application has dropped the last handle of this work. `None`: there is no such work any more.
    pub(crate) fn work_ends(&mut self, number: ShardNumber, token: Token) -> Option<usize> {
        let slot = self.slots.get_mut(&number)?;
        if slot.work.as_ref().is_none_or(|work| work.token != token || !work.revoked) {
            return None;
        }
        slot.work = None;
        self.commands.push_back(Command::Tell(number, Input::WorkEnded));
        slot.shard
    }

    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    pub(crate) fn has_inputs(&self) -> bool {
        !self.inputs.is_empty()
    }

    // ---- for the checks ----

    pub(crate) fn is_member(&self) -> bool {
        self.machines.get(&MEMBERSHIP).is_some_and(|timed| timed.phase == Phase::Leading)
    }

    /// The shards that it owns, as indices of the world.
    pub(crate) fn leads(&self) -> impl Iterator<Item = usize> {
        let leading = self.machines.iter().filter(|(_, timed)| timed.phase == Phase::Leading);
        leading.filter_map(|(number, _)| self.slots.get(number)?.shard)
    }

    /// Whether it has read its list.
    pub(crate) fn has_list(&self) -> bool {
        self.shards.is_some()
    }

    pub(crate) fn lists(&self) -> &[Shard] {
        self.shards.as_deref().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn coverage(&self, now: Moment) -> tenure::fleet::Coverage {
        self.planner.coverage(now)
    }
}

/// The world's index of a shard: shards are called `s000`, `s001`, …
pub(crate) fn index(shard: &Shard) -> usize {
    shard.as_str()[1..].parse().expect("a shard of this simulation")
}
