//! Facts for the invariants: everything that happens, in true time, as an omniscient observer records it.

use tenure::{Hold, Nonce, Token};
use tenure_rig::simulation::clock::Time;

pub(crate) type NodeIndex = usize;

#[derive(Clone, Debug)]
pub(crate) enum Fact {
    /// A term began. The node considers itself the leader until `until`.
    Led {
        node: NodeIndex,
        token: Token,
        until: Time,
    },
    /// The node now considers itself the leader until `until`.
    Extended {
        node: NodeIndex,
        token: Token,
        until: Time,
    },
    /// The work was notified to stop. It may have effects until `until` at the latest. `wanted`: a request or a shutdown was
    /// the reason.
    StopRequested {
        node: NodeIndex,
        until: Time,
        wanted: bool,
    },
    WorkEnded {
        node: NodeIndex,
    },
    /// The process crashed, and its work with it.
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
    /// A candidate with this TTL sent a request to the store.
    Called {
        node: NodeIndex,
        ttl: Time,
    },
    /// A renewal or release under `hold` changed a record that was held by `was`.
    ChangedBy {
        hold: Hold,
        was: Option<(Option<Nonce>, Token)>,
    },
    /// The store granted a lease. `garbage`: the record was garbage.
    Granted {
        garbage: bool,
    },
    /// A candidate considers itself the leader until `until`; the store keeps its lease until `expiry`.
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
    /// The world is calm: nothing is lost, no process is paused, enough candidates campaign, and earlier faults are over.
    /// Recorded before each exercise.
    Calm,
    /// In the calm: the leader's process died; the bound of the gap.
    LeaderDied {
        bound: Time,
    },
    /// In the calm: the leader was requested to resign, and another candidate is ready; the bound of the gap.
    Resigned {
        bound: Time,
    },
    /// In the calm: the lease becomes free now; the campaigning candidates with the lowest rank.
    Preferred {
        nodes: Vec<NodeIndex>,
    },
    /// The world ends.
    Over,
}
