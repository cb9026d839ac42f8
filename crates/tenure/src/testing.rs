//! For tests of your own code (feature `testing`): [`term`], a term that a test can end, without a store; [`FaultyStore`], a store
//! with injected errors and delays.
//!
//! The chapter [`docs::testing`](crate::docs::testing) shows how to test code that runs only on the leader.

mod faulty_store;
mod store_fault;
mod term;

pub use faulty_store::FaultyStore;
pub use store_fault::{StoreFault, StoreOperation};
pub use term::{TermControl, term, term_after};
