//! The fixture: a private directory, a store in it, and helpers for its operations.

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::store::StoreExt as _;
use tenure::store::file::{FileOptions, FileStore};
use tenure::{Answer, CandidateId, Claim, Grant, Hold, Kind, Name, Nonce, Result};

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A private directory, removed with everything in it when dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tenure-file-{}-{number}", std::process::id());
        // The build directory may not be writable for the user of the test.
        let parent = Some(PathBuf::from(env!("CARGO_TARGET_TMPDIR")));
        let parent = parent
            .filter(|parent| rustix::fs::access(parent, rustix::fs::Access::WRITE_OK).is_ok());
        let path = parent.unwrap_or_else(std::env::temp_dir).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("made");
        chmod(&path, 0o700);
        Scratch(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The path for the store.
    pub(crate) fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.store().join("leases/job.lease")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.store().join("locks/job.lock")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}

pub(crate) fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).expect("it is there").permissions().mode() & 0o7777
}

pub(crate) fn wait<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

pub(crate) async fn open(path: &Path) -> Result<FileStore> {
    FileStore::open(path, FileOptions::default()).await
}

pub(crate) fn name() -> Name {
    Name::new("job").expect("a name")
}

pub(crate) fn claim(id: &str, ttl: Duration) -> Claim {
    Claim::new(name(), CandidateId::new(id).expect("an id"), Nonce::random(), ttl)
}

/// A claim whose term ends with this process.
pub(crate) fn claim_ending_with_process(id: &str, ttl: Duration) -> Claim {
    claim(id, ttl).ending_with_process()
}

pub(crate) async fn acquire(store: &FileStore, claim: &Claim) -> Result<Answer<Grant>> {
    store.acquire_one(claim).await
}

pub(crate) async fn hold(store: &FileStore, claim: &Claim) -> Hold {
    acquire(store, claim).await.expect("it works").held().expect("it is free").hold
}

pub(crate) async fn renew(store: &FileStore, hold: &Hold) -> Result<Answer> {
    store.renew_one(hold, LONG).await
}

pub(crate) async fn release(store: &FileStore, hold: &Hold) -> Result<()> {
    store.release_one(hold).await
}

/// Checks that the result is an error of this kind whose message contains this text.
#[track_caller]
pub(crate) fn assert_fails<T: std::fmt::Debug>(result: Result<T>, kind: Kind, says: &str) {
    let error = result.expect_err("it must fail");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "not {says:?}: {error}");
}
