//! [`Pulse`]: whether a candidate does its own part in time, for a liveness probe.

use std::time::Duration;

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
    /// The renewal thread has ended.
    pub ended: bool,
}
