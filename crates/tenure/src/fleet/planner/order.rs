//! What a steward orders, why a shard is taken from its owner, and how many shards have one.

use super::ShardNumber;
use crate::fleet::Shard;
use crate::lease::CandidateId;

/// What is to be done about a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanStep {
    /// There is such a shard: look at its lease from now on, and do not campaign.
    Add(ShardNumber, Shard),
    /// Campaign for it.
    Claim(ShardNumber),
    /// Do not campaign for it any more.
    Rest(ShardNumber),
    /// End its work, then release it, and name who should come next.
    Leave(ShardNumber, Option<CandidateId>, Reason),
    /// There is no such shard any more: do the same where there is work, and forget it.
    Drop(ShardNumber, Reason),
}

/// Why a shard was taken from its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Somebody else should have it.
    Rebalance,
    /// This member leaves.
    Shutdown,
    /// Its lease, or the membership, could not be kept.
    Expired,
    /// Somebody has paused it.
    Paused,
    /// Somebody has drained this member.
    Drain,
    /// This member is not fit to work.
    Unhealthy,
    /// The source of shards does not name it any more.
    Removed,
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
        }
    }
}

/// How many shards have an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coverage {
    /// All that the source names.
    pub shards: usize,
    /// Those nobody should own now.
    pub paused: usize,
    /// Those this member owns.
    pub mine: usize,
    /// Those nobody owns, as far as is known here.
    pub free: usize,
    /// Those nobody has owned for longer than a TTL.
    pub unowned: usize,
}
