//! One member as a process: the real machines and the real steward, and the production glue around them in few lines.
//!
//! [`driver`] mirrors the driver and the seat, [`office`] the office. They are two threads in production, so what they tell
//! each other lies in queues here too, and is picked up when the world says so.

mod coordinator;
mod driver;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tenure::fleet::planner::{PlanStep, Planner};
use tenure::fleet::{ListDigest, Shard, ShardNumber};
use tenure::machine::{Input, Machine, Phase, RequestId};
use tenure::timing::Timing;
use tenure::{CandidateId, Claim, Hold, Moment, Name, Release, Token};

use super::mutant::Mutant;
use super::store::{Call, Control};

pub(crate) use coordinator::CoordinatorInput;
pub(crate) use driver::DriverInput;

/// The place of the membership; shards are counted from one.
pub(crate) const MEMBERSHIP: ShardNumber = 0;

pub(crate) struct Process {
    me: CandidateId,
    fleet: Name,
    timing: Arc<Timing>,
    rng: Rng,
    mutant: Mutant,
    // The driver's.
    places: BTreeMap<ShardNumber, Place>,
    names: HashMap<Name, ShardNumber>,
    wheel: BTreeMap<Moment, Vec<ShardNumber>>,
    open: bool,
    batch: Batch,
    pub(crate) steps: u64,
    // What they share.
    slots: BTreeMap<ShardNumber, Slot>,
    commands: VecDeque<Command>,
    notes: VecDeque<Note>,
    // The office's.
    steward: Planner,
    shards: Option<Arc<Vec<Shard>>>,
    control: Option<Control>,
    orders: Vec<PlanStep>,
    leave_at: Option<Moment>,
    /// Others have had notice: everything is given away.
    departs: bool,
    /// Nothing is begun any more.
    leaves: bool,
    looking: bool,
    look_again: bool,
    look_at: Moment,
    /// The lease on itself, while it is held.
    membership: Option<Hold>,
    announced: Option<ListDigest>,
    announce_at: Moment,
    announcements: u64,
    /// It has read its list.
    joins: bool,
    /// The list of each member, as last observed, and after what the members are observed again while lists differ.
    sight_members: Option<BTreeMap<CandidateId, ListDigest>>,
    look_after: Duration,
}

struct Place {
    machine: Machine,
    due: Option<Moment>,
    phase: Phase,
}

struct Slot {
    /// `None` for the membership.
    shard: Option<usize>,
    expected: bool,
    work: Option<Work>,
}

struct Work {
    token: Token,
    told: bool,
}

/// From the office, or from work that has ended, to the driver.
#[allow(clippy::large_enum_variant)] // Few are under way at a time.
enum Command {
    Tell(ShardNumber, Input),
    Add(ShardNumber, Box<Machine>),
    Close,
}

/// From the driver to the office.
enum Note {
    Seated,
    Unseated,
    Owner(ShardNumber, Option<String>, bool),
    Moved(ShardNumber, Phase),
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

/// What the world is told.
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
    /// The work has to end; `lost`: the term is over, and not because anybody wanted it.
    Told {
        place: ShardNumber,
        shard: usize,
        token: Token,
        deadline: Moment,
        lost: bool,
    },
    Releases {
        shard: usize,
        token: Token,
    },
    /// One of the mutants works without any lease.
    Presumes {
        shard: usize,
        deadline: Moment,
    },
    Seated(bool),
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
            steward: Planner::new(me.clone(), timing.ttl),
            me,
            fleet: fleet.clone(),
            timing: timing.clone(),
            rng: Rng::with_seed(seed),
            mutant,
            places: BTreeMap::new(),
            names: HashMap::new(),
            wheel: BTreeMap::new(),
            open: true,
            batch: Batch::default(),
            steps: 0,
            slots: BTreeMap::new(),
            commands: VecDeque::new(),
            notes: VecDeque::new(),
            shards: None,
            control: None,
            orders: Vec::new(),
            leave_at: None,
            departs: false,
            leaves: false,
            looking: false,
            look_again: true,
            look_at: now,
            membership: None,
            announced: None,
            announce_at: now,
            announcements: 0,
            joins: false,
            sight_members: None,
            look_after: coordinator::ANNOUNCED_AFTER,
        };
        let name = tenure::fleet::node(fleet, &process.me);
        let mut machine = process.machine(name, now);
        if mutant != Mutant::JoinsWithoutList {
            machine.begin_unwanted();
        }
        process.slots.insert(MEMBERSHIP, Slot { shard: None, expected: true, work: None });
        process.commands.push_back(Command::Add(MEMBERSHIP, Box::new(machine)));
        process
    }

    fn machine(&mut self, name: Name, now: Moment) -> Machine {
        Machine::new(name, self.me.clone(), self.timing.clone(), 0, self.rng.u128(..), now)
    }

    /// The application asks it to leave.
    pub(crate) fn leave(&mut self) {
        self.notes.push_back(Note::Leave);
    }

    /// The application has dropped the last handle of this work. `false`: there is no such work any more.
    pub(crate) fn work_ends(&mut self, place: ShardNumber, token: Token) -> Option<usize> {
        let slot = self.slots.get_mut(&place)?;
        if slot.work.as_ref().is_none_or(|work| work.token != token || !work.told) {
            return None;
        }
        slot.work = None;
        self.commands.push_back(Command::Tell(place, Input::WorkEnded));
        slot.shard
    }

    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    pub(crate) fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }

    // ---- for the judge ----

    pub(crate) fn is_seated(&self) -> bool {
        self.places.get(&MEMBERSHIP).is_some_and(|place| place.phase == Phase::Leading)
    }

    /// The shards it leads, as numbers of the world.
    pub(crate) fn leads(&self) -> impl Iterator<Item = usize> {
        let leading = self.places.iter().filter(|(_, place)| place.phase == Phase::Leading);
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
        self.steward.coverage(now)
    }
}

/// The world's number of a shard: they are called `s000`, `s001`, …
pub(crate) fn index(shard: &Shard) -> usize {
    shard.as_str()[1..].parse().expect("one of ours")
}
