//! A machine a member runs on: its clock, its process if there is one, and what is wrong with it at the moment.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure::CandidateId;
use tenure::fleet::Shard;

use super::clock::{Clock, Time};
use super::invariants::Who;
use super::member::Process;

pub(crate) struct Host {
    pub(crate) index: usize,
    pub(crate) id: CandidateId,
    pub(crate) clock: Clock,
    /// `None` while it is down.
    pub(crate) process: Option<Box<Process>>,
    /// Which process this is; what was meant for an earlier one is dropped.
    pub(crate) run: u32,
    pub(crate) leaving: bool,
    pub(crate) paused_until: Time,
    pub(crate) requests_lost_until: Time,
    pub(crate) replies_lost_until: Time,
    pub(crate) slow_until: Time,
    /// Its office takes its time.
    pub(crate) busy_until: Time,
    /// What its source says, and which edition that is.
    pub(crate) list: Arc<Vec<Shard>>,
    pub(crate) edition: u64,
    /// Shards its source does not know of.
    pub(crate) blind: BTreeSet<usize>,
    /// Its source cannot be read before this.
    pub(crate) unreadable_until: Time,
    /// The timers that count, with their times; earlier ones are stale.
    pub(crate) driver_timer: (Time, u64),
    pub(crate) office_timer: (Time, u64),
    pub(crate) obeys: bool,
    pub(crate) reads_notes: bool,
    pub(crate) count: Count,
}

/// What it has asked of the store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) renewed: u64,
    pub(crate) renewals: u64,
    pub(crate) claimed: u64,
    pub(crate) released: u64,
    pub(crate) observed: u64,
    pub(crate) observations: u64,
    pub(crate) looks: u64,
}

impl Host {
    pub(crate) fn new(index: usize, clock: Clock) -> Self {
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
            blind: BTreeSet::new(),
            unreadable_until: 0,
            driver_timer: (0, 0),
            office_timer: (0, 0),
            obeys: false,
            reads_notes: false,
            count: Count::default(),
        }
    }

    pub(crate) fn who(&self) -> Who {
        (self.index, self.run)
    }

    pub(crate) fn heal(&mut self) {
        self.paused_until = 0;
        self.requests_lost_until = 0;
        self.replies_lost_until = 0;
        self.slow_until = 0;
        self.busy_until = 0;
    }
}
