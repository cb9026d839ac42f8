//! Leases in a directory of this machine: `file:DIR`.
//!
//! How the contract maps onto a directory:
//!
//! | | |
//! |---|---|
//! | a name | `leases/NAME.lease`, one JSON line with a checksum and a tail with the holder's time |
//! | atomic | `flock` on `locks/NAME.lock`; the file is never removed, and its inode is checked after the write too. Participants (presence, membership, requests) share one: `tenure:node:.lock`, `tenure:ask:.lock`, `FLEET:node:.lock` |
//! | acquire, release, save, revoke | a new record is written in `tmp/` and fsynced; under the lock it is renamed over the old one, then the directory is fsynced |
//! | ephemeral leases | the record of a participant is removed when it is released, or at the next opening after its end |
//! | renew | under the lock, the tail is rewritten in place; no fsync |
//! | expiry | the boot clock, if the record is of this boot and time namespace; else the record must stay unchanged for its TTL |
//! | death | a term that ends with its process names `live/ID`, whose lock that process holds; if exactly that file is unlocked, the process is gone |
//! | watch | inotify on `leases/` and `live/` |
//!
//! A full, failing or read-only disk is Unavailable: it neither grants nor frees. Whatever is not a record of ours is
//! Corrupt and left alone. Directories and files that others own, can write, or have linked elsewhere are refused.
//!
//! Other machines do not see it. On a network file system two could lead; such are refused unless `force=1` is given.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::open::StoreUrl;
use super::{Change, Grade, Limits, Report, Revoke, Scope, Store};
use crate::blocking;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lease::{Answer, Checkpoint, Claim, Grant, Hold, Lease, Name, Release};

mod batch;
mod cleanup;
mod directory;
mod error;
mod filesystem;
mod liveness;
mod lock;
mod missing_directory;
mod observe;
mod paths;
mod read;
mod record;
mod rules;
mod temp_record;
#[cfg(any(test, feature = "conformance"))]
#[doc(hidden)]
pub mod test_records;
mod watch;

use batch::{BatchCache, BatchRun};
use directory::Directory;
pub use filesystem::default_directory;
use liveness::LivenessLock;
pub use lock::LockHolder;
use missing_directory::MissingDirectory;
use read::ExpiryJudge;
use rules::{Operation, Renewal, Revocation, Save};

/// How a directory is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileOptions {
    /// Also on a file system whose locks are not known to exclude. The store is then of grade C.
    pub force: bool,
    /// Only a directory that is there. One that was moved away is not made anew by somebody who comes later.
    pub existing: bool,
}

impl FileOptions {
    /// The same, by force.
    #[must_use]
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }

    /// The same, making nothing.
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
/// use tenure::store::file::{FileStore, Options};
///
/// let store = FileStore::open("/var/lib/myapp/leases", Options::default()).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct FileStore(Arc<FileStoreInner>);

#[derive(Debug)]
struct FileStoreInner {
    directory: Directory,
    judge: ExpiryJudge,
    memory: BatchCache,
    clock: Clock,
    /// Who opened it. A forked child has the handles, but not the right.
    pid: u32,
    live: OnceLock<Arc<LivenessLock>>,
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileStore({})", self.url())
    }
}

impl FileStore {
    /// Opens the directory `path`, making it if only it is missing.
    ///
    /// # Errors
    /// Denied for a directory that is not ours alone or lies on a file system that cannot be trusted.
    pub async fn open(path: impl AsRef<Path>, options: FileOptions) -> Result<Self> {
        let path = path.as_ref().to_owned();
        in_background(move || Self::opened(&path, options)).await
    }

    pub(super) async fn from_url(url: &StoreUrl<'_>) -> Result<Self> {
        let options = options_of(url)?;
        match path_of(url.rest)? {
            Some(path) => Self::open(path, options).await,
            None => {
                let path = default_directory()?;
                in_background(move || {
                    if !options.existing {
                        filesystem::make_default_parents(&path)?;
                    }
                    Self::opened(&path, options)
                })
                .await
            }
        }
    }

    /// The same for a command that must not make the directory.
    pub(super) async fn existing_from_url(url: &StoreUrl<'_>) -> Result<MissingDirectory> {
        let path = path_of(url.rest)?.map_or_else(default_directory, Ok)?;
        let absolute = std::path::absolute(&path).unwrap_or(path);
        MissingDirectory::open(absolute, options_of(url)?).await
    }

    fn opened(path: &Path, options: FileOptions) -> Result<Self> {
        let clock = Clock::boot();
        let directory = Directory::open(path, options)?;
        let shared = FileStoreInner {
            directory,
            judge: ExpiryJudge::new(read::our_era()?),
            memory: BatchCache::default(),
            clock,
            pid: std::process::id(),
            live: OnceLock::new(),
        };
        // A guard has no time for it, and a command that only reads changes nothing.
        if !options.existing {
            cleanup::sweep(&shared);
        }
        Ok(FileStore(Arc::new(shared)))
    }

    /// Where the leases are: absolute, and below the one that was given where everybody may write in that.
    pub fn directory(&self) -> &Path {
        self.0.directory.path()
    }

    /// Does `verbs` in one pass on a thread where waiting for a disk or a lock holds up nobody.
    async fn pass<V>(&self, verbs: Vec<V>, lives: bool) -> Result<Vec<Result<V::Answer>>>
    where
        V: Operation + Send + 'static,
        V::Answer: Send,
    {
        let shared = Arc::clone(&self.0);
        in_background(move || {
            shared.check_process()?;
            let live = if lives { Some(&shared.live()?.mark) } else { None };
            let FileStoreInner { directory, judge, memory, clock, .. } = &*shared;
            BatchRun::new(directory, judge, memory, clock, live).run(&verbs)
        })
        .await
    }

    async fn pass_one<V>(&self, verb: V) -> Result<V::Answer>
    where
        V: Operation + Send + 'static,
        V::Answer: Send,
    {
        let answer = self.pass(vec![verb], false).await?.pop();
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

fn options_of(url: &StoreUrl<'_>) -> Result<FileOptions> {
    let mut options = FileOptions::default();
    for (key, value) in url.options(&["force", "create"])? {
        let is = match value {
            "1" => true,
            "0" => false,
            other => {
                let other = other.escape_debug();
                return Err(Error::invalid(format!("'{key}' is 0 or 1, not '{other}'")));
            }
        };
        match key {
            "force" => options.force = is,
            _ => options.existing = !is,
        }
    }
    Ok(options)
}

/// `DIR` or `///DIR`; `None` for nothing, which is the default directory.
fn path_of(rest: &str) -> Result<Option<PathBuf>> {
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
        // Nothing is waited for on anything two handles share.
        Arc::new(self.clone())
    }

    fn liveness(&self) -> Option<BorrowedFd<'_>> {
        self.0.live.get().map(|live| live.as_fd())
    }

    async fn acquire(&self, claims: &[Claim]) -> Result<Vec<Result<Answer<Grant>>>> {
        let lives = claims.iter().any(|claim| claim.ends_with_process);
        self.pass(claims.to_vec(), lives).await
    }

    async fn renew(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Answer>>> {
        let renewals = holds.iter().map(|hold| Renewal { hold: hold.clone(), ttl });
        self.pass(renewals.collect(), false).await
    }

    async fn release(&self, releases: &[Release]) -> Result<Vec<Result<()>>> {
        self.pass(releases.to_vec(), false).await
    }

    async fn save(&self, hold: &Hold, number: u64, checkpoint: &Checkpoint) -> Result<Answer> {
        let (hold, checkpoint) = (hold.clone(), checkpoint.clone());
        self.pass_one(Save { hold, number, checkpoint }).await
    }

    async fn revoke(&self, name: &Name, when: Revoke) -> Result<Lease> {
        self.pass_one(Revocation { name: name.clone(), when }).await
    }

    async fn observe(&self, scope: &Scope) -> Result<Vec<Result<Lease>>> {
        let (shared, scope) = (Arc::clone(&self.0), scope.clone());
        in_background(move || {
            shared.check_process()?;
            observe::observe(&shared, &scope)
        })
        .await
    }

    fn watch(&self, scope: &Scope) -> BoxStream<'static, Change> {
        watch::watch(Arc::clone(&self.0), scope.clone())
    }

    async fn examine(&self) -> Result<Report> {
        let shared = Arc::clone(&self.0);
        in_background(move || {
            shared.check_process()?;
            observe::examine(&shared)
        })
        .await
    }
}

#[cfg(test)]
mod tests;
