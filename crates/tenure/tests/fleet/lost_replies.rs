//! A memory store that executes every claim and can lose the replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tenure::store::memory::MemoryStore;
use tenure::store::{Change, Limits, Report, Revoke, Scope};
use tenure::{
    Answer, Checkpoint, Claim, Clock, Error, Grant, Hold, Lease, Name, Release, Result, Store,
};

#[derive(Clone, Debug)]
pub(crate) struct LostReplies {
    memory: MemoryStore,
    /// Whether replies to claims are lost.
    loses: Arc<AtomicBool>,
}

impl LostReplies {
    /// Loses the replies to all claims until [`LostReplies::heal`].
    pub(crate) fn new() -> Self {
        let memory = MemoryStore::new(Clock::boot());
        LostReplies { memory, loses: Arc::new(AtomicBool::new(true)) }
    }

    pub(crate) fn heal(&self) {
        self.loses.store(false, Ordering::SeqCst);
    }
}

#[async_trait]
impl Store for LostReplies {
    fn limits(&self) -> Limits {
        self.memory.limits()
    }
    fn url(&self) -> String {
        "lost-replies:".to_owned()
    }
    fn detached(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }
    async fn acquire(&self, claims: &[Claim]) -> Result<Vec<Result<Answer<Grant>>>> {
        let answers = self.memory.acquire(claims).await;
        match self.loses.load(Ordering::SeqCst) {
            true => Err(Error::unavailable("the reply is lost")),
            false => answers,
        }
    }
    async fn renew(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Answer>>> {
        self.memory.renew(holds, ttl).await
    }
    async fn release(&self, releases: &[Release]) -> Result<Vec<Result<()>>> {
        self.memory.release(releases).await
    }
    async fn save(&self, hold: &Hold, number: u64, checkpoint: &Checkpoint) -> Result<Answer> {
        self.memory.save(hold, number, checkpoint).await
    }
    async fn revoke(&self, name: &Name, when: Revoke) -> Result<Lease> {
        self.memory.revoke(name, when).await
    }
    async fn observe(&self, scope: &Scope) -> Result<Vec<Result<Lease>>> {
        self.memory.observe(scope).await
    }
    fn watch(&self, scope: &Scope) -> BoxStream<'static, Change> {
        self.memory.watch(scope)
    }
    async fn examine(&self) -> Result<Report> {
        self.memory.examine().await
    }
}
