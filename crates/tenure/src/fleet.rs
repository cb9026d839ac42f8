//! The fleet: many leases, dealt out fairly over however many members are running.

pub mod control;
mod shard;
pub mod source;

pub use shard::{Shard, fleet_name, leases_prefix, member_of, node, nodes_prefix};
