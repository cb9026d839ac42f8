//! PURE: expiry judged by watching a record not change.
//!
//! Where a store has no clock that both sides share (a directory seen from another boot, Kubernetes), a
//! challenger waits until the record has not changed for the *record's* TTL on its own clock. Only the
//! rate of the two clocks matters then, never what they show.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Moment;
use crate::lease::Name;

/// Added to every wait, for timers that fire a little early and clocks read in between.
const SLACK: Duration = Duration::from_millis(5);

/// What one process has seen of the records it does not hold.
///
/// `mark` is anything that changes with every write of the record, such as a hash of its bytes.
#[derive(Debug, Default)]
pub struct Observations(HashMap<Name, ObservedRecord>);

#[derive(Debug)]
struct ObservedRecord {
    mark: u128,
    first: Moment,
}

impl Observations {
    /// How long the record must still stay as it is before its holder's time has certainly run out: zero
    /// when it has. A record seen for the first time, or changed since, has its whole TTL before it.
    ///
    /// `ttl` is the record's own; `drift_ppm` how fast the holder's clock may run against ours.
    pub fn left(
        &mut self,
        name: &Name,
        mark: u128,
        ttl: Duration,
        drift_ppm: u32,
        now: Moment,
    ) -> Duration {
        let whole = lengthened(ttl, drift_ppm) + SLACK;
        let seen = self.0.entry(name.clone()).or_insert(ObservedRecord { mark, first: now });
        if seen.mark != mark {
            *seen = ObservedRecord { mark, first: now };
        }
        whole.saturating_sub(now.since(seen.first))
    }

    /// Forgets a record that is ours now or was released: the next sight of it is a first one.
    pub fn forget(&mut self, name: &Name) {
        self.0.remove(name);
    }
}

/// How long to wait so that a clock running slower by the drift has counted `duration`.
pub(crate) fn lengthened(duration: Duration, drift_ppm: u32) -> Duration {
    duration + part(duration, drift_ppm)
}

/// How much of `duration` is certain to be there on a clock running faster by the drift.
pub(crate) fn shortened(duration: Duration, drift_ppm: u32) -> Duration {
    duration.saturating_sub(part(duration, drift_ppm))
}

/// Rounded up: both uses err on the safe side.
fn part(duration: Duration, drift_ppm: u32) -> Duration {
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
    fn a_first_sight_waits_the_whole_ttl_and_a_change_begins_anew() {
        let name = Name::new("a").unwrap();
        let mut seen = Observations::default();
        assert_eq!(seen.left(&name, 1, TTL, 1_000, at(0)), WHOLE);
        assert_eq!(seen.left(&name, 1, TTL, 1_000, at(4_000)), WHOLE - Duration::from_secs(4));
        assert_eq!(seen.left(&name, 2, TTL, 1_000, at(9_000)), WHOLE);
        assert_eq!(seen.left(&name, 2, TTL, 1_000, at(19_014)), Duration::from_millis(1));
        assert_eq!(seen.left(&name, 2, TTL, 1_000, at(19_015)), Duration::ZERO);
        seen.forget(&name);
        assert_eq!(seen.left(&name, 2, TTL, 1_000, at(30_000)), WHOLE);
    }

    #[test]
    fn one_name_says_nothing_about_another() {
        let mut seen = Observations::default();
        seen.left(&Name::new("a").unwrap(), 1, TTL, 0, at(0));
        let left = seen.left(&Name::new("b").unwrap(), 1, TTL, 0, at(60_000));
        assert_eq!(left, TTL + SLACK);
    }

    #[test]
    fn drift_is_rounded_to_the_safe_side() {
        assert_eq!(lengthened(Duration::from_nanos(1), 1), Duration::from_nanos(2));
        assert_eq!(shortened(Duration::from_nanos(1), 1), Duration::ZERO);
    }
}
