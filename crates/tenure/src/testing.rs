//! For tests of your own code (feature `testing`): [`FaultyStore`], a store with injected errors and delays.
//!
//! The chapter [`docs::testing`](crate::docs::testing) shows how to test code that runs only on the leader.

mod faulty_store;
mod store_fault;

pub use faulty_store::FaultyStore;
pub use store_fault::{StoreFault, StoreOperation};
