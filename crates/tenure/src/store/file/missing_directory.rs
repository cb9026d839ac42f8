//! A store over a directory that may not exist yet, for commands that only read or make requests: it never creates the
//! directory, and opens it as soon as it exists.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};

use super::directory::{Directory, display_path};
use super::{FileOptions, FileStore, in_background};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lease::{Answer, Checkpoint, Claim, Grant, Hold, Lease, Name, Release};
use crate::store::{
    Change, Check, Grade, Limits, Notification, Report, Revoke, Scope, Store, Verdict,
};

/// How often a watcher checks whether the directory exists.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The store in `path`, which may not exist yet: then there are no leases.
#[derive(Clone, Debug)]
pub(in crate::store) struct MissingDirectory {
    path: PathBuf,
    options: FileOptions,
    opened: Arc<OnceLock<FileStore>>,
}

impl MissingDirectory {
    /// Opens the directory if it exists.
    pub(super) async fn open(path: PathBuf, options: FileOptions) -> Result<Self> {
        let store = MissingDirectory { path, options: options.existing(), opened: Arc::default() };
        store.opened().await?;
        Ok(store)
    }

    async fn opened(&self) -> Result<Option<&FileStore>> {
        if let Some(store) = self.opened.get() {
            return Ok(Some(store));
        }
        let (path, options) = (self.path.clone(), self.options);
        let open = move || match path.parent().is_none_or(|parent| parent.exists()) {
            true if Directory::exists(&path)? => FileStore::open_blocking(&path, options).map(Some),
            _ => Ok(None),
        };
        let store = in_background(open).await?;
        Ok(store.map(|store| self.opened.get_or_init(|| store)))
    }

    /// The store, for operations that need the directory.
    async fn existing_store(&self) -> Result<&FileStore> {
        let absent = || Error::invalid(format!("No leases yet in {}.", display_path(&self.path)));
        self.opened().await?.ok_or_else(absent)
    }
}

#[async_trait]
impl Store for MissingDirectory {
    fn limits(&self) -> Limits {
        let assumed = || Limits {
            notification: Notification::Poll(POLL_INTERVAL),
            ..Limits::new(Grade::B).this_machine_only()
        };
        self.opened.get().map_or_else(assumed, Store::limits)
    }

    fn url(&self) -> String {
        self.opened.get().map_or_else(|| format!("file:{}", self.path.display()), Store::url)
    }

    fn detached(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    async fn acquire(&self, claims: &[Claim]) -> Result<Vec<Result<Answer<Grant>>>> {
        self.existing_store().await?.acquire(claims).await
    }

    async fn renew(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Answer>>> {
        self.existing_store().await?.renew(holds, ttl).await
    }

    async fn release(&self, releases: &[Release]) -> Result<Vec<Result<()>>> {
        self.existing_store().await?.release(releases).await
    }

    async fn save(&self, hold: &Hold, number: u64, checkpoint: &Checkpoint) -> Result<Answer> {
        self.existing_store().await?.save(hold, number, checkpoint).await
    }

    async fn revoke(&self, name: &Name, when: Revoke) -> Result<Lease> {
        self.existing_store().await?.revoke(name, when).await
    }

    async fn observe(&self, scope: &Scope) -> Result<Vec<Result<Lease>>> {
        match self.opened().await? {
            Some(store) => store.observe(scope).await,
            None => Ok(Vec::new()),
        }
    }

    fn watch(&self, scope: &Scope) -> BoxStream<'static, Change> {
        let (store, scope) = (self.clone(), scope.clone());
        // The watch of the directory begins with a `Look` of its own.
        let opened_watch = async move {
            loop {
                if let Ok(Some(store)) = store.opened().await {
                    return store.watch(&scope);
                }
                Clock::boot().sleep(POLL_INTERVAL).await;
            }
        };
        stream::iter([Change::Look]).chain(stream::once(opened_watch).flatten()).boxed()
    }

    async fn examine(&self) -> Result<Report> {
        let clock = Clock::boot();
        let before = clock.now();
        if let Some(store) = self.opened().await? {
            return store.examine().await;
        }
        let path = display_path(&self.path);
        let found = format!("no leases yet in {path}; the first 'tenure run' makes it");
        Ok(Report {
            what: format!("directory {path}, which is not made yet"),
            grade: Grade::B,
            round_trip: clock.now().since(before),
            checks: vec![Check { what: "directory", verdict: Verdict::Good, found }],
        })
    }
}
