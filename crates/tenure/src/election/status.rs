//! [`Status`]: the state of a candidate at one moment, and [`Pulse`]: whether it acts in time.

use std::time::Duration;

use super::candidate_state::CandidateState;
use crate::error::Error;
use crate::lease::{CandidateId, Name, StartupWait, Token};
use crate::store::Grade;

/// The status of a candidate at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The name of the election.
    pub name: Name,
    /// The id of this candidate.
    pub candidate_id: CandidateId,
    /// Whether this candidate leads, computed when this value was created.
    pub is_leader: bool,
    /// The state of this candidate.
    pub state: CandidateState,
    /// The id of the leader, as far as this candidate knows.
    pub current_leader: Option<String>,
    /// The token of this candidate's term, if it leads.
    pub token: Option<Token>,
    /// How many [`Leadership`](crate::Leadership) handles of this candidate's term exist. A leader without a handle has no work
    /// that the library knows of.
    pub handles: u32,
    /// This candidate's start-up wait, while its state is [`CandidateState::Starting`].
    pub starting: Option<StartupWait>,
    /// When the current term began, of this or another candidate: Unix milliseconds, for display.
    pub since: Option<u64>,
    /// How long this candidate certainly leads; zero if it does not lead.
    pub valid_for: Duration,
    /// How many changes of the leader this candidate has observed.
    pub transitions: u64,
    /// Whether this candidate is drained: it does not campaign.
    pub drained: bool,
    /// Whether the [health check](crate::ElectionBuilder::health) passes; true without one.
    pub healthy: bool,
    /// The [priority](crate::ElectionBuilder::priority) of this candidate.
    pub priority: i32,
    /// The store's URL, without passwords.
    pub store: String,
    /// The guarantees of the store, as far as they are known yet.
    pub store_grade: Grade,
    /// Whether the store answers; `None` before the first answer.
    pub store_reachable: Option<bool>,
    /// The last error.
    pub last_error: Option<Error>,
}

/// How far a candidate is behind schedule. All zero if it is not.
///
/// [`Election::is_leader`](crate::Election::is_leader) is correct in any case, because it is computed from the clock. This
/// value shows whether the candidate still makes progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulse {
    /// How long the renewal thread is overdue.
    pub late: Duration,
    /// How long the work has continued after its deadline.
    pub overrun: Duration,
    /// This candidate leads, and no [`Leadership`](crate::Leadership) handle exists. Normal for an application that only calls
    /// [`Election::is_leader`](crate::Election::is_leader).
    pub idle: bool,
    /// The renewal thread has ended.
    pub ended: bool,
}
