//! [`RenewalStats`]: the number, duration and errors of a candidate's renewals, for metrics. Only the driver observes them.

use std::time::Duration;

use crate::error::{Kind, Result};
use crate::histogram::Histogram;
use crate::lease::Answer;

/// Durations and errors of the renewals since the candidate started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenewalStats {
    /// The durations of the successful renewals.
    pub durations: Histogram,
    /// The store answered that this candidate no longer holds the lease.
    pub refused: u64,
    /// The store did not answer in time.
    pub unavailable: u64,
    /// The store answered that an operator must act.
    pub denied: u64,
    /// The stored record is not a lease of Tenure.
    pub corrupt: u64,
    /// All other errors.
    pub other: u64,
}

/// From a store on the same machine to a store that is about to time out.
const BOUNDS: [Duration; Histogram::BUCKETS] = [
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
];

impl Default for RenewalStats {
    fn default() -> RenewalStats {
        RenewalStats {
            durations: Histogram::new(BOUNDS),
            refused: 0,
            unavailable: 0,
            denied: 0,
            corrupt: 0,
            other: 0,
        }
    }
}

impl RenewalStats {
    pub(crate) fn note(&mut self, took: Duration, answer: &Result<Answer>) {
        match answer {
            Ok(Answer::Held(())) => self.durations.record(took),
            Ok(Answer::Taken(_)) => self.refused += 1,
            Err(error) => match error.kind() {
                Kind::Unavailable => self.unavailable += 1,
                Kind::Denied => self.denied += 1,
                Kind::Corrupt => self.corrupt += 1,
                Kind::Invalid => self.other += 1,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn each_renewal_is_counted_once() {
        let mut renewals = RenewalStats::default();
        for took in [0, 500, 501, 3_000_000] {
            renewals.note(Duration::from_micros(took), &Ok(Answer::Held(())));
        }
        renewals.note(Duration::ZERO, &Err(Error::unavailable("gone")));
        renewals.note(Duration::ZERO, &Err(Error::denied("no")));
        let durations = &renewals.durations;
        assert_eq!((durations.count, durations.sum), (4, Duration::from_micros(3_001_001)));
        let counts: Vec<u64> = durations.buckets().map(|(_, count)| count).collect();
        assert_eq!(counts[..3], [2, 1, 0]);
        assert_eq!(counts.iter().sum::<u64>(), 3, "one took longer than all bounds");
        assert_eq!((renewals.unavailable, renewals.denied, renewals.refused), (1, 1, 0));
    }
}
