//! What an application can be told.

use crate::error::Error;
use crate::lease::{Checkpoint, StartupWait, Token};
use crate::machine::EndReason;

/// Something happened in the election.
///
/// Delivered off the renewal path. A listener that is too slow misses events in between, never the latest state:
/// that is always in [`Election::status`](crate::Election::status).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// This candidate leads now.
    BecameLeader {
        /// The number of the term; give it along with every effect.
        token: Token,
        /// What the last leader left.
        checkpoint: Option<Checkpoint>,
    },
    /// This candidate holds the lease and does not lead yet: an earlier leader may still be at work, of which the store has
    /// lost the lease. It leads when the wait is over, unless it loses the lease first.
    Starting {
        /// The number of the term.
        token: Token,
        /// How long it waits, and why.
        wait: StartupWait,
    },
    /// This candidate does not lead any more.
    LostLeadership {
        /// The term that ended.
        token: Token,
        /// Why it ended.
        why: EndReason,
    },
    /// The store has confirmed that the lease of this term was given back.
    Released {
        /// The term that ended.
        token: Token,
    },
    /// Somebody else leads now, or nobody that we know of.
    LeaderChanged {
        /// Who led before.
        from: Option<String>,
        /// Who leads now.
        to: Option<String>,
    },
    /// The store gives no answer. The leader goes on until its deadline.
    StoreUnreachable(Error),
    /// The store answers again.
    StoreBack,
}
