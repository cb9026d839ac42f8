//! PURE: [`Histogram`], which counts durations, for metrics.

use std::time::Duration;

/// A count of durations by upper bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The number of durations.
    pub count: u64,
    /// The sum of all durations.
    pub sum: Duration,
    buckets: [(Duration, u64); Histogram::BUCKETS],
}

impl Histogram {
    /// The number of upper bounds.
    pub const BUCKETS: usize = 12;

    /// An empty histogram with these upper bounds, in ascending order.
    #[must_use]
    pub fn new(bounds: [Duration; Histogram::BUCKETS]) -> Histogram {
        Histogram { count: 0, sum: Duration::ZERO, buckets: bounds.map(|bound| (bound, 0)) }
    }

    /// Counts one duration. A duration above the last bound is only in the count and in the sum.
    pub fn record(&mut self, duration: Duration) {
        self.count += 1;
        self.sum = self.sum.saturating_add(duration);
        if let Some((_, count)) = self.buckets.iter_mut().find(|(bound, _)| duration <= *bound) {
            *count += 1;
        }
    }

    /// Each upper bound, with the number of durations above the previous bound and up to this one.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        self.buckets.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_counted_in_one_bucket() {
        let mut histogram = Histogram::new(std::array::from_fn(|n| Duration::from_secs(n as u64)));
        for duration in [0, 1_000, 1_001, 60_000] {
            histogram.record(Duration::from_millis(duration));
        }
        assert_eq!((histogram.count, histogram.sum), (4, Duration::from_millis(62_001)));
        let counts: Vec<u64> = histogram.buckets().map(|(_, count)| count).collect();
        assert_eq!(counts[..4], [1, 1, 1, 0]);
        assert_eq!(counts.iter().sum::<u64>(), 3, "one is above all bounds");
    }
}
