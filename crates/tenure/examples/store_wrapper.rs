//! A store around another store: it counts the calls, and it can be cut off. For tests of what an application does while its
//! store is unreachable.
//!
//! `cargo run --example store_wrapper` cuts off the store of a leader for a short and for a long time, on a manual clock, so no
//! real time passes. `tests/conformance/wrapper.rs` runs the table of properties on this file: a wrapper is a store, and must
//! guarantee what a store guarantees. The chapter "Testing your own code" (`tenure::docs::testing`) shows it too.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{Stream, StreamExt};
use tenure::machine::EndReason;
use tenure::store::memory::MemoryStore;
use tenure::store::{BoxStream, Change, Limits, Report, Revoke, Scope, async_trait};
use tenure::{
    Answer, Checkpoint, Claim, Clock, Election, Error, Event, Grant, Hold, Kind, Lease, Name,
    Release, Result, Store,
};

// ---- The wrapper ----

/// The switch of an [`OutageStore`], for the test.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    is_cut: AtomicBool,
    calls: AtomicU64,
}

impl Outage {
    /// From now on no call reaches the store, or every call does again.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
    }

    /// How many calls were made, also those that failed.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Counts a call. Unavailable is the kind of a call without an answer: the caller must not know whether it has happened.
    fn check(&self) -> Result<()> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match self.is_cut.load(Ordering::SeqCst) {
            true => Err(Error::unavailable("the test has cut off the store")),
            false => Ok(()),
        }
    }
}

/// A store that its [`Outage`] can cut off.
#[derive(Debug)]
pub(crate) struct OutageStore {
    inner: Arc<dyn Store>,
    outage: Arc<Outage>,
}

impl OutageStore {
    /// The wrapped store, and its switch.
    pub(crate) fn wrap(inner: Arc<dyn Store>) -> (Arc<dyn Store>, Arc<Outage>) {
        let outage = Arc::<Outage>::default();
        (Arc::new(OutageStore { inner, outage: outage.clone() }), outage)
    }
}

#[async_trait]
impl Store for OutageStore {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn url(&self) -> String {
        self.inner.url()
    }

    /// Renewals use a detached store, so it must be wrapped too, with the same switch.
    fn detached(&self) -> Arc<dyn Store> {
        Arc::new(OutageStore { inner: self.inner.detached(), outage: self.outage.clone() })
    }

    fn liveness(&self) -> Option<BorrowedFd<'_>> {
        self.inner.liveness()
    }

    async fn acquire(&self, claims: &[Claim]) -> Result<Vec<Result<Answer<Grant>>>> {
        self.outage.check()?;
        self.inner.acquire(claims).await
    }

    async fn renew(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Answer>>> {
        self.outage.check()?;
        self.inner.renew(holds, ttl).await
    }

    async fn release(&self, releases: &[Release]) -> Result<Vec<Result<()>>> {
        self.outage.check()?;
        self.inner.release(releases).await
    }

    async fn save(&self, hold: &Hold, number: u64, checkpoint: &Checkpoint) -> Result<Answer> {
        self.outage.check()?;
        self.inner.save(hold, number, checkpoint).await
    }

    async fn revoke(&self, name: &Name, when: Revoke) -> Result<Lease> {
        self.outage.check()?;
        self.inner.revoke(name, when).await
    }

    async fn observe(&self, scope: &Scope) -> Result<Vec<Result<Lease>>> {
        self.outage.check()?;
        self.inner.observe(scope).await
    }

    /// A watch yields hints only, so it may continue during an outage.
    fn watch(&self, scope: &Scope) -> BoxStream<'static, Change> {
        self.inner.watch(scope)
    }

    async fn examine(&self) -> Result<Report> {
        self.outage.check()?;
        self.inner.examine().await
    }
}

// ---- A short and a long outage ----

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let clock = Clock::manual();
    let (store, outage) = OutageStore::wrap(Arc::new(MemoryStore::new(clock.clone())));
    let election = Election::builder("job").clock(clock.clone()).start(store).await?;
    let mut events = election.events();
    let leadership = election.leadership().await.expect("it was not stopped");

    // The TTL is 4 s. The leader renews after 1.3 s, and must stop after 2.8 s without a renewal.
    outage.cut(true);
    clock.advance(Duration::from_millis(1_400));
    let down = event(&mut events, |event| matches!(event, Event::StoreUnreachable(_))).await;
    println!("{down:?}; it leads for {:?}", leadership.valid_for());
    assert!(!leadership.should_stop(), "the term continues until it is time to stop");
    let error = leadership.save("1").await.expect_err("the store is cut off");
    assert_eq!(error.kind(), Kind::Unavailable);

    outage.cut(false);
    clock.advance(Duration::from_millis(200)); // the next attempt
    event(&mut events, |event| matches!(event, Event::StoreBack)).await;
    assert!(leadership.valid_for() > Duration::from_secs(3), "renewed in the same term");

    // Longer than the time until it must stop.
    outage.cut(true);
    clock.advance(Duration::from_millis(1_400));
    event(&mut events, |event| matches!(event, Event::StoreUnreachable(_))).await;
    clock.advance(Duration::from_millis(1_600));
    let reason = leadership.lost().await;
    println!("{reason:?}; {:?} to stop", leadership.valid_for());
    assert!(matches!(reason, EndReason::Unreachable(_)));
    assert!(leadership.should_stop() && leadership.is_valid(), "the work has time to stop");
    let token = leadership.token();
    drop(leadership);

    // The work has ended, and the store answers again.
    outage.cut(false);
    let leadership = loop {
        tokio::select! {
            leadership = election.leadership() => break leadership.expect("it was not stopped"),
            () = real_pause() => clock.advance(Duration::from_millis(50)),
        }
    };
    assert!(leadership.token() > token, "a new term");
    println!("leads again, after {} calls", outage.calls());
    Ok(())
}

/// Waits for an event, and discards the events before it.
async fn event(
    events: &mut (impl Stream<Item = Event> + Unpin),
    is_expected: impl Fn(&Event) -> bool,
) -> Event {
    loop {
        let event = events.next().await.expect("the election has not ended");
        if is_expected(&event) {
            return event;
        }
    }
}

/// The driver has its own thread, which needs real time to react.
async fn real_pause() {
    Clock::boot().sleep(Duration::from_millis(1)).await;
}
