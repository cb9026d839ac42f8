//! Until when we have said yes. Whoever was told `validForMs` may act on it until then, so a lease is not given back before.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::{Clock, Election, Moment, Status};

/// What others have been told about our leading.
#[derive(Debug)]
pub(super) struct Validity {
    clock: Clock,
    /// The longest we commit ourselves for; `None`: as long as the lease is certainly ours.
    limit: Option<Duration>,
    said: Mutex<Committed>,
}

#[derive(Debug, Default)]
struct Committed {
    /// From now on the answer is no.
    no: bool,
    until: Moment,
}

/// A status as it is told: `valid_for` is what was committed to, and whoever does not lead for at least a millisecond is
/// not said to lead at all.
pub(super) struct ValidStatus {
    pub(super) status: Status,
    /// The word for where the candidate stands, which goes with the rest: those in [`Status`] are read one by one.
    pub(super) state: &'static str,
    pub(super) valid_for_ms: u64,
}

impl Validity {
    pub(super) fn new(clock: Clock, limit: Option<Duration>) -> Validity {
        Validity { clock, limit, said: Mutex::default() }
    }

    /// Asks the election and notes down what the answer commits us to, in one step: whoever has said [`Answers::no`], or
    /// has seen the election lose, finds every earlier yes in [`Answers::until`].
    pub(super) fn give(&self, election: &Election) -> ValidStatus {
        let mut said = self.said();
        let mut status = election.status();
        // After the status was made: too late rather than too early.
        let now = self.clock.now();
        let limit = self.limit.unwrap_or(Duration::MAX);
        let valid_for_ms = match status.is_leader && !said.no {
            true => u64::try_from(status.valid_for.min(limit).as_millis()).unwrap_or(u64::MAX),
            false => 0,
        };
        status.is_leader = valid_for_ms > 0;
        status.token = status.token.filter(|_| status.is_leader);
        if status.is_leader {
            said.until = said.until.max(now + Duration::from_millis(valid_for_ms));
        }
        let state = match (status.is_leader, status.state.as_str()) {
            (true, _) => "leading",
            (false, "leading") => "stopping",
            (false, state) => state,
        };
        ValidStatus { status, state, valid_for_ms }
    }

    pub(super) fn no(&self) {
        self.said().no = true;
    }

    pub(super) fn until(&self) -> Moment {
        self.said().until
    }

    fn said(&self) -> MutexGuard<'_, Committed> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
