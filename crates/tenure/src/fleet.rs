//! The fleet: many leases, dealt out fairly over however many members are running.

pub mod control;
mod shard;
pub mod source;

pub use shard::Shard;
