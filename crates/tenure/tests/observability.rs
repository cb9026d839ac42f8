//! What an election reports to the application's metrics, and the spans of its terms and renewals.

#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used)] // Helpers of tests fail like tests.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::machine::EndReason;
use tenure::metrics::{Metrics, RenewalFailure};
use tenure::store::memory::MemoryStore;
use tenure::testing::{FaultyStore, StoreFault, StoreOperation};
use tenure::{Clock, Election, Name, Token};
use tenure_rig::system::time::until;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

/// Every report as a line of text.
#[derive(Debug, Default)]
struct Reports(Mutex<Vec<String>>);

impl Reports {
    fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn contains(&self, line: &str) -> bool {
        self.0.lock().unwrap().iter().any(|known| known == line)
    }

    /// All reports but those of renewals, whose number depends on the machine.
    fn without_renewals(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| !line.contains("renew")).cloned().collect()
    }
}

impl Metrics for Reports {
    fn became_leader(&self, name: &Name, _: Token) {
        self.add(format!("{name} leads"));
    }
    fn lost_leadership(&self, name: &Name, _: Token, reason: &EndReason) {
        self.add(format!("{name} lost: {reason}"));
    }
    fn leader_changed(&self, name: &Name, leader: Option<&str>) {
        self.add(format!("{name} is led by {}", leader.unwrap_or("none")));
    }
    fn renewed(&self, name: &Name, _: Duration) {
        self.add(format!("{name} renewed"));
    }
    fn renewal_failed(&self, name: &Name, failure: RenewalFailure) {
        self.add(format!("{name} not renewed: {failure}"));
    }
    fn store_reachable(&self, name: &Name, reachable: bool) {
        self.add(format!("{name} reachable: {reachable}"));
    }
}

fn faulty_store() -> FaultyStore {
    FaultyStore::new(Arc::new(MemoryStore::new(Clock::boot())))
}

async fn start(store: &FaultyStore, name: &str, reports: &Arc<Reports>) -> Election {
    let builder = Election::builder(name).id("a").ttl(Duration::from_secs(10));
    let builder = builder.renew_every(Duration::from_millis(50)).metrics(reports.clone());
    builder.start(Arc::new(store.clone())).await.unwrap()
}

#[tokio::test]
async fn an_election_reports_to_the_metrics_of_the_application() {
    let (store, reports) = (faulty_store(), Arc::new(Reports::default()));
    let election = start(&store, "job", &reports).await;
    let leadership = election.leadership().await.unwrap();
    until("it renews", || reports.contains("job renewed")).await;
    store.inject([StoreOperation::Renew], StoreFault::unreachable());
    until("it fails", || reports.contains("job not renewed: unavailable")).await;
    until("it is reported", || reports.contains("job reachable: false")).await;
    store.heal();
    until("it is reachable", || election.status().store_reachable == Some(true)).await;
    leadership.resign();
    drop(leadership);
    election.stop().await;
    let lines = reports.without_renewals();
    let reachable: Vec<&str> =
        lines.iter().filter(|line| line.contains("reachable")).map(String::as_str).collect();
    assert_eq!(reachable, ["job reachable: true", "job reachable: false", "job reachable: true"]);
    let terms: Vec<&str> =
        lines.iter().filter(|line| !line.contains("reachable")).map(String::as_str).collect();
    assert_eq!(terms[..2], ["job is led by a", "job leads"]);
    assert!(terms.contains(&"job lost: resigned"), "{terms:?}");
}

/// Metrics that ask the election do not wait for themselves, and metrics that panic end nothing.
#[tokio::test]
async fn metrics_may_ask_the_election_and_may_panic() {
    #[derive(Debug, Default)]
    struct Asking(std::sync::OnceLock<Election>, AtomicU64);
    impl Metrics for Asking {
        fn renewed(&self, _: &Name, _: Duration) {
            if let Some(election) = self.0.get() {
                let _ = election.status();
                self.1.fetch_add(1, Ordering::SeqCst);
                panic!("a bug in the application");
            }
        }
    }
    let (store, asking) = (faulty_store(), Arc::new(Asking::default()));
    let builder = Election::builder("asks").ttl(Duration::from_secs(10));
    let builder = builder.renew_every(Duration::from_millis(20)).metrics(asking.clone());
    asking.0.set(builder.start(Arc::new(store)).await.unwrap()).unwrap();
    until("it renews", || asking.1.load(Ordering::SeqCst) > 2).await;
    let election = asking.0.get().unwrap();
    assert!(election.is_leader());
    election.stop().await;
}

/// Keeps spans, what is recorded in them, and the lines inside them.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>, Arc<AtomicU64>);

thread_local!(static ENTERED: std::cell::RefCell<Vec<u64>> = const { std::cell::RefCell::new(Vec::new()) });

struct FieldText(String);

impl Visit for FieldText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tenure::") || metadata.target() == "observability"
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.1.fetch_add(1, Ordering::SeqCst) + 1;
        let mut text = FieldText(String::new());
        span.record(&mut text);
        self.0.lock().unwrap().push(format!("{id}: {}{}", span.metadata().name(), text.0));
        Id::from_u64(id)
    }
    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut text = FieldText(String::new());
        values.record(&mut text);
        self.0.lock().unwrap().push(format!("{}:{}", span.into_u64(), text.0));
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = FieldText(String::new());
        event.record(&mut text);
        let inside = ENTERED.with_borrow(|entered| entered.last().copied().unwrap_or(0));
        let target = event.metadata().target();
        self.0.lock().unwrap().push(format!("{inside}: {target}{}", text.0));
    }
    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(span.into_u64()));
    }
    fn exit(&self, _: &Id) {
        ENTERED.with_borrow_mut(|entered| _ = entered.pop());
    }
}

#[tokio::test]
async fn the_work_runs_in_the_span_of_its_term() {
    let spans = Spans::default();
    tracing::subscriber::set_global_default(spans.clone()).unwrap();
    let store = faulty_store();
    let election = start(&store, "traced", &Arc::default()).await;
    let token = election
        .lead(|leadership| async move {
            tracing::info!(target: "observability", "first line");
            tokio::task::yield_now().await;
            tracing::info!(target: "observability", "second line");
            leadership.token()
        })
        .await
        .unwrap();
    let blocking =
        election.lead_blocking(|_| tracing::info!(target: "observability", "on a thread"));
    blocking.await.unwrap();
    until("it ended", || !election.is_leader()).await;
    election.stop().await;
    let lines = spans.0.lock().unwrap().clone();
    let term = format!("term name=traced candidate=a token={token}");
    let span = lines.iter().find_map(|line| line.strip_suffix(&term)).expect("a span of the term");
    for line in ["observability message=first line", "observability message=second line"] {
        assert!(lines.contains(&format!("{span}{line}")), "{line}: {lines:#?}");
    }
    assert!(lines.contains(&format!("{} reason=\"resigned\"", span.trim_end())), "{lines:#?}");
    let thread = lines.iter().find(|line| line.ends_with("message=on a thread")).unwrap();
    assert!(!thread.starts_with("0:") && !thread.starts_with(span), "{thread}");
}
