//! Leases in a directory of this machine: `file:DIR`.
//!
//! How the contract maps onto a directory:
//!
//! | | |
//! |---|---|
//! | a name | `leases/NAME.lease`, one JSON line with a checksum and a tail with the holder's time |
//! | atomic | `flock` on `locks/NAME.lock`; the file is never removed, and its inode is checked after the write too. Participants (presence, membership, requests) share one: `tenure:node:.lock`, `tenure:ask:.lock`, `FLEET:node:.lock` |
//! | acquire, release, save, revoke | a new record is written in `tmp/` and fsynced; under the lock it is renamed over the old one, then the directory is fsynced |
//! | ephemeral leases | the record of a participant is removed when it is released, or the next time the directory is opened after its end |
//! | renew | under the lock, the tail is rewritten in place; no fsync |
//! | expiry | the boot clock, if the record is of this boot and time namespace; else the record must stay unchanged for its TTL |
//! | process death | a term that ends with its process names `live/ID`, whose lock that process holds; if exactly that file is unlocked, the process is gone |
//! | watch | inotify on `leases/` and `live/` |
//!
//! A full, failing or read-only disk is Unavailable: the store neither grants nor frees a lease. A file that is not a valid
//! record is Corrupt and stays unchanged. The store refuses directories and files that another user owns, that others can
//! write, or that are links to another place.
//!
//! Other machines cannot use this store. On a network file system two candidates could lead; such file systems are refused
//! unless `force=1` is given.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::endpoint::StoreUrl;
use super::{Change, Grade, Limits, Report, Revoke, Scope, Store};
use crate::blocking;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lease::{Answer, Checkpoint, Claim, Grant, Hold, Lease, Name, Release};
use crate::store::record::{Renewal, Revocation, Save};

mod batch;
mod cleanup;
mod directory;
mod error;
mod filesystem;
mod liveness;
mod lock;
mod missing_directory;
mod observe;
mod operation;
mod paths;
mod read;
mod stored_record;
mod temp_record;
#[cfg(any(test, feature = "conformance"))]
#[doc(hidden)]
pub mod test_records;
mod watch;

use batch::{BatchRun, GreatestTokens};
use directory::Directory;
pub use filesystem::default_directory;
use liveness::LivenessLock;
use missing_directory::MissingDirectory;
use operation::FileOperation;
use read::ExpiryJudge;

/// Options for opening a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileOptions {
    /// Also accept a file system whose locks are not known to be exclusive. The store then has grade C.
    pub force: bool,
    /// Open only a directory that exists. A directory that was moved away is not created again by a process that comes later.
    pub existing: bool,
}

impl FileOptions {
    /// The same options with `force` set.
    #[must_use]
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }

    /// The same options with `existing` set: nothing is created.
    #[must_use]
    pub fn existing(mut self) -> Self {
        self.existing = true;
        self
    }
}

/// Leases in a directory.
///
/// ```no_run
/// # async fn example() -> tenure::Result<()> {
/// use tenure::store::file::{FileOptions, FileStore};
///
/// let store = FileStore::open("/var/lib/myapp/leases", FileOptions::default()).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct FileStore(Arc<FileStoreInner>);

#[derive(Debug)]
struct FileStoreInner {
    directory: Directory,
    judge: ExpiryJudge,
    tokens: GreatestTokens,
    clock: Clock,
    /// The process that opened the store. A forked child has the handles, but must not use them.
    pid: u32,
    live: OnceLock<Arc<LivenessLock>>,
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileStore({})", self.url())
    }
}

impl FileStore {
    /// Opens the directory `path`. If only that directory itself is missing, it is created.
    ///
    /// # Errors
    /// Denied for a directory that other users own or can write, or that is on a file system whose locks cannot be trusted.
    pub async fn open(path: impl AsRef<Path>, options: FileOptions) -> Result<Self> {
        let path = path.as_ref().to_owned();
        in_background(move || Self::open_blocking(&path, options)).await
    }

    pub(super) async fn from_url(url: &StoreUrl<'_>) -> Result<Self> {
        let options = parse_options(url)?;
        match parse_path(url.rest)? {
            Some(path) => Self::open(path, options).await,
            None => {
                let path = default_directory()?;
                in_background(move || {
                    if !options.existing {
                        filesystem::make_default_parents(&path)?;
                    }
                    Self::open_blocking(&path, options)
                })
                .await
            }
        }
    }

    /// The same for a command that must not create the directory.
    pub(super) async fn existing_from_url(url: &StoreUrl<'_>) -> Result<MissingDirectory> {
        let path = parse_path(url.rest)?.map_or_else(default_directory, Ok)?;
        let absolute = std::path::absolute(&path).unwrap_or(path);
        MissingDirectory::open(absolute, parse_options(url)?).await
    }

    fn open_blocking(path: &Path, options: FileOptions) -> Result<Self> {
        let clock = Clock::boot();
        let directory = Directory::open(path, options)?;
        let inner = FileStoreInner {
            directory,
            judge: ExpiryJudge::new(read::current_boot_id()?),
            tokens: GreatestTokens::default(),
            clock,
            pid: std::process::id(),
            live: OnceLock::new(),
        };
        // A guard has no time for this, and a command that only reads changes nothing.
        if !options.existing {
            cleanup::sweep(&inner);
        }
        Ok(FileStore(Arc::new(inner)))
    }

    /// The absolute path of the leases. It is below the given directory if all users may write in that one.
    pub fn directory(&self) -> &Path {
        self.0.directory.path()
    }

    /// Runs `operations` as one batch, on a thread where waiting for a disk or a lock delays no other task.
    async fn run_batch<V>(
        &self,
        operations: Vec<V>,
        needs_liveness_lock: bool,
    ) -> Result<Vec<Result<V::Answer>>>
    where
        V: FileOperation + Send + 'static,
        V::Answer: Send,
    {
        let inner = Arc::clone(&self.0);
        in_background(move || {
            inner.check_process()?;
            let live = if needs_liveness_lock { Some(&inner.live()?.id) } else { None };
            let FileStoreInner { directory, judge, tokens, clock, .. } = &*inner;
            BatchRun::new(directory, judge, tokens, clock, live).run(&operations)
        })
        .await
    }

    async fn run_one<V>(&self, operation: V) -> Result<V::Answer>
    where
        V: FileOperation + Send + 'static,
        V::Answer: Send,
    {
        let answer = self.run_batch(vec![operation], false).await?.pop();
        answer.unwrap_or_else(|| Err(Error::unavailable("there was no answer")))
    }
}

impl FileStoreInner {
    fn check_process(&self) -> Result<()> {
        if std::process::id() == self.pid {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "{} was opened before fork, by process {}: open it again in this one",
            self.directory.leases.path, self.pid
        )))
    }

    fn live(&self) -> Result<&LivenessLock> {
        if let Some(live) = self.live.get() {
            return Ok(live);
        }
        let live = LivenessLock::of_this_process(&self.directory)?;
        Ok(self.live.get_or_init(|| live))
    }
}

fn parse_options(url: &StoreUrl<'_>) -> Result<FileOptions> {
    let options = url.options(&["force", "create"])?;
    let force = options.flag("force")?.unwrap_or(false);
    let existing = !options.flag("create")?.unwrap_or(true);
    Ok(FileOptions { force, existing })
}

/// Parses `DIR` or `///DIR`; `None` if it is empty, which means the default directory.
fn parse_path(rest: &str) -> Result<Option<PathBuf>> {
    let path = match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => {
            return Err(Error::invalid(format!(
                "'file:{}' names a host, and a directory has none: write file:/DIR",
                rest.escape_debug()
            )));
        }
        None => rest,
    };
    if path.starts_with('~') {
        return Err(Error::invalid("'~' means nothing in 'file:': write the whole path"));
    }
    if path.contains('\0') {
        return Err(Error::invalid("a directory's path cannot contain a zero byte"));
    }
    Ok(if path.is_empty() { None } else { Some(PathBuf::from(path)) })
}

async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    blocking::run(work).await?
}

#[async_trait]
impl Store for FileStore {
    fn limits(&self) -> Limits {
        Limits::new(self.0.directory.file_system.grade).this_machine_only()
    }

    fn url(&self) -> String {
        let force = if self.0.directory.file_system.grade == Grade::C { "?force=1" } else { "" };
        format!("file:{}{force}", self.directory().display())
    }

    fn detached(&self) -> Arc<dyn Store> {
        // No call waits on anything that two handles share.
        Arc::new(self.clone())
    }

    fn liveness(&self) -> Option<BorrowedFd<'_>> {
        self.0.live.get().map(|live| live.as_fd())
    }

    async fn acquire(&self, claims: &[Claim]) -> Result<Vec<Result<Answer<Grant>>>> {
        let needs_liveness_lock = claims.iter().any(|claim| claim.ends_with_process);
        self.run_batch(claims.to_vec(), needs_liveness_lock).await
    }

    async fn renew(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Answer>>> {
        let renewals = holds.iter().map(|hold| Renewal { hold: hold.clone(), ttl });
        self.run_batch(renewals.collect(), false).await
    }

    async fn release(&self, releases: &[Release]) -> Result<Vec<Result<()>>> {
        let released = self.run_batch(releases.to_vec(), false).await?;
        Ok(released.into_iter().map(|released| released.map(drop)).collect())
    }

    async fn save(&self, hold: &Hold, number: u64, checkpoint: &Checkpoint) -> Result<Answer> {
        let (hold, checkpoint) = (hold.clone(), checkpoint.clone());
        self.run_one(Save { hold, number, checkpoint }).await
    }

    async fn revoke(&self, name: &Name, when: Revoke) -> Result<Lease> {
        self.run_one(Revocation { name: name.clone(), when }).await
    }

    async fn observe(&self, scope: &Scope) -> Result<Vec<Result<Lease>>> {
        let (inner, scope) = (Arc::clone(&self.0), scope.clone());
        in_background(move || {
            inner.check_process()?;
            observe::observe(&inner, &scope)
        })
        .await
    }

    fn watch(&self, scope: &Scope) -> BoxStream<'static, Change> {
        watch::watch(Arc::clone(&self.0), scope.clone())
    }

    async fn examine(&self) -> Result<Report> {
        let inner = Arc::clone(&self.0);
        in_background(move || {
            inner.check_process()?;
            observe::examine(&inner)
        })
        .await
    }
}

#[cfg(test)]
mod tests;
