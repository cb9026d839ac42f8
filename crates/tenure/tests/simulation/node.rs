//! One candidate: its machine, its clock, its work, and what is wrong with it at the moment.

use tenure::machine::Machine;
use tenure::observation::Observations;
use tenure::{CandidateId, Hold, Moment, Name, Nonce, Token};

use super::clock::Time;
use super::config::NodePlan;

pub(crate) struct Node {
    pub(crate) id: CandidateId,
    pub(crate) plan: NodePlan,
    /// `None` while the process is down.
    pub(crate) machine: Option<Machine>,
    /// Which run of the process this is; what was meant for an earlier one is dropped.
    pub(crate) run: u32,
    pub(crate) seen: Observations,
    pub(crate) paused_until: Time,
    pub(crate) requests_lost_until: Time,
    pub(crate) replies_lost_until: Time,
    pub(crate) slow_until: Time,
    /// It was told to give up for good.
    pub(crate) stopping: bool,
    pub(crate) work: Option<Work>,
    /// The timer that counts; earlier ones are stale.
    pub(crate) timer: u64,
    pub(crate) process_nonce: Nonce,
    /// The origin of the record in which it last saw a live holder: what its memory rests on.
    pub(crate) saw_origin: Option<Token>,
    /// The term of that holder.
    pub(crate) saw_token: Option<Token>,
    /// It has seen a term of this name, or had one.
    pub(crate) knows: bool,
    /// Its last request, and when it left.
    pub(crate) asked: Option<(u64, Moment)>,
}

/// The work of a term.
pub(crate) struct Work {
    pub(crate) hold: Hold,
    pub(crate) told: bool,
    pub(crate) saves: u64,
}

impl Node {
    pub(crate) fn new(index: usize, plan: NodePlan) -> Self {
        Node {
            id: CandidateId::new(&format!("node-{index}")).expect("an id"),
            plan,
            machine: None,
            run: 0,
            seen: Observations::default(),
            paused_until: 0,
            requests_lost_until: 0,
            replies_lost_until: 0,
            slow_until: 0,
            stopping: false,
            work: None,
            timer: 0,
            process_nonce: Nonce::from_bits(0),
            saw_origin: None,
            saw_token: None,
            knows: false,
            asked: None,
        }
    }

    /// The process starts, with nothing but its id and its settings.
    pub(crate) fn start(&mut self, name: &Name, now: Time, seed: u128) {
        let local = self.plan.clock.at(now);
        let (id, timing) = (self.id.clone(), self.plan.timing.clone());
        self.machine = Some(Machine::new(name.clone(), id, timing, self.plan.rank, seed, local));
        self.run += 1;
        self.seen = Observations::default();
        self.process_nonce = Nonce::from_bits(seed);
        self.saw_origin = None;
        self.saw_token = None;
        self.knows = false;
        self.stopping = false;
    }

    pub(crate) fn heal(&mut self) {
        self.paused_until = 0;
        self.requests_lost_until = 0;
        self.replies_lost_until = 0;
        self.slow_until = 0;
    }
}
