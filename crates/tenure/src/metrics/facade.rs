//! [`FacadeMetrics`]: reports elections through the `metrics` crate.

use std::time::Duration;

use ::metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::{Metrics, RenewalFailure};
use crate::lease::{Name, StartupWait, Token};
use crate::machine::EndReason;

/// Reports elections through the `metrics` crate, to the recorder that the application has installed.
///
/// Names and meanings are those of the command's `/metrics` where it has the metric; every metric has the label `name`:
///
/// | metric | kind | labels | meaning |
/// |---|---|---|---|
/// | `tenure_is_leader` | gauge | `name` | 1 if this candidate leads |
/// | `tenure_token` | gauge | `name` | the token of the term that it leads, 0 if none |
/// | `tenure_terms_ended_total` | counter | `name`, `reason` | terms of this candidate that ended |
/// | `tenure_transitions_total` | counter | `name` | how often the leader changed, as this candidate observed it |
/// | `tenure_renew_seconds` | histogram | `name` | the durations of renewals that the store granted |
/// | `tenure_renew_failures_total` | counter | `name`, `cause` | renewals that the store did not grant |
/// | `tenure_store_reachable` | gauge | `name` | 1 if the store answers |
/// | `tenure_startup_wait_seconds` | histogram | `name`, `reason` | the lengths of start-up waits |
/// | `tenure_events_dropped_total` | counter | `name` | events that slow subscribers missed |
///
/// Gauges change when the driver reports, so in a process that is paused they are stale. Decide with
/// [`Election::is_leader`](crate::Election::is_leader), not with a metric.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FacadeMetrics;

impl FacadeMetrics {
    /// Describes the metrics to the recorder that is installed now. Install yours first.
    pub fn new() -> FacadeMetrics {
        describe_gauge!("tenure_is_leader", "Whether this candidate leads.");
        describe_gauge!("tenure_token", "The token of the term it leads, 0 if none.");
        describe_counter!("tenure_terms_ended_total", "Terms of this candidate that ended.");
        describe_counter!(
            "tenure_transitions_total",
            "How often the leader changed, as this candidate observed it."
        );
        describe_histogram!(
            "tenure_renew_seconds",
            Unit::Seconds,
            "How long renewals took that the store granted."
        );
        describe_counter!("tenure_renew_failures_total", "Renewals that the store did not grant.");
        describe_gauge!("tenure_store_reachable", "Whether the store answers.");
        describe_histogram!(
            "tenure_startup_wait_seconds",
            Unit::Seconds,
            "How long this candidate had to hold the lease before it could lead."
        );
        describe_counter!(
            "tenure_events_dropped_total",
            "Events that subscribers missed because they were too slow."
        );
        FacadeMetrics
    }
}

impl Default for FacadeMetrics {
    fn default() -> FacadeMetrics {
        FacadeMetrics::new()
    }
}

/// The label value for an election.
fn owned(name: &Name) -> String {
    name.as_str().to_owned()
}

impl Metrics for FacadeMetrics {
    fn became_leader(&self, name: &Name, token: Token) {
        gauge!("tenure_is_leader", "name" => owned(name)).set(1.0);
        // Exact: a token is below 2^53.
        #[allow(clippy::cast_precision_loss)]
        gauge!("tenure_token", "name" => owned(name)).set(token.get() as f64);
    }

    fn lost_leadership(&self, name: &Name, _: Token, reason: &EndReason) {
        gauge!("tenure_is_leader", "name" => owned(name)).set(0.0);
        gauge!("tenure_token", "name" => owned(name)).set(0.0);
        let labels = [("name", owned(name)), ("reason", reason.as_str().to_owned())];
        counter!("tenure_terms_ended_total", &labels).increment(1);
    }

    fn leader_changed(&self, name: &Name, leader: Option<&str>) {
        if leader.is_some() {
            counter!("tenure_transitions_total", "name" => owned(name)).increment(1);
        }
    }

    fn starting(&self, name: &Name, wait: &StartupWait) {
        let labels = [("name", owned(name)), ("reason", wait.reason.as_str().to_owned())];
        histogram!("tenure_startup_wait_seconds", &labels).record(wait.left);
    }

    fn renewed(&self, name: &Name, took: Duration) {
        histogram!("tenure_renew_seconds", "name" => owned(name)).record(took);
    }

    fn renewal_failed(&self, name: &Name, failure: RenewalFailure) {
        let labels = [("name", owned(name)), ("cause", failure.as_str().to_owned())];
        counter!("tenure_renew_failures_total", &labels).increment(1);
    }

    fn store_reachable(&self, name: &Name, reachable: bool) {
        gauge!("tenure_store_reachable", "name" => owned(name)).set(f64::from(u8::from(reachable)));
    }

    fn events_dropped(&self, name: &Name, count: u64) {
        counter!("tenure_events_dropped_total", "name" => owned(name)).increment(count);
    }
}
