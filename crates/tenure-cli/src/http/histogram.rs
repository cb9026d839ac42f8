//! PURE: a histogram of durations.

use std::time::Duration;

/// The upper bounds of the classes. Runs take from almost no time to most of an hour.
const BOUNDS: [Duration; 12] = [
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(300),
    Duration::from_secs(900),
    Duration::from_secs(3600),
];

/// Counts durations by class.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    pub(super) count: u64,
    pub(super) sum: Duration,
    within: [u64; BOUNDS.len()],
}

impl Histogram {
    pub(super) fn record(&mut self, took: Duration) {
        self.count += 1;
        self.sum = self.sum.saturating_add(took);
        if let Some(class) = BOUNDS.iter().position(|bound| took <= *bound) {
            self.within[class] += 1;
        }
    }

    /// Each upper bound, with the number of durations above the previous bound and up to this one.
    pub(super) fn classes(&self) -> impl Iterator<Item = (Duration, u64)> {
        BOUNDS.into_iter().zip(self.within)
    }
}
