//! [`StartupWait`]: a candidate holds a lease and does not lead yet; its reason, and how long a claim asks for.

use std::fmt;
use std::time::Duration;

/// How long the holder of a claimed lease waits before it leads.
///
/// Exhaustive on purpose: a store that did not understand a wait could let two candidates lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClaimedWait {
    /// As long as the store requires.
    #[default]
    AsRequired,
    /// At least this long, because the candidate remembers a leader whose lease the store may have lost. The store records it,
    /// so that no reader reports a leader in the meantime.
    AtLeast(StartupWait),
    /// No wait: the lease grants no right (presence, membership, a request), so no earlier holder can be working.
    Never,
}

/// A start-up wait: a candidate holds the lease and does not lead yet, because the store may have lost an earlier lease
/// that is still in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartupWait {
    /// The remaining wait of the holder.
    pub left: Duration,
    /// The reason for the wait.
    pub reason: WaitReason,
}

impl StartupWait {
    /// Creates a wait of this length.
    pub fn new(left: Duration, reason: WaitReason) -> Self {
        StartupWait { left, reason }
    }
}

/// The reason why the holder of a lease does not lead yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitReason {
    /// The store started a short time ago and is not durable, so it may have lost a lease.
    Restarted,
    /// The store started a short time ago, and the last term was not released: its holder may have renewed the lease, and the
    /// store may have kept an older state.
    Unreleased,
    /// The store was a replica until a short time ago and may lack what its primary granted.
    Promoted,
    /// The lease was deleted before it expired, so its holder may still be working.
    Deleted,
    /// The candidate itself observed a leader whose lease the store has lost, or a store clock that was set forward.
    Observed,
}

impl WaitReason {
    const ALL: [WaitReason; 5] = [
        WaitReason::Restarted,
        WaitReason::Unreleased,
        WaitReason::Promoted,
        WaitReason::Deleted,
        WaitReason::Observed,
    ];

    /// The word used in records, and as a label in metrics, logs and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            WaitReason::Restarted => "restarted",
            WaitReason::Unreleased => "unreleased",
            WaitReason::Promoted => "promoted",
            WaitReason::Deleted => "deleted",
            WaitReason::Observed => "observed",
        }
    }

    /// Parses the output of [`WaitReason::as_str`].
    pub fn parse(word: &str) -> Option<WaitReason> {
        WaitReason::ALL.into_iter().find(|reason| reason.as_str() == word)
    }
}

impl fmt::Display for WaitReason {
    /// Writes one clause for people: what happened, and what may follow from it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WaitReason::Restarted => {
                "the store started recently without a durable log and may have lost a lease that is still in use"
            }
            WaitReason::Unreleased => {
                "the store started recently and the last leader did not release its lease, so it may still be at work"
            }
            WaitReason::Promoted => {
                "the store was a replica until recently and may have lost a lease that is still in use"
            }
            WaitReason::Deleted => {
                "the lease was deleted before it expired, so its last holder may still be at work"
            }
            WaitReason::Observed => {
                "the store lost the lease of an earlier leader, or its clock was set, so that leader may still be at work"
            }
        })
    }
}
