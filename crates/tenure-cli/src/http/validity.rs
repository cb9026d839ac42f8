//! How long positive answers are valid. A client that received `validForMs` may act on it until then, so the lease is not
//! released before.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::{Clock, Election, Moment, Status};

/// The positive answers given so far, and how long they are valid.
#[derive(Debug)]
pub(super) struct Validity {
    clock: Clock,
    /// The longest time to commit to; `None` means as long as the lease certainly belongs to this candidate.
    limit: Option<Duration>,
    committed: Mutex<Committed>,
}

#[derive(Debug, Default)]
struct Committed {
    /// From now on every answer is negative.
    answer_no: bool,
    until: Moment,
}

/// A status as it is sent: `valid_for_ms` is what was committed to, and a candidate that leads for less than a millisecond is
/// reported as not leading.
pub(super) struct ValidStatus {
    pub(super) status: Status,
    /// The state that matches the other fields. Fields that are read one by one from [`Status`] could disagree.
    pub(super) state: &'static str,
    pub(super) valid_for_ms: u64,
}

impl Validity {
    pub(super) fn new(clock: Clock, limit: Option<Duration>) -> Validity {
        Validity { clock, limit, committed: Mutex::default() }
    }

    /// Reads the status of the election and records what the answer commits to, in one step. So after [`Validity::answer_no`],
    /// or after the election has lost its term, [`Validity::until`] covers every earlier positive answer.
    pub(super) fn commit(&self, election: &Election) -> ValidStatus {
        let mut committed = self.committed();
        let mut status = election.status();
        // Read after the status: the commitment ends too late rather than too early.
        let now = self.clock.now();
        let limit = self.limit.unwrap_or(Duration::MAX);
        let valid_for_ms = match status.is_leader && !committed.answer_no {
            true => u64::try_from(status.valid_for.min(limit).as_millis()).unwrap_or(u64::MAX),
            false => 0,
        };
        status.is_leader = valid_for_ms > 0;
        status.token = status.token.filter(|_| status.is_leader);
        if status.is_leader {
            committed.until = committed.until.max(now + Duration::from_millis(valid_for_ms));
        }
        let state = match (status.is_leader, status.state.as_str()) {
            (true, _) => "leading",
            (false, "leading") => "stopping",
            (false, state) => state,
        };
        ValidStatus { status, state, valid_for_ms }
    }

    pub(super) fn answer_no(&self) {
        self.committed().answer_no = true;
    }

    pub(super) fn until(&self) -> Moment {
        self.committed().until
    }

    fn committed(&self) -> MutexGuard<'_, Committed> {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
