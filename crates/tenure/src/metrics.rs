//! [`Metrics`]: what an election reports to the metrics of the application; `FacadeMetrics` (feature `metrics`) passes it to the
//! `metrics` crate.
//!
//! The chapter [`docs::observability`](crate::docs::observability) has the table of the metrics.

#[cfg(feature = "metrics")]
mod facade;
#[cfg(all(test, feature = "metrics"))]
mod facade_tests;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Kind, Result};
use crate::lease::{Answer, Name, StartupWait, Token};
use crate::machine::EndReason;

#[cfg(feature = "metrics")]
pub use facade::FacadeMetrics;

/// Gets the measurements of elections. Every method does nothing by default, so implement those that you need.
///
/// The driver calls these methods on its own thread, the thread that renews. So they must not block: no I/O, and no lock that is
/// held for long. Counting in atomics or in a client of a metrics system that does so is fine. A panic is caught and logged once.
///
/// One implementation can serve many elections; `name` is the name of the election.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tenure::machine::EndReason;
/// use tenure::metrics::Metrics;
/// use tenure::{Name, Token};
///
/// #[derive(Debug, Default)]
/// struct LostTerms(AtomicU64);
///
/// impl Metrics for LostTerms {
///     fn lost_leadership(&self, _name: &Name, _token: Token, reason: &EndReason) {
///         // A clean stop is no loss.
///         if reason.as_str() != "shutdown" {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let lost = LostTerms::default();
/// lost.lost_leadership(&Name::new("job")?, Token::new(7)?, &EndReason::Refused(None));
/// assert_eq!(lost.0.load(Ordering::Relaxed), 1);
/// # Ok::<(), tenure::Error>(())
/// ```
#[allow(unused_variables)] // The names of the arguments are part of the documentation.
pub trait Metrics: fmt::Debug + Send + Sync {
    /// This candidate leads now, in the term `token`.
    fn became_leader(&self, name: &Name, token: Token) {}

    /// This candidate does not lead any more, for this reason.
    fn lost_leadership(&self, name: &Name, token: Token, reason: &EndReason) {}

    /// This candidate learnt that another candidate leads, itself included, or that none does.
    fn leader_changed(&self, name: &Name, leader: Option<&str>) {}

    /// This candidate holds the lease and does not lead before this start-up wait is over.
    fn starting(&self, name: &Name, wait: &StartupWait) {}

    /// The store granted a renewal, after this time.
    fn renewed(&self, name: &Name, took: Duration) {}

    /// A renewal failed. The leader retries until it is time to stop.
    fn renewal_failed(&self, name: &Name, failure: RenewalFailure) {}

    /// Whether the store answers: called for its first answer, and when that changes.
    fn store_reachable(&self, name: &Name, reachable: bool) {}

    /// A subscriber of the events was too slow and has missed this many events.
    fn events_dropped(&self, name: &Name, count: u64) {}
}

/// Why a renewal failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RenewalFailure {
    /// The store answered that this candidate no longer holds the lease.
    Refused,
    /// The store did not answer in time.
    Unavailable,
    /// The store answered that an operator must act.
    Denied,
    /// The stored record is not a lease of Tenure.
    Corrupt,
    /// Any other error.
    Other,
}

impl RenewalFailure {
    /// All failures, for metrics that list each of them from the start.
    pub const ALL: [RenewalFailure; 5] = [
        RenewalFailure::Refused,
        RenewalFailure::Unavailable,
        RenewalFailure::Denied,
        RenewalFailure::Corrupt,
        RenewalFailure::Other,
    ];

    /// The failure of a renewal with this answer; `None` if the renewal was granted.
    pub fn of(answer: &Result<Answer>) -> Option<RenewalFailure> {
        match answer {
            Ok(Answer::Held(())) => None,
            Ok(Answer::Taken(_)) => Some(RenewalFailure::Refused),
            Err(error) => Some(match error.kind() {
                Kind::Unavailable => RenewalFailure::Unavailable,
                Kind::Denied => RenewalFailure::Denied,
                Kind::Corrupt => RenewalFailure::Corrupt,
                Kind::Invalid => RenewalFailure::Other,
            }),
        }
    }

    /// The word used as a label in metrics, logs and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            RenewalFailure::Refused => "refused",
            RenewalFailure::Unavailable => "unavailable",
            RenewalFailure::Denied => "denied",
            RenewalFailure::Corrupt => "corrupt",
            RenewalFailure::Other => "other",
        }
    }
}

/// Passes the measurements of one election to the application's [`Metrics`], if it has set any. A panic there must not end the
/// driver's thread: the term would end with it.
#[derive(Debug)]
pub(crate) struct MetricsReporter {
    name: Name,
    metrics: Option<Arc<dyn Metrics>>,
    has_panicked: AtomicBool,
}

impl MetricsReporter {
    pub(crate) fn new(name: &Name, metrics: Option<Arc<dyn Metrics>>) -> Self {
        MetricsReporter { name: name.clone(), metrics, has_panicked: AtomicBool::new(false) }
    }

    /// Calls one method of the application's metrics.
    pub(crate) fn report(&self, call: impl FnOnce(&dyn Metrics, &Name)) {
        let Some(metrics) = &self.metrics else { return };
        let panicked = catch_unwind(AssertUnwindSafe(|| call(&**metrics, &self.name))).is_err();
        if panicked && !self.has_panicked.swap(true, Ordering::Relaxed) {
            tracing::error!(name = %self.name, "the application's metrics panicked: this is logged once");
        }
    }

    /// Reports a renewal with this answer, after this time.
    pub(crate) fn renewal(&self, took: Duration, answer: &Result<Answer>) {
        self.report(|metrics, name| match RenewalFailure::of(answer) {
            None => metrics.renewed(name, took),
            Some(failure) => metrics.renewal_failed(name, failure),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::error::Error;
    use crate::lease::Lease;

    #[derive(Debug, Default)]
    struct Renewals(Mutex<Vec<String>>);

    impl Metrics for Renewals {
        fn became_leader(&self, _: &Name, _: Token) {
            panic!("a bug in the application");
        }
        fn renewed(&self, name: &Name, took: Duration) {
            self.0.lock().unwrap().push(format!("{name} {took:?}"));
        }
        fn renewal_failed(&self, name: &Name, failure: RenewalFailure) {
            self.0.lock().unwrap().push(format!("{name} {failure}"));
        }
    }

    #[test]
    fn each_renewal_is_reported_once_and_a_panic_ends_nothing() {
        let name = Name::new("job").unwrap();
        let renewals = Arc::new(Renewals::default());
        let reporter = MetricsReporter::new(&name, Some(renewals.clone()));
        let token = Token::new(1).unwrap();
        reporter.report(|metrics, name| metrics.became_leader(name, token));
        let took = Duration::from_millis(3);
        reporter.renewal(took, &Ok(Answer::Held(())));
        reporter.renewal(took, &Ok(Answer::Taken(Box::new(Lease::free(name.clone())))));
        for error in [
            Error::unavailable("gone"),
            Error::denied("no"),
            Error::corrupt("garbage"),
            Error::invalid("wrong"),
        ] {
            reporter.renewal(took, &Err(error));
        }
        let reported = renewals.0.lock().unwrap();
        let expected =
            ["job 3ms", "job refused", "job unavailable", "job denied", "job corrupt", "job other"];
        assert_eq!(*reported, expected);
    }

    #[test]
    fn without_metrics_nothing_is_reported() {
        let reporter = MetricsReporter::new(&Name::new("job").unwrap(), None);
        reporter.report(|_, _| panic!("called"));
        reporter.renewal(Duration::ZERO, &Ok(Answer::Held(())));
    }
}
