//! Where shards come from.
