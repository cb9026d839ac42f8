//! A host of a member: its clock, its process, and its current faults.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure::CandidateId;
use tenure::fleet::Shard;

use super::invariants::ProcessRun;
use super::member::Process;
use tenure_rig::simulation::clock::{SimulatedClock, Time};

pub(crate) struct Host {
    pub(crate) index: usize,
    pub(crate) id: CandidateId,
    pub(crate) clock: SimulatedClock,
    /// `None` while it is down.
    pub(crate) process: Option<Box<Process>>,
    /// The number of the process; events for an earlier process are dropped.
    pub(crate) run: u32,
    pub(crate) leaving: bool,
    pub(crate) paused_until: Time,
    pub(crate) requests_lost_until: Time,
    pub(crate) replies_lost_until: Time,
    pub(crate) slow_until: Time,
    /// Until then its coordinator is slow.
    pub(crate) busy_until: Time,
    /// The list of its source, and the version of the list.
    pub(crate) list: Arc<Vec<Shard>>,
    pub(crate) edition: u64,
    /// Shards that its source does not list.
    pub(crate) hidden_shards: BTreeSet<usize>,
    /// Until then its source cannot be read.
    pub(crate) unreadable_until: Time,
    /// The times and numbers of the current timers; earlier timers are stale.
    pub(crate) driver_timer: (Time, u64),
    pub(crate) coordinator_timer: (Time, u64),
    pub(crate) driver_scheduled: bool,
    pub(crate) coordinator_scheduled: bool,
    pub(crate) count: Count,
}

/// How many requests it has sent to the store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) renewed: u64,
    pub(crate) renewals: u64,
    pub(crate) claimed: u64,
    pub(crate) released: u64,
    pub(crate) observed: u64,
    pub(crate) observations: u64,
    pub(crate) fleet_observations: u64,
}

impl Host {
    pub(crate) fn new(index: usize, clock: SimulatedClock) -> Self {
        Host {
            index,
            id: CandidateId::new(&format!("m{index}")).expect("an id"),
            clock,
            process: None,
            run: 0,
            leaving: false,
            paused_until: 0,
            requests_lost_until: 0,
            replies_lost_until: 0,
            slow_until: 0,
            busy_until: 0,
            list: Arc::default(),
            edition: 0,
            hidden_shards: BTreeSet::new(),
            unreadable_until: 0,
            driver_timer: (0, 0),
            coordinator_timer: (0, 0),
            driver_scheduled: false,
            coordinator_scheduled: false,
            count: Count::default(),
        }
    }

    pub(crate) fn who(&self) -> ProcessRun {
        (self.index, self.run)
    }

    pub(crate) fn clear_faults(&mut self) {
        self.paused_until = 0;
        self.requests_lost_until = 0;
        self.replies_lost_until = 0;
        self.slow_until = 0;
        self.busy_until = 0;
    }
}
