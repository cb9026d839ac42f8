//! What the two simulations share: skewed clocks, an event queue, and seeds on all cores.

pub mod clock;
pub mod parallel_seeds;
pub mod queue;
