//! The name of a shard, and of the lease that belongs to it.

/// One piece of work: any UTF-8, up to 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(std::sync::Arc<str>);
