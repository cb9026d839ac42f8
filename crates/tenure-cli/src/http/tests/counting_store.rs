//! A store that counts its reads, and fails or blocks when a test switches that on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tenure::store::{Change, Limits, Report, Revoke, Scope};
use tenure::{Answer, Checkpoint, Claim, Error, Grant, Hold, Lease, Name, Release, Result, Store};

/// The switches of one store, shared by all its handles.
#[derive(Debug, Default)]
pub(super) struct Switches {
    /// The number of reads.
    pub(super) reads: AtomicU64,
    /// The number of reads of all shards of a fleet.
    pub(super) surveys: AtomicU64,
    /// Reads never return.
    pub(super) mute: AtomicBool,
    /// Every operation fails.
    pub(super) down: AtomicBool,
    /// Renewals fail.
    pub(super) no_renewal: AtomicBool,
    /// While a test holds this lock, the renewing thread is blocked.
    pub(super) block: Mutex<()>,
}

#[derive(Clone, Debug)]
pub(super) struct SwitchedStore {
    inner: Arc<dyn Store>,
    switches: Arc<Switches>,
}

impl SwitchedStore {
    pub(super) fn wrap(inner: Arc<dyn Store>) -> (Arc<dyn Store>, Arc<Switches>) {
        let switches = Arc::<Switches>::default();
        (Arc::new(SwitchedStore { inner, switches: Arc::clone(&switches) }), switches)
    }

    fn check_up(&self) -> Result<()> {
        match self.switches.down.load(Ordering::Relaxed) {
            true => Err(Error::unavailable("switched off")),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Store for SwitchedStore {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn url(&self) -> String {
        self.inner.url()
    }

    fn detached(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    async fn acquire(&self, claims: &[Claim]) -> Result<Vec<Result<Answer<Grant>>>> {
        self.check_up()?;
        self.inner.acquire(claims).await
    }

    async fn renew(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Answer>>> {
        drop(self.switches.block.lock().unwrap_or_else(PoisonError::into_inner));
        if self.switches.no_renewal.load(Ordering::Relaxed) {
            return Err(Error::unavailable("switched off"));
        }
        self.check_up()?;
        self.inner.renew(holds, ttl).await
    }

    async fn release(&self, releases: &[Release]) -> Result<Vec<Result<()>>> {
        self.check_up()?;
        self.inner.release(releases).await
    }

    async fn save(&self, hold: &Hold, number: u64, checkpoint: &Checkpoint) -> Result<Answer> {
        self.check_up()?;
        self.inner.save(hold, number, checkpoint).await
    }

    async fn revoke(&self, name: &Name, when: Revoke) -> Result<Lease> {
        self.check_up()?;
        self.inner.revoke(name, when).await
    }

    async fn observe(&self, scope: &Scope) -> Result<Vec<Result<Lease>>> {
        // The election observes names, `/leases` a prefix.
        if let Scope::Prefix(prefix) = scope {
            if prefix.ends_with(":lease:") {
                self.switches.surveys.fetch_add(1, Ordering::Relaxed);
            }
            self.switches.reads.fetch_add(1, Ordering::Relaxed);
            if self.switches.mute.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        }
        self.check_up()?;
        self.inner.observe(scope).await
    }

    fn watch(&self, scope: &Scope) -> BoxStream<'static, Change> {
        self.inner.watch(scope)
    }

    async fn examine(&self) -> Result<Report> {
        self.inner.examine().await
    }
}
