//! The output of the planner: the steps for the coordinator, the reason of a revocation, and the coverage of the shards.

use super::ShardNumber;
use crate::fleet::Shard;
use crate::lease::CandidateId;

/// One step of a plan: what the coordinator must do about a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanStep {
    /// The shard is new: observe its lease from now on, without a campaign.
    Add(ShardNumber, Shard),
    /// Campaign for it.
    Claim(ShardNumber),
    /// Stop the campaign for it.
    Withdraw(ShardNumber),
    /// End its work, then release it and name the member that should own it next.
    Release(ShardNumber, Option<CandidateId>, Reason),
    /// The shard was removed: end its work and release it, if this member owns it, and forget it.
    Remove(ShardNumber, Reason),
}

/// Why a shard was revoked from its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Another member should own it.
    Rebalance,
    /// This member leaves the fleet.
    Shutdown,
    /// Its lease, or the membership lease, could not be renewed.
    Expired,
    /// An operator, or the source, has paused it.
    Paused,
    /// An operator has drained this member.
    Drain,
    /// This member is unhealthy.
    Unhealthy,
    /// The source of shards does not list it any more.
    Removed,
    /// The application released it, or its work in [`Fleet::run`](crate::Fleet::run) has ended by itself.
    Released,
    /// The application dropped every handle of it without a release.
    Dropped,
    /// Its work in [`Fleet::run`](crate::Fleet::run) panicked.
    Panicked,
}

impl Reason {
    /// The word used in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Rebalance => "rebalance",
            Reason::Shutdown => "shutdown",
            Reason::Expired => "expired",
            Reason::Paused => "paused",
            Reason::Drain => "drain",
            Reason::Unhealthy => "unhealthy",
            Reason::Removed => "removed",
            Reason::Released => "released",
            Reason::Dropped => "dropped",
            Reason::Panicked => "panicked",
        }
    }
}

/// How many shards have an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coverage {
    /// All shards that the source lists.
    pub shards: usize,
    /// Paused shards, which no member should own.
    pub paused: usize,
    /// Shards that this member owns.
    pub mine: usize,
    /// Shards without an owner, as far as this member has observed.
    pub free: usize,
    /// Shards that have had no owner for longer than a TTL.
    pub unowned: usize,
}
