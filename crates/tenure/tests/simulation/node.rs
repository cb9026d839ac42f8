//! One simulated candidate: its machine, its clock, its work, and its current faults.

use tenure::machine::{Machine, MachineConfig};
use tenure::observation::Observations;
use tenure::{CandidateId, Hold, Moment, Name, Nonce, Token};

use super::config::NodePlan;
use tenure_rig::simulation::clock::Time;

pub(crate) struct SimNode {
    pub(crate) id: CandidateId,
    pub(crate) plan: NodePlan,
    /// `None` while the process is down.
    pub(crate) machine: Option<Machine>,
    /// The run number of the process. Events for an earlier run are dropped.
    pub(crate) run: u32,
    pub(crate) observations: Observations,
    pub(crate) paused_until: Time,
    pub(crate) requests_lost_until: Time,
    pub(crate) replies_lost_until: Time,
    pub(crate) slow_until: Time,
    /// The node was stopped for good.
    pub(crate) stopping: bool,
    pub(crate) work: Option<SimWork>,
    /// The current timer; earlier ones are stale.
    pub(crate) timer: u64,
    pub(crate) process_nonce: Nonce,
    /// The origin of the record in which the node last observed a live holder.
    pub(crate) observed_origin: Option<Token>,
    /// The token of that holder.
    pub(crate) observed_token: Option<Token>,
    /// The node has observed or held a term of this name.
    pub(crate) knows_a_term: bool,
    /// The number of the last request, and when it was sent.
    pub(crate) last_request: Option<(u64, Moment)>,
}

/// The work of a term.
pub(crate) struct SimWork {
    pub(crate) hold: Hold,
    pub(crate) stop_requested: bool,
    pub(crate) saves: u64,
}

impl SimNode {
    pub(crate) fn new(index: usize, plan: NodePlan) -> Self {
        SimNode {
            id: CandidateId::new(&format!("node-{index}")).expect("an id"),
            plan,
            machine: None,
            run: 0,
            observations: Observations::default(),
            paused_until: 0,
            requests_lost_until: 0,
            replies_lost_until: 0,
            slow_until: 0,
            stopping: false,
            work: None,
            timer: 0,
            process_nonce: Nonce::from_bits(0),
            observed_origin: None,
            observed_token: None,
            knows_a_term: false,
            last_request: None,
        }
    }

    /// Starts the process, with only its id and its settings.
    pub(crate) fn start(&mut self, name: &Name, now: Time, seed: u128) {
        let local = self.plan.clock.at(now);
        let (id, timing) = (self.id.clone(), self.plan.timing.clone());
        let mut config = MachineConfig::new(name.clone(), id, timing, seed);
        config.rank = self.plan.rank;
        self.machine = Some(Machine::new(config, local));
        self.run += 1;
        self.observations = Observations::default();
        self.process_nonce = Nonce::from_bits(seed);
        self.observed_origin = None;
        self.observed_token = None;
        self.knows_a_term = false;
        self.stopping = false;
    }

    pub(crate) fn heal(&mut self) {
        self.paused_until = 0;
        self.requests_lost_until = 0;
        self.replies_lost_until = 0;
        self.slow_until = 0;
    }
}
