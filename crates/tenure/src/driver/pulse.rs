//! Whether a candidate does its own part in time, for a probe from outside.

use std::time::Duration;

/// What a candidate is behind with; all zero where all is well.
///
/// The answers of [`Election::is_leader`](crate::Election::is_leader) are right in any case: they are computed from the clock.
/// This tells whether anything will ever happen again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulse {
    /// So long ago the thread that renews had something to do, and has not done it.
    pub late: Duration,
    /// So long the work has gone on after its time was over.
    pub overrun: Duration,
    /// The thread that renews has ended.
    pub ended: bool,
}
