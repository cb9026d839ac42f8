//! [`RenewalStats`]: the number, duration and errors of a candidate's renewals, for metrics. Only the driver observes them.

use std::time::Duration;

use crate::error::{Kind, Result};
use crate::lease::Answer;

/// Durations and errors of the renewals since the candidate started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenewalStats {
    /// The number of successful renewals.
    pub count: u64,
    /// The total duration of the successful renewals.
    pub sum: Duration,
    /// How many of them took at most each of [`RenewalStats::BOUNDS`], and longer than the bound before it.
    pub within: [u64; RenewalStats::BOUNDS.len()],
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

impl RenewalStats {
    /// The bounds of the duration histogram: from a store on the same machine to one that is about to time out.
    pub const BOUNDS: [Duration; 12] = [
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

    pub(crate) fn note(&mut self, took: Duration, answer: &Result<Answer>) {
        match answer {
            Ok(Answer::Held(())) => {
                self.count += 1;
                self.sum = self.sum.saturating_add(took);
                let bound = RenewalStats::BOUNDS.iter().position(|bound| took <= *bound);
                // A renewal that took longer than the last bound is only in the count.
                if let Some(bound) = bound {
                    self.within[bound] += 1;
                }
            }
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
        assert_eq!((renewals.count, renewals.sum), (4, Duration::from_micros(3_001_001)));
        assert_eq!(renewals.within[..3], [2, 1, 0]);
        assert_eq!(renewals.within.iter().sum::<u64>(), 3, "one took longer than all bounds");
        assert_eq!((renewals.unavailable, renewals.denied, renewals.refused), (1, 1, 0));
    }
}
