//! [`Event`]: what an election reports to the application.

use crate::error::Error;
use crate::lease::{Checkpoint, StartupWait, Token};
use crate::machine::EndReason;

/// An event of the election.
///
/// Events are delivered off the renewal path. A subscriber that is too slow misses events in between, never the latest state:
/// [`Election::status`](crate::Election::status) always has it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// This candidate leads now.
    BecameLeader {
        /// The number of the term. Pass it with every effect.
        token: Token,
        /// The checkpoint that the last leader saved.
        checkpoint: Option<Checkpoint>,
    },
    /// This candidate holds the lease and does not lead yet, because an earlier leader may still be working whose lease the
    /// store has lost. It leads when the wait is over, unless it loses the lease first.
    Starting {
        /// The number of the term.
        token: Token,
        /// The length of the wait, and its reason.
        wait: StartupWait,
    },
    /// This candidate does not lead any more.
    LostLeadership {
        /// The term that ended.
        token: Token,
        /// The reason why it ended.
        why: EndReason,
    },
    /// The store has confirmed that the lease of this term was released.
    Released {
        /// The term that ended.
        token: Token,
    },
    /// Another candidate leads now, or no known candidate does.
    LeaderChanged {
        /// The id of the previous leader.
        from: Option<String>,
        /// The id of the current leader.
        to: Option<String>,
    },
    /// The store does not answer. The leader continues until its deadline.
    StoreUnreachable(Error),
    /// The store answers again.
    StoreBack,
}
