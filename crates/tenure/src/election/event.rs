//! [`Event`]: what an election reports to the application.

use crate::error::Error;
use crate::lease::{Checkpoint, StartupWait, Token};
use crate::machine::EndReason;

/// An event of the election.
///
/// Events are delivered off the renewal path. A subscriber that is too slow misses events in between, never the latest state:
/// [`Election::status`](crate::Election::status) always has it.
///
/// Events can get more fields, so match them with `..`. The functions below create them, for tests of your own code.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// This candidate leads now.
    #[non_exhaustive]
    BecameLeader {
        /// The number of the term. Pass it with every effect.
        token: Token,
        /// The checkpoint that the last leader saved.
        checkpoint: Option<Checkpoint>,
    },
    /// This candidate holds the lease and does not lead yet, because an earlier leader may still be working whose lease the
    /// store has lost. It leads when the wait is over, unless it loses the lease first.
    #[non_exhaustive]
    Starting {
        /// The number of the term.
        token: Token,
        /// The length of the wait, and its reason.
        wait: StartupWait,
    },
    /// This candidate does not lead any more.
    #[non_exhaustive]
    LostLeadership {
        /// The term that ended.
        token: Token,
        /// The reason why it ended.
        why: EndReason,
    },
    /// The store has confirmed that the lease of this term was released.
    #[non_exhaustive]
    Released {
        /// The term that ended.
        token: Token,
    },
    /// Another candidate leads now, or no known candidate does.
    #[non_exhaustive]
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

impl Event {
    /// Creates an [`Event::BecameLeader`].
    pub fn became_leader(token: Token, checkpoint: Option<Checkpoint>) -> Event {
        Event::BecameLeader { token, checkpoint }
    }

    /// Creates an [`Event::Starting`].
    pub fn starting(token: Token, wait: StartupWait) -> Event {
        Event::Starting { token, wait }
    }

    /// Creates an [`Event::LostLeadership`].
    pub fn lost_leadership(token: Token, why: EndReason) -> Event {
        Event::LostLeadership { token, why }
    }

    /// Creates an [`Event::Released`].
    pub fn released(token: Token) -> Event {
        Event::Released { token }
    }

    /// Creates an [`Event::LeaderChanged`].
    pub fn leader_changed(from: Option<&str>, to: Option<&str>) -> Event {
        Event::LeaderChanged { from: from.map(str::to_owned), to: to.map(str::to_owned) }
    }
}
