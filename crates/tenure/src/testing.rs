//! Parts for tests of an application's own work, without a store.

mod term;

pub use term::{TermControl, term, term_after};
