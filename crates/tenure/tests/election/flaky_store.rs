//! A memory store that counts its calls and can be made unreachable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tenure::store::memory::MemoryStore;
use tenure::store::{Change, Limits, Report, Revoke, Scope};
use tenure::{
    Answer, Checkpoint, Claim, Clock, Error, Grant, Hold, Kind, Lease, Name, Release, Result, Store,
};

#[derive(Clone, Debug)]
pub(crate) struct Flaky(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    memory: MemoryStore,
    calls: AtomicU64,
    down: AtomicBool,
    denied: AtomicBool,
    saves_frozen: AtomicBool,
}

impl Flaky {
    pub(crate) fn new(clock: &Clock) -> Self {
        Flaky(Arc::new(Inner {
            memory: MemoryStore::new(clock.clone()),
            calls: AtomicU64::new(0),
            down: AtomicBool::new(false),
            denied: AtomicBool::new(false),
            saves_frozen: AtomicBool::new(false),
        }))
    }

    pub(crate) fn memory(&self) -> &MemoryStore {
        &self.0.memory
    }

    pub(crate) fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::SeqCst)
    }

    pub(crate) fn cut(&self, down: bool) {
        self.0.down.store(down, Ordering::SeqCst);
    }

    pub(crate) fn deny(&self) {
        self.0.denied.store(true, Ordering::SeqCst);
    }

    /// How many stores share the memory.
    pub(crate) fn handles(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Saves get no answer from now on.
    pub(crate) fn freeze_saves(&self) {
        self.0.saves_frozen.store(true, Ordering::SeqCst);
    }

    fn call(&self) -> Result<&MemoryStore> {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        if self.0.denied.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::Denied, "wrong password"));
        }
        if self.0.down.load(Ordering::SeqCst) {
            return Err(Error::unavailable("cut off"));
        }
        Ok(&self.0.memory)
    }
}

#[async_trait]
impl Store for Flaky {
    fn limits(&self) -> Limits {
        self.0.memory.limits()
    }
    fn url(&self) -> String {
        "flaky:".to_owned()
    }
    fn detached(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }
    async fn acquire(&self, claims: &[Claim]) -> Result<Vec<Result<Answer<Grant>>>> {
        self.call()?.acquire(claims).await
    }
    async fn renew(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Answer>>> {
        self.call()?.renew(holds, ttl).await
    }
    async fn release(&self, releases: &[Release]) -> Result<Vec<Result<()>>> {
        self.call()?.release(releases).await
    }
    async fn save(&self, hold: &Hold, number: u64, checkpoint: &Checkpoint) -> Result<Answer> {
        if self.0.saves_frozen.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.call()?.save(hold, number, checkpoint).await
    }
    async fn revoke(&self, name: &Name, when: Revoke) -> Result<Lease> {
        self.call()?.revoke(name, when).await
    }
    async fn observe(&self, scope: &Scope) -> Result<Vec<Result<Lease>>> {
        self.call()?.observe(scope).await
    }
    fn watch(&self, scope: &Scope) -> BoxStream<'static, Change> {
        self.0.memory.watch(scope)
    }
    async fn examine(&self) -> Result<Report> {
        self.call()?.examine().await
    }
}
