//! [`FaultyStore`]: a store over another store, with injected errors and delays.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::sync::watch;

use super::store_fault::{FaultQueue, StoreFault, StoreOperation};
use crate::clock::Clock;
use crate::error::Result;
use crate::lease::{Answer, Checkpoint, Claim, Grant, Hold, Lease, Name, Release};
use crate::store::{Change, Limits, Report, Revoke, Scope, Store};

/// A store over another store. Tests inject faults into its calls: errors, lost replies, delays, calls that hang.
///
/// All clones, and the stores that elections get from [`Store::detached`], share the faults and the counters. Faults for the next
/// calls come first, in the order in which they were injected; then the fault of every call, if there is one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tenure::machine::EndReason;
/// use tenure::store::memory::MemoryStore;
/// use tenure::testing::{FaultyStore, StoreFault, StoreOperation};
/// use tenure::{Clock, Election, Error};
///
/// let store = FaultyStore::new(Arc::new(MemoryStore::new(Clock::boot())));
/// let election = Election::builder("job")
///     .ttl(Duration::from_secs(10))
///     .renew_every(Duration::from_millis(100))
///     .grace(Duration::from_secs(2))
///     .start(Arc::new(store.clone()))
///     .await?;
/// let leadership = election.leadership().await.expect("it was not stopped");
///
/// // One lost reply changes nothing: the leader repeats the renewal.
/// store.inject_next(1, [StoreOperation::Renew], StoreFault::lost_reply());
/// store.called(StoreOperation::Renew, 2).await;
/// assert!(leadership.is_valid());
///
/// // A store that cannot be reached ends the term in time.
/// store.inject(StoreOperation::ALL, StoreFault::Error(Error::unavailable("cut off")));
/// assert!(matches!(leadership.lost().await, EndReason::Unreachable(_)));
/// drop(leadership);
///
/// store.heal();
/// assert!(election.leadership().await.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    shared: Arc<SharedFaults>,
}

/// What all clones of one faulty store share.
#[derive(Debug)]
struct SharedFaults {
    clock: Clock,
    operations: [Mutex<FaultQueue>; StoreOperation::ALL.len()],
    /// Changes with every call, and with every call that is held.
    progress: watch::Sender<()>,
    /// How often the store was healed. A held call waits for the next time.
    healed: watch::Sender<u64>,
    held: Mutex<usize>,
    muted: watch::Sender<bool>,
}

impl FaultyStore {
    /// Creates a store without faults over `inner`.
    pub fn new(inner: Arc<dyn Store>) -> FaultyStore {
        FaultyStore::with_clock(inner, Clock::boot())
    }

    /// Creates a store without faults over `inner`, whose delays are counted on `clock`: for tests with [`Clock::manual`].
    pub fn with_clock(inner: Arc<dyn Store>, clock: Clock) -> FaultyStore {
        let shared = SharedFaults {
            clock,
            operations: Default::default(),
            progress: watch::channel(()).0,
            healed: watch::channel(0).0,
            held: Mutex::new(0),
            muted: watch::channel(false).0,
        };
        FaultyStore { inner, shared: Arc::new(shared) }
    }

    /// Injects `fault` into every later call of these operations, until [`FaultyStore::heal`]. It replaces an earlier one.
    pub fn inject(&self, operations: impl IntoIterator<Item = StoreOperation>, fault: StoreFault) {
        for operation in operations {
            self.queue(operation).set_every(fault.clone());
        }
    }

    /// Injects `fault` into the next `count` calls of each of these operations, after the faults that were injected for the next
    /// calls before.
    pub fn inject_next(
        &self,
        count: u64,
        operations: impl IntoIterator<Item = StoreOperation>,
        fault: StoreFault,
    ) {
        for operation in operations {
            self.queue(operation).set_next(count, fault.clone());
        }
    }

    /// Removes all faults. Held calls and replies continue, and watches report changes again.
    pub fn heal(&self) {
        for operation in StoreOperation::ALL {
            self.queue(operation).clear();
        }
        self.shared.healed.send_modify(|times| *times += 1);
        self.mute_watches(false);
    }

    /// While this is set, watches report no change, as if the notifications of the store were lost. Afterwards they report
    /// [`Change::Look`] if they missed one.
    pub fn mute_watches(&self, muted: bool) {
        self.shared.muted.send_replace(muted);
    }

    /// The number of calls of this operation so far, those with a fault included.
    pub fn calls(&self, operation: StoreOperation) -> u64 {
        self.queue(operation).calls
    }

    /// The number of calls of all operations so far.
    pub fn all_calls(&self) -> u64 {
        StoreOperation::ALL.into_iter().map(|operation| self.calls(operation)).sum()
    }

    /// The number of clones, and of stores that elections got from [`Store::detached`] and have not dropped yet.
    pub fn clones(&self) -> usize {
        Arc::strong_count(&self.shared)
    }

    /// The number of calls that are held now.
    pub fn held_calls(&self) -> usize {
        *self.shared.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when this operation was called `times` more times, counted from this call.
    pub async fn called(&self, operation: StoreOperation, times: u64) {
        let mut progress = self.shared.progress.subscribe();
        let target = self.calls(operation) + times;
        while self.calls(operation) < target {
            // The sender lives in `shared`.
            let _ = progress.changed().await;
        }
    }

    /// Returns when a call is held.
    pub async fn holds(&self) {
        let mut progress = self.shared.progress.subscribe();
        while self.held_calls() == 0 {
            // The sender lives in `shared`.
            let _ = progress.changed().await;
        }
    }

    fn queue(&self, operation: StoreOperation) -> MutexGuard<'_, FaultQueue> {
        let queue = &self.shared.operations[operation as usize];
        queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one call, with the fault that it is due.
    async fn call<T>(
        &self,
        operation: StoreOperation,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        // Before the fault is taken, so that a call which is due to be held notices every `heal` after it.
        let healed = self.shared.healed.subscribe();
        let fault = self.queue(operation).take();
        self.shared.progress.send_replace(());
        match fault {
            None => call.await,
            Some(StoreFault::Error(error)) => Err(error),
            Some(StoreFault::LostReply(error)) => {
                // The caller learns nothing of the answer.
                let _ = call.await;
                Err(error)
            }
            Some(StoreFault::Delay(time)) => {
                self.shared.clock.sleep(time).await;
                call.await
            }
            Some(StoreFault::DelayedReply(time)) => {
                let answer = call.await;
                self.shared.clock.sleep(time).await;
                answer
            }
            Some(StoreFault::Hold) => {
                self.hold(healed).await;
                call.await
            }
            Some(StoreFault::HeldReply) => {
                let answer = call.await;
                self.hold(healed).await;
                answer
            }
        }
    }

    /// Waits until the store is healed.
    async fn hold(&self, mut healed: watch::Receiver<u64>) {
        let _held = HeldCall::begin(&self.shared);
        // The sender lives in `shared`.
        let _ = healed.changed().await;
    }
}

/// Counts a held call until it continues or its caller gives up.
struct HeldCall<'a>(&'a SharedFaults);

impl HeldCall<'_> {
    fn begin(shared: &SharedFaults) -> HeldCall<'_> {
        *shared.held.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        shared.progress.send_replace(());
        HeldCall(shared)
    }
}

impl Drop for HeldCall<'_> {
    fn drop(&mut self) {
        *self.0.held.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn url(&self) -> String {
        self.inner.url()
    }

    fn detached(&self) -> Arc<dyn Store> {
        Arc::new(FaultyStore { inner: self.inner.detached(), shared: self.shared.clone() })
    }

    fn liveness(&self) -> Option<BorrowedFd<'_>> {
        self.inner.liveness()
    }

    async fn acquire(&self, claims: &[Claim]) -> Result<Vec<Result<Answer<Grant>>>> {
        self.call(StoreOperation::Acquire, self.inner.acquire(claims)).await
    }

    async fn renew(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Answer>>> {
        self.call(StoreOperation::Renew, self.inner.renew(holds, ttl)).await
    }

    async fn release(&self, releases: &[Release]) -> Result<Vec<Result<()>>> {
        self.call(StoreOperation::Release, self.inner.release(releases)).await
    }

    async fn save(&self, hold: &Hold, number: u64, checkpoint: &Checkpoint) -> Result<Answer> {
        self.call(StoreOperation::Save, self.inner.save(hold, number, checkpoint)).await
    }

    async fn revoke(&self, name: &Name, when: Revoke) -> Result<Lease> {
        self.call(StoreOperation::Revoke, self.inner.revoke(name, when)).await
    }

    async fn observe(&self, scope: &Scope) -> Result<Vec<Result<Lease>>> {
        self.call(StoreOperation::Observe, self.inner.observe(scope)).await
    }

    fn watch(&self, scope: &Scope) -> BoxStream<'static, Change> {
        let start = (self.inner.watch(scope), self.shared.muted.subscribe(), false);
        let watch = stream::unfold(start, async |(mut changes, mut muted, mut missed)| {
            loop {
                tokio::select! {
                    change = changes.next() => match change {
                        Some(_) if *muted.borrow() => missed = true,
                        change => return change.map(|change| (change, (changes, muted, missed))),
                    },
                    Ok(()) = muted.changed() => {
                        if !*muted.borrow_and_update() && std::mem::take(&mut missed) {
                            return Some((Change::Look, (changes, muted, missed)));
                        }
                    }
                }
            }
        });
        watch.boxed()
    }

    async fn examine(&self) -> Result<Report> {
        self.call(StoreOperation::Examine, self.inner.examine()).await
    }
}
