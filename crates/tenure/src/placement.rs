//! PURE: who should own which shard.
