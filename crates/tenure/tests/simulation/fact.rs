//! What the invariants are told: everything that happened, in true time, as an onlooker who sees all would tell it.

use super::clock::Time;
use tenure::{Hold, Nonce, Token};

pub(crate) type NodeIndex = usize;

#[derive(Clone, Debug)]
pub(crate) enum Fact {
    /// A term began; its guard answers "held" until `until`.
    Led {
        node: NodeIndex,
        token: Token,
        until: Time,
    },
    /// Its guard now answers "held" until `until`.
    Extended {
        node: NodeIndex,
        token: Token,
        until: Time,
    },
    /// The work was told to stop; it may have effects until `until` at the latest. `wanted`: somebody asked for it.
    Told {
        node: NodeIndex,
        until: Time,
        wanted: bool,
    },
    WorkEnded {
        node: NodeIndex,
    },
    /// The process is gone, and its work with it.
    Crashed {
        node: NodeIndex,
    },
    SentRenew {
        hold: Hold,
    },
    SentRelease {
        node: NodeIndex,
        hold: Hold,
    },
    /// A candidate with this TTL asked something of the store.
    Called {
        node: NodeIndex,
        ttl: Time,
    },
    /// A renewal or release under `hold` changed a record that was held by `was`.
    ChangedBy {
        hold: Hold,
        was: Option<(Option<Nonce>, Token)>,
    },
    /// The store granted a lease; `garbage` lay there.
    Granted {
        garbage: bool,
    },
    /// A candidate believes until `until`, the store keeps the lease for it until `expiry`.
    Believes {
        until: Time,
        expiry: Option<Time>,
    },
    /// A save was acknowledged.
    Saved {
        value: u64,
    },
    /// A new leader found this checkpoint.
    Found {
        value: u64,
    },
    /// The world is calm: nothing is lost, nobody is paused, those that are willing are enough, and what was is over. Told before each
    /// exercise.
    Calm,
    /// In the calm: the leader's process died, and what bounds the gap.
    LeaderDied {
        bound: Time,
    },
    /// In the calm: the leader was asked to resign, and another one stands ready.
    Resigned {
        bound: Time,
    },
    /// In the calm: the lease becomes free now, and these campaign and have the lowest rank.
    Preferred {
        nodes: Vec<NodeIndex>,
    },
    /// The world ends.
    Over,
}
