//! PURE: expiry judged by watching a record not change.
//!
//! Without a clock that both sides share (a directory mounted after another boot, Kubernetes), a challenger waits until the
//! record has not changed for the *record's* TTL on the challenger's own clock. Then only the rates of the two clocks matter,
//! never their values.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Moment;
use crate::lease::Name;

/// Added to every wait, for timers that fire slightly early and for the time between two clock reads.
const EXPIRY_SLACK: Duration = Duration::from_millis(5);

/// The records that one process has observed and does not hold.
///
/// `mark` is any value that changes with every write of the record, such as a hash of its bytes.
#[derive(Debug, Default)]
pub struct Observations(HashMap<Name, ObservedRecord>);

#[derive(Debug)]
struct ObservedRecord {
    mark: u128,
    first: Moment,
}

impl Observations {
    /// How long the record must remain unchanged before its holder's time has certainly expired; zero if it has. A record that
    /// is observed for the first time, or has changed since, must remain unchanged for its whole TTL.
    ///
    /// `ttl` is the TTL of the record; `drift_ppm` is how far the rate of the holder's clock may differ from the local one.
    pub fn left(
        &mut self,
        name: &Name,
        mark: u128,
        ttl: Duration,
        drift_ppm: u32,
        now: Moment,
    ) -> Duration {
        let whole = lengthened(ttl, drift_ppm) + EXPIRY_SLACK;
        let observed = self.0.entry(name.clone()).or_insert(ObservedRecord { mark, first: now });
        if observed.mark != mark {
            *observed = ObservedRecord { mark, first: now };
        }
        whole.saturating_sub(now.since(observed.first))
    }

    /// Forgets a record that this process now holds, or that was released: the next observation counts as the first.
    pub fn forget(&mut self, name: &Name) {
        self.0.remove(name);
    }
}

/// The time to wait so that a clock that is slower by the drift has counted `duration`.
pub(crate) fn lengthened(duration: Duration, drift_ppm: u32) -> Duration {
    duration + drift_of(duration, drift_ppm)
}

/// The time that certainly remains on the local clock if a clock that is faster by the drift counts `duration`.
pub(crate) fn shortened(duration: Duration, drift_ppm: u32) -> Duration {
    duration.saturating_sub(drift_of(duration, drift_ppm))
}

/// The drift of `duration`. Rounded up, so that both callers err on the safe side.
fn drift_of(duration: Duration, drift_ppm: u32) -> Duration {
    let nanos = duration.as_nanos().saturating_mul(u128::from(drift_ppm)).div_ceil(1_000_000);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);
    const WHOLE: Duration = Duration::from_millis(10_015);

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(5_000_000_000) + Duration::from_millis(ms)
    }

    #[test]
    fn a_first_observation_and_every_change_wait_the_whole_ttl() {
        let name = Name::new("a").unwrap();
        let mut observed = Observations::default();
        assert_eq!(observed.left(&name, 1, TTL, 1_000, at(0)), WHOLE);
        assert_eq!(observed.left(&name, 1, TTL, 1_000, at(4_000)), WHOLE - Duration::from_secs(4));
        assert_eq!(observed.left(&name, 2, TTL, 1_000, at(9_000)), WHOLE);
        assert_eq!(observed.left(&name, 2, TTL, 1_000, at(19_014)), Duration::from_millis(1));
        assert_eq!(observed.left(&name, 2, TTL, 1_000, at(19_015)), Duration::ZERO);
        observed.forget(&name);
        assert_eq!(observed.left(&name, 2, TTL, 1_000, at(30_000)), WHOLE);
    }

    #[test]
    fn names_are_observed_independently() {
        let mut observed = Observations::default();
        observed.left(&Name::new("a").unwrap(), 1, TTL, 0, at(0));
        let left = observed.left(&Name::new("b").unwrap(), 1, TTL, 0, at(60_000));
        assert_eq!(left, TTL + EXPIRY_SLACK);
    }

    #[test]
    fn drift_is_rounded_to_the_safe_side() {
        assert_eq!(lengthened(Duration::from_nanos(1), 1), Duration::from_nanos(2));
        assert_eq!(shortened(Duration::from_nanos(1), 1), Duration::ZERO);
    }
}
