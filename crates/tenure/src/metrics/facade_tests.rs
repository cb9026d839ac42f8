//! Tests of [`FacadeMetrics`] with a recorder that keeps what it gets.

#![allow(clippy::unwrap_used)] // Helpers of tests fail like tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::metrics::{
    Counter, CounterFn, Gauge, GaugeFn, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit, with_local_recorder,
};

use super::{FacadeMetrics, Metrics as _, RenewalFailure};
use crate::lease::{Name, StartupWait, Token, WaitReason};
use crate::machine::EndReason;

/// Each metric with its labels, and its values: the sum of a counter, the last value of a gauge, all values of a histogram.
type Values = Arc<Mutex<BTreeMap<String, Vec<f64>>>>;

#[derive(Default)]
struct KeptValues {
    values: Values,
    described: Mutex<Vec<String>>,
}

/// One metric of a [`KeptValues`].
struct KeptValue {
    values: Values,
    key: String,
}

impl KeptValues {
    fn value(&self, key: &Key) -> Arc<KeptValue> {
        let labels = key.labels().map(|label| format!("{}={}", label.key(), label.value()));
        let key = format!("{}{{{}}}", key.name(), labels.collect::<Vec<_>>().join(","));
        Arc::new(KeptValue { values: self.values.clone(), key })
    }

    fn lines(&self) -> Vec<String> {
        let values = self.values.lock().unwrap();
        values.iter().map(|(key, values)| format!("{key} {values:?}")).collect()
    }
}

impl KeptValue {
    fn change(&self, change: impl FnOnce(&mut Vec<f64>)) {
        change(self.values.lock().unwrap().entry(self.key.clone()).or_default());
    }
}

impl CounterFn for KeptValue {
    fn increment(&self, by: u64) {
        let sum = |values: &mut Vec<f64>| values.first().copied().unwrap_or(0.0);
        #[allow(clippy::cast_precision_loss)]
        self.change(|values| *values = vec![sum(values) + by as f64]);
    }
    fn absolute(&self, _: u64) {
        unreachable!("counters are incremented");
    }
}

impl GaugeFn for KeptValue {
    fn increment(&self, _: f64) {
        unreachable!("gauges are set");
    }
    fn decrement(&self, _: f64) {
        unreachable!("gauges are set");
    }
    fn set(&self, value: f64) {
        self.change(|values| *values = vec![value]);
    }
}

impl HistogramFn for KeptValue {
    fn record(&self, value: f64) {
        self.change(|values| values.push(value));
    }
}

impl Recorder for KeptValues {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().push(key.as_str().to_owned());
    }
    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().push(key.as_str().to_owned());
    }
    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().push(key.as_str().to_owned());
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.value(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.value(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> ::metrics::Histogram {
        ::metrics::Histogram::from_arc(self.value(key))
    }
}

#[test]
fn every_measurement_reaches_the_recorder_under_its_documented_name() {
    let recorder = KeptValues::default();
    let name = Name::new("job").unwrap();
    let token = Token::new((1 << 53) - 1).unwrap();
    with_local_recorder(&recorder, || {
        let metrics = FacadeMetrics::new();
        metrics.store_reachable(&name, true);
        let wait = StartupWait::new(Duration::from_millis(1_500), WaitReason::Restarted);
        metrics.starting(&name, &wait);
        metrics.leader_changed(&name, Some("a"));
        metrics.leader_changed(&name, None);
        metrics.became_leader(&name, token);
        metrics.renewed(&name, Duration::from_millis(2));
        metrics.renewed(&name, Duration::from_millis(4));
        metrics.renewal_failed(&name, RenewalFailure::Unavailable);
        metrics.events_dropped(&name, 3);
        metrics.events_dropped(&name, 4);
    });
    assert_eq!(
        recorder.lines(),
        [
            "tenure_events_dropped_total{name=job} [7.0]",
            "tenure_is_leader{name=job} [1.0]",
            "tenure_renew_failures_total{name=job,cause=unavailable} [1.0]",
            "tenure_renew_seconds{name=job} [0.002, 0.004]",
            "tenure_startup_wait_seconds{name=job,reason=restarted} [1.5]",
            "tenure_store_reachable{name=job} [1.0]",
            "tenure_token{name=job} [9007199254740991.0]",
            "tenure_transitions_total{name=job} [1.0]",
        ]
    );
    with_local_recorder(&recorder, || {
        let metrics = FacadeMetrics::new();
        metrics.lost_leadership(&name, token, &EndReason::Paused(Duration::from_secs(60)));
        metrics.store_reachable(&name, false);
    });
    let lines = recorder.lines();
    for line in [
        "tenure_is_leader{name=job} [0.0]",
        "tenure_token{name=job} [0.0]",
        "tenure_store_reachable{name=job} [0.0]",
        "tenure_terms_ended_total{name=job,reason=process-paused} [1.0]",
    ] {
        assert!(lines.iter().any(|found| found == line), "{line}: {lines:?}");
    }
}

#[test]
fn every_reported_metric_is_described() {
    let recorder = KeptValues::default();
    with_local_recorder(&recorder, FacadeMetrics::new);
    let mut described = recorder.described.into_inner().unwrap();
    described.sort();
    assert_eq!(
        described,
        [
            "tenure_events_dropped_total",
            "tenure_is_leader",
            "tenure_renew_failures_total",
            "tenure_renew_seconds",
            "tenure_startup_wait_seconds",
            "tenure_store_reachable",
            "tenure_terms_ended_total",
            "tenure_token",
            "tenure_transitions_total",
        ]
    );
}
