//! PURE: the durations of an election, their defaults, and one error sentence for each contradiction between them.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::observation::shortened;
use crate::store::Limits;

/// With four seconds, a machine that vanishes is replaced in less than five.
const DEFAULT_TTL: Duration = Duration::from_secs(4);
const DEFAULT_DRIFT_PPM: u32 = 1_000;
/// A clock with more drift is broken, and no lease can rely on it.
const MAX_DRIFT_PPM: u32 = 100_000;
/// A request that takes longer has failed, for any TTL.
const MAX_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A renewal is at most one step of this grid early, see [`align_to_grid`].
const GRID_STEPS_PER_PERIOD: u32 = 100;

/// The durations that the caller has set; `None` is the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimingOptions {
    /// The length of the lease; default 4 s.
    pub ttl: Option<Duration>,
    /// How often the leader renews; default TTL/3.
    pub renew_every: Option<Duration>,
    /// The longest time between two polls of a waiting candidate; default the TTL.
    pub retry: Option<Duration>,
    /// How long renewals may keep failing before the leader stops; default until the deadline.
    pub grace: Option<Duration>,
    /// The margin between the end of the lease and the leader's deadline; default TTL/10.
    pub margin: Option<Duration>,
    /// The time that the work has to stop before the deadline; default TTL/5.
    pub stop_within: Option<Duration>,
    /// How far clocks may drift apart, in millionths; default 1000.
    pub drift_ppm: Option<u32>,
}

/// The validated durations of an election.
///
/// ```
/// use std::time::Duration;
/// use tenure::store::{Grade, Limits};
/// use tenure::timing::{TimingOptions, Timing};
///
/// let timing = Timing::new(&TimingOptions::default(), &Limits::new(Grade::B))?;
/// assert_eq!(timing.ttl, Duration::from_secs(4));
///
/// let mut wrong = TimingOptions::default();
/// wrong.renew_every = Some(Duration::from_secs(9));
/// assert!(Timing::new(&wrong, &Limits::new(Grade::B)).is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// The length of the lease.
    pub ttl: Duration,
    /// How often the leader renews.
    pub renew_every: Duration,
    /// The longest time between two polls of a waiting candidate.
    pub retry: Duration,
    /// How long renewals may keep failing before the leader stops; `None`: until the deadline.
    pub grace: Option<Duration>,
    /// The margin between the end of the lease and the leader's deadline.
    pub margin: Duration,
    /// The time that the work has to stop before the deadline.
    pub stop_within: Duration,
    /// How far clocks may drift apart, in millionths.
    pub drift_ppm: u32,
}

impl Timing {
    /// Fills in the defaults and validates the durations. A default below the store's minimum becomes the minimum; an explicit
    /// value below it is refused.
    pub fn new(options: &TimingOptions, limits: &Limits) -> Result<Self> {
        let ttl = match options.ttl {
            Some(ttl) => ttl,
            None => DEFAULT_TTL.clamp(limits.min_ttl, limits.max_ttl),
        };
        let timing = Timing {
            ttl,
            renew_every: options.renew_every.unwrap_or(ttl / 3),
            retry: options.retry.unwrap_or(ttl),
            grace: options.grace,
            margin: options.margin.unwrap_or(ttl / 10),
            stop_within: options.stop_within.unwrap_or(ttl / 5),
            drift_ppm: options.drift_ppm.unwrap_or(DEFAULT_DRIFT_PPM),
        };
        match timing.contradiction(limits) {
            Some(sentence) => Err(Error::invalid(sentence)),
            None => Ok(timing),
        }
    }

    fn contradiction(&self, limits: &Limits) -> Option<String> {
        let Timing { ttl, renew_every, margin, stop_within, drift_ppm, .. } = *self;
        let usable = self.usable();
        Some(if ttl.is_zero() {
            "the lease duration must not be zero".to_owned()
        } else if ttl < limits.min_ttl {
            let least = limits.min_ttl;
            format!("this store takes leases of {least:?} and more; {ttl:?} was given")
        } else if ttl > limits.max_ttl {
            let most = limits.max_ttl;
            format!("this store takes leases of {most:?} and less; {ttl:?} was given")
        } else if drift_ppm > MAX_DRIFT_PPM {
            format!(
                "a drift of {drift_ppm} ppm is more than {MAX_DRIFT_PPM}: mend the clocks instead"
            )
        } else if renew_every.is_zero() {
            "the renewal interval must not be zero".to_owned()
        } else if renew_every >= ttl {
            format!(
                "the renewal interval ({renew_every:?}) must be shorter than the lease ({ttl:?})"
            )
        } else if self.retry.is_zero() {
            "the retry period must not be zero".to_owned()
        } else if usable < ttl / 5 {
            format!(
                "margin ({margin:?}) and time to stop ({stop_within:?}) leave only {usable:?} of a lease of {ttl:?}: \
                 make the lease longer or those shorter"
            )
        } else if usable.saturating_sub(renew_every) < ttl / 10 {
            format!(
                "no two tries to renew fit between the renewal after {renew_every:?} and the time to stop after \
                 {usable:?}: renew more often, or make the lease longer"
            )
        } else if self.grace.is_some_and(|grace| grace >= ttl) {
            format!("the grace period ({:?}) must be shorter than the lease ({ttl:?})", self.grace?)
        } else {
            return None;
        })
    }

    /// Warns about durations that are valid but unwise.
    pub fn warning(&self) -> Option<String> {
        let warnings = [self.short_lease(), self.short_grace(), self.idle_grace()];
        let warnings: Vec<String> = warnings.into_iter().flatten().collect();
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }

    fn short_lease(&self) -> Option<String> {
        (self.ttl < self.renew_every * 2).then(|| {
            format!(
                "a lease of {:?} is less than twice the renewal interval of {:?}: one lost request may cost the leadership",
                self.ttl, self.renew_every
            )
        })
    }

    fn short_grace(&self) -> Option<String> {
        let (grace, request) = (self.grace?, self.try_for());
        (grace < request).then(|| {
            format!(
                "the grace period of {grace:?} is shorter than a request may take ({request:?}): one lost reply costs the leadership"
            )
        })
    }

    /// Warns about a grace period that the deadline always precedes: the first renewal that can fail is sent
    /// [`renew_every`](Timing::renew_every) after the last successful one, and the work stops by the deadline of that one.
    fn idle_grace(&self) -> Option<String> {
        let grace = self.grace?;
        let first_failure = self.renew_every - self.renew_every / GRID_STEPS_PER_PERIOD;
        let left = self.usable().saturating_sub(first_failure);
        let shown = Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        (grace >= left).then(|| {
            format!(
                "the grace period of {grace:?} never acts: the deadline stops the work {shown:?} after the first failed renewal, \
                 or earlier"
            )
        })
    }

    /// The deadline of a leader whose last successful request was sent at `sent`.
    pub fn deadline(&self, sent: Moment) -> Moment {
        sent + shortened(self.ttl, self.drift_ppm).saturating_sub(self.margin)
    }

    /// When the work is notified to stop at the latest.
    pub fn stop_at(&self, deadline: Moment) -> Moment {
        deadline.before(self.stop_within)
    }

    /// The timeout of one request: three fit between a renewal and the time to stop.
    pub fn try_for(&self) -> Duration {
        (self.usable().saturating_sub(self.renew_every) / 3)
            .clamp(Duration::from_millis(1), MAX_REQUEST_TIMEOUT)
    }

    /// When to renew a lease whose last request was sent at `sent`.
    pub fn renew_at(&self, sent: Moment) -> Moment {
        align_to_grid(sent + self.renew_every, self.renew_every)
    }

    /// How far the store's clock may run ahead of the local clock before a waiting candidate distrusts it: as far as the
    /// holder's own margin compensates.
    pub(crate) fn tolerance(&self, holders_ttl: Duration) -> Duration {
        self.margin.min(holders_ttl / 10)
    }

    /// The time from sending a successful request to the time to stop.
    fn usable(&self) -> Duration {
        shortened(self.ttl, self.drift_ppm)
            .saturating_sub(self.margin)
            .saturating_sub(self.stop_within)
    }
}

/// Moves `due` at most a hundredth of the period earlier, so that the periodic requests of one process for many leases are
/// batched.
pub(crate) fn align_to_grid(due: Moment, period: Duration) -> Moment {
    let step =
        u64::try_from((period / GRID_STEPS_PER_PERIOD).as_nanos()).unwrap_or(u64::MAX).max(1);
    Moment::from_nanos(due.as_nanos() - due.as_nanos() % step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::store::Grade;

    const fn secs(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    fn error_of(options: TimingOptions) -> String {
        let error = Timing::new(&options, &Limits::new(Grade::B)).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        error.to_string()
    }

    #[test]
    fn the_defaults_are_those_of_the_design() {
        let timing = Timing::new(&TimingOptions::default(), &Limits::new(Grade::B)).unwrap();
        assert_eq!(timing.ttl, Duration::from_secs(4));
        assert_eq!(timing.renew_every, Duration::from_secs(4) / 3);
        assert_eq!(timing.margin, Duration::from_millis(400));
        assert_eq!(timing.stop_within, Duration::from_millis(800));
        assert_eq!(timing.warning(), None);
        let sent = Moment::from_nanos(1_000_000_000);
        assert_eq!(timing.deadline(sent), sent + Duration::from_millis(3_596));
        assert_eq!(timing.stop_at(timing.deadline(sent)), sent + Duration::from_millis(2_796));
        assert!(timing.renew_every + 2 * timing.try_for() < Duration::from_millis(2_796));
    }

    #[test]
    fn each_contradiction_has_its_own_error() {
        let none = TimingOptions::default();
        for (options, says) in [
            (TimingOptions { ttl: secs(0), ..none.clone() }, "must not be zero"),
            (
                TimingOptions { ttl: Some(Duration::from_millis(99)), ..none.clone() },
                "100ms and more",
            ),
            (TimingOptions { ttl: secs(100_000), ..none.clone() }, "86400s and less"),
            (
                TimingOptions { renew_every: secs(0), ..none.clone() },
                "renewal interval must not be zero",
            ),
            (TimingOptions { renew_every: secs(4), ..none.clone() }, "shorter than the lease"),
            (TimingOptions { renew_every: secs(3), ..none.clone() }, "no two tries"),
            (TimingOptions { margin: secs(3), ..none.clone() }, "leave only"),
            (TimingOptions { stop_within: secs(9), ..none.clone() }, "leave only"),
            (TimingOptions { grace: secs(4), ..none.clone() }, "grace period"),
            (TimingOptions { drift_ppm: Some(200_000), ..none.clone() }, "mend the clocks"),
            (TimingOptions { retry: secs(0), ..none.clone() }, "retry period"),
        ] {
            let text = error_of(options);
            assert!(text.contains(says), "{says}: {text}");
        }
    }

    #[test]
    fn a_default_below_the_floor_becomes_the_floor() {
        let mut limits = Limits::new(Grade::A);
        limits.min_ttl = Duration::from_secs(10);
        let timing = Timing::new(&TimingOptions::default(), &limits).unwrap();
        assert_eq!(timing.ttl, Duration::from_secs(10));
        let given = TimingOptions { ttl: secs(4), ..TimingOptions::default() };
        assert!(Timing::new(&given, &limits).is_err());
    }

    #[test]
    fn a_lease_of_less_than_two_renewals_is_warned_about() {
        let options = TimingOptions {
            renew_every: Some(Duration::from_millis(2_200)),
            ..TimingOptions::default()
        };
        let timing = Timing::new(&options, &Limits::new(Grade::B)).unwrap();
        assert!(timing.warning().unwrap().contains("less than twice"));
    }

    #[test]
    fn a_grace_period_that_cannot_act_is_warned_about_with_both_numbers() {
        let warning = |grace_ms| {
            let grace = Some(Duration::from_millis(grace_ms));
            let options = TimingOptions { grace, ..TimingOptions::default() };
            Timing::new(&options, &Limits::new(Grade::B)).unwrap().warning()
        };
        assert_eq!((warning(500), warning(1_400)), (None, None));
        let text = warning(400).unwrap();
        assert!(text.contains("(487.555555ms): one lost reply costs the leadership"), "{text}");
        for grace_ms in [1_500, 2_796, 3_999] {
            let text = warning(grace_ms).unwrap();
            let grace = Duration::from_millis(grace_ms);
            assert!(text.contains(&format!("the grace period of {grace:?} never acts")), "{text}");
            assert!(text.contains("the deadline stops the work 1.476s after"), "{text}");
        }
        let both = TimingOptions {
            grace: secs(3),
            renew_every: Some(Duration::from_millis(2_200)),
            ..TimingOptions::default()
        };
        let text = Timing::new(&both, &Limits::new(Grade::B)).unwrap().warning().unwrap();
        assert!(text.contains("less than twice") && text.contains("never acts"), "{text}");
    }
}
