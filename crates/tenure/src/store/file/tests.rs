//! Tests that need internals: other boots, other clocks, locks that are taken away.

use futures_util::StreamExt;

use super::directory::Directory;
use super::lock::{LockAttempt, NameLock};
use super::paths::RecordPath;
use super::read::{ReadMode, read_record};
use super::temp_record::Sync;
use super::test_records;
use super::*;
use crate::error::{Blocker, Kind};
use crate::lease::{CandidateId, Ended, Nonce, Token};
use crate::store::{StoreExt as _, Visibility, visibility_of};
use tenure_rig::servers::Scratch;

/// A directory with a store.
struct StoreDirectory(Scratch);

impl StoreDirectory {
    fn new() -> Self {
        StoreDirectory(Scratch::new())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    async fn open(&self) -> FileStore {
        FileStore::open(self.path(), FileOptions::default()).await.unwrap()
    }

    fn record(&self) -> PathBuf {
        test_records::record_path(self.path(), &name())
    }
}

fn name() -> Name {
    Name::new("job").unwrap()
}

fn claim(id: &str, ttl: Duration) -> Claim {
    Claim::new(name(), CandidateId::new(id).unwrap(), Nonce::random(), ttl)
}

async fn acquire(store: &FileStore, claim: &Claim) -> Answer<Grant> {
    store.acquire_one(claim).await.unwrap()
}

async fn hold(store: &FileStore, claim: &Claim) -> Hold {
    acquire(store, claim).await.held().expect("it is free").hold
}

async fn left(store: &FileStore) -> Duration {
    store.observe_one(&name()).await.unwrap().expect("it was used").left
}

const TTL: Duration = Duration::from_millis(300);
/// For a lease that must still be held after a few calls, and whose expiry the test waits for.
const MEDIUM: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_challenger_waits_the_ttl_of_a_record_of_another_boot_and_again_after_a_change() {
    let scratch = StoreDirectory::new();
    let store = scratch.open().await;
    let token = Token::new(5).unwrap();
    test_records::of_another_boot(scratch.path(), &name(), token, TTL, 1).unwrap();
    let claim = claim("b", LONG);
    let Answer::Taken(lease) = acquire(&store, &claim).await else { panic!("granted at once") };
    assert!(lease.left > TTL, "{:?}", lease.left);
    store.0.clock.sleep(TTL / 2).await;
    assert!(left(&store).await <= TTL / 2 + Duration::from_millis(10));
    test_records::of_another_boot(scratch.path(), &name(), token, TTL, 2).unwrap();
    let changed = store.0.clock.now();
    loop {
        match acquire(&store, &claim).await {
            Answer::Taken(lease) => store.0.clock.sleep(lease.left).await,
            Answer::Held(grant) => {
                assert_eq!(grant.lineage.before, Ended::Expired(token));
                break;
            }
        }
    }
    assert!(store.0.clock.now().since(changed) >= TTL);
}

#[tokio::test]
async fn observations_are_not_shared_between_handles() {
    let scratch = StoreDirectory::new();
    let store = scratch.open().await;
    test_records::of_another_boot(scratch.path(), &name(), Token::new(5).unwrap(), TTL, 1).unwrap();
    assert!(!acquire(&store, &claim("b", LONG)).await.is_held());
    store.0.clock.sleep(TTL * 2).await;
    let newcomer = scratch.open().await;
    assert!(!acquire(&newcomer, &claim("c", LONG)).await.is_held());
    // A clone is the same handle.
    assert!(acquire(&store.clone(), &claim("b", LONG)).await.is_held());
}

#[tokio::test]
async fn a_damaged_tail_costs_the_challenger_a_ttl_and_the_holder_nothing() {
    let scratch = StoreDirectory::new();
    let store = scratch.open().await;
    let ours = hold(&store, &claim("a", MEDIUM)).await;
    let damage = || {
        let mut bytes = std::fs::read(scratch.record()).unwrap();
        let end = bytes.len() - 40;
        bytes[end..].fill(b'?');
        std::fs::write(scratch.record(), bytes).unwrap();
    };
    damage();
    assert!(!acquire(&store, &claim("b", MEDIUM)).await.is_held());
    let renewed = store.renew_one(&ours, MEDIUM).await.unwrap();
    assert!(renewed.is_held());
    damage();
    let saved = store.save(&ours, 1, &Checkpoint::new("x").unwrap()).await.unwrap();
    assert!(saved.is_held());
    // The time is still unknown, and no operation has invented one.
    let started = store.0.clock.now();
    while !acquire(&store, &claim("b", MEDIUM)).await.is_held() {
        store.0.clock.sleep(Duration::from_millis(5)).await;
    }
    assert!(store.0.clock.now().since(started) >= MEDIUM);
}

#[tokio::test]
async fn a_clock_that_went_back_in_the_same_boot_is_not_trusted() {
    let scratch = StoreDirectory::new();
    let store = scratch.open().await;
    hold(&store, &claim("a", TTL)).await;
    // As if the boot clock had been an hour ahead when the record was written.
    let found = read_record(&store.0.directory, &name(), ReadMode::Locked).unwrap().unwrap();
    let mut record = found.stored;
    record.place.as_mut().unwrap().until = Some(store.0.clock.now() + Duration::from_secs(3600));
    super::temp_record::write_tail(&found.file, &record, &found.head, 9, "x").unwrap();
    let left = left(&store).await;
    assert!(left > TTL && left < TTL * 2, "{left:?}");
}

#[tokio::test]
async fn after_fork_every_operation_fails() {
    let scratch = StoreDirectory::new();
    let mut store = scratch.open().await;
    let ours = hold(&store, &claim("a", LONG)).await;
    Arc::get_mut(&mut store.0).expect("the only reference").pid += 1;
    let error = store.renew(&[ours], LONG).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("before fork"), "{error}");
    assert!(store.acquire(&[claim("b", LONG)]).await.is_err());
    assert!(store.observe(&Scope::name(&name())).await.is_err());
}

/// The fallback for a machine that is out of inotify instances.
#[tokio::test]
async fn without_inotify_a_watch_polls_and_reports_changes() {
    let scratch = StoreDirectory::new();
    let (store, other) = (scratch.open().await, scratch.open().await);
    let mut changes = watch::poll(Arc::clone(&store.0), Scope::name(&name()));
    let mut next = async || {
        let change = tokio::time::timeout(Duration::from_secs(10), changes.next()).await;
        change.expect("in time").expect("a watch does not end")
    };
    assert_eq!(next().await, Change::Look);
    let held = hold(&other, &claim("a", LONG)).await;
    let holder = Some(held.candidate.clone());
    assert_eq!(next().await, Change::Granted { name: name(), token: held.token, holder });
    other.release(&[held.into()]).await.unwrap().remove(0).unwrap();
    assert_eq!(next().await, Change::Freed { name: name(), next: None });
    std::fs::write(scratch.record(), "garbage").unwrap();
    assert_eq!(next().await, Change::Look);
}

#[tokio::test]
async fn a_record_restored_from_a_backup_is_corrupt_to_a_process_that_knows_a_newer_token() {
    let scratch = StoreDirectory::new();
    let store = scratch.open().await;
    let old = hold(&store, &claim("a", LONG)).await;
    let backup = std::fs::read(scratch.record()).unwrap();
    store.release_one(&old).await.unwrap();
    let new = hold(&store, &claim("b", LONG)).await;
    std::fs::write(scratch.record(), backup).unwrap();
    let error = store.renew_one(&old, LONG).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("went back"), "{error}");
    // Even if the record is removed, the next token is greater.
    std::fs::remove_file(scratch.record()).unwrap();
    let grant = acquire(&store, &claim("c", LONG)).await.held().unwrap();
    assert!(grant.hold.token > new.token);
    assert_eq!(grant.lineage.before, Ended::Nothing);
}

#[tokio::test]
async fn a_late_repeat_of_a_claim_does_not_shorten_a_newer_renewal() {
    let scratch = StoreDirectory::new();
    let store = scratch.open().await;
    let claim = claim("a", LONG);
    let ours = hold(&store, &claim).await;
    let FileStoreInner { directory, judge, tokens, clock, .. } = &*store.0;
    let mut late = BatchRun::new(directory, judge, tokens, clock, None);
    let mut slots = vec![late.prepare(&claim, Sync::Now)];
    clock.sleep(TTL).await;
    let before = clock.now();
    assert!(store.renew_one(&ours, LONG).await.unwrap().is_held());
    late.commit_all(&[claim], &mut slots);
    let record = read_record(directory, &name(), ReadMode::Unlocked).unwrap().unwrap().stored;
    assert!(record.place.unwrap().until.unwrap() >= before + LONG);
}

#[tokio::test]
async fn an_overtaken_temp_record_is_written_again() {
    let scratch = StoreDirectory::new();
    let store = scratch.open().await;
    let (early, late) = (claim("a", LONG), claim("b", LONG));
    let FileStoreInner { directory, judge, tokens, clock, .. } = &*store.0;
    let mut batch_run = BatchRun::new(directory, judge, tokens, clock, None);
    let mut slots = vec![batch_run.prepare(&early, Sync::Now)];
    let theirs = hold(&store, &late).await;
    batch_run.commit_all(&[early], &mut slots);
    assert!(!batch_run.answers(slots, Ok(())).remove(0).unwrap().is_held());
    let lease = store.observe_one(&name()).await.unwrap().expect("it was used");
    assert_eq!(lease.token, Some(theirs.token));
    assert_eq!(std::fs::read_dir(scratch.path().join("tmp")).unwrap().count(), 0);
}

fn lock(directory: &Directory) -> Option<NameLock<'_>> {
    match NameLock::attempt(directory, &RecordPath::of(&name()), true).unwrap() {
        LockAttempt::Locked(lock) => Some(lock),
        LockAttempt::Busy | LockAttempt::Missing => None,
    }
}

#[tokio::test]
async fn a_lock_file_replaced_while_it_is_held_invalidates_what_was_done_under_it() {
    let scratch = StoreDirectory::new();
    let (a, b) = (scratch.open().await, scratch.open().await);
    let path = test_records::lock_path(scratch.path(), &name());
    let first = lock(&a.0.directory).expect("free");
    assert!(lock(&b.0.directory).is_none());
    first.check().unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = lock(&b.0.directory).expect("a new file");
    assert_eq!(first.check().unwrap_err().kind(), Kind::Unavailable);
    second.check().unwrap();
    drop(first);
    assert!(lock(&a.0.directory).is_none(), "the old lock frees nothing of the new one");
}

#[tokio::test]
async fn the_error_names_the_process_that_holds_the_lock() {
    let scratch = StoreDirectory::new();
    let (a, b) = (scratch.open().await, scratch.open().await);
    let ours = hold(&a, &claim("a", LONG)).await;
    let _stuck = lock(&b.0.directory).expect("free");
    let answer = a.release_one(ours).await.unwrap_err();
    assert_eq!(answer.kind(), Kind::Unavailable);
    let blocker = Some(Blocker { pid: Some(std::process::id()) });
    assert_eq!(answer.blocked_by(), blocker, "{answer}");
    assert!(answer.to_string().contains(&format!("process {}", std::process::id())), "{answer}");
}

#[tokio::test]
async fn leftovers_of_dead_processes_are_removed_and_files_of_live_ones_stay() {
    let scratch = StoreDirectory::new();
    let store = scratch.open().await;
    let mut ours = claim("a", LONG);
    ours.ends_with_process = true;
    hold(&store, &ours).await;
    let (live, tmp) = (scratch.path().join("live"), scratch.path().join("tmp"));
    std::fs::write(live.join("dead"), "").unwrap();
    std::fs::write(live.join("fresh"), "").unwrap();
    std::fs::write(tmp.join("left"), "").unwrap();
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1);
    let mine = live.join(&store.0.live.get().unwrap().id.id);
    for path in [&mine, &live.join("dead"), &tmp.join("left")] {
        std::fs::File::open(path).unwrap().set_modified(old).unwrap();
    }
    let leases = scratch.path().join("leases");
    for node in ["tenure:node:a:gone.lease", "tenure:node:a:there.lease", "a:node:old.lease"] {
        std::fs::write(leases.join(node), "").unwrap();
        if !node.contains("there") {
            std::fs::File::open(leases.join(node)).unwrap().set_modified(old).unwrap();
        }
    }
    drop(scratch.open().await);
    assert!(!leases.join("tenure:node:a:gone.lease").exists());
    assert!(leases.join("tenure:node:a:there.lease").exists());
    assert!(leases.join("a:node:old.lease").exists(), "a user's record stays for ever");
    assert!(mine.exists() && live.join("fresh").exists());
    assert!(!live.join("dead").exists() && !tmp.join("left").exists());
}

#[tokio::test]
async fn errors_say_what_is_wrong_with_a_url() {
    for (url, says) in [
        ("file:/x?force=yes", "0 or 1"),
        ("file:/x?mode=1", "no option 'mode'; it has force, create"),
        ("file://host/x", "names a host"),
        ("file:~/x", "whole path"),
        ("file:/", "cannot hold leases"),
        ("file:/nowhere/at/all", "does not exist"),
    ] {
        let error = crate::open(url).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{url}: {error}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
    let scratch = StoreDirectory::new();
    let url = format!("file://{}/store", scratch.path().display());
    assert_eq!(crate::open(&url).await.unwrap().url(), url.replace("file://", "file:"));
}

#[tokio::test]
async fn examine_reports_what_the_directory_is() {
    let scratch = StoreDirectory::new();
    let store = scratch.open().await;
    let report = store.examine().await.unwrap();
    assert!(
        report.what.starts_with(&format!("directory {}", scratch.path().display())),
        "{report:?}"
    );
    assert_eq!(report.grade, Grade::B);
    assert!(report.round_trip > Duration::ZERO);
    let whats: Vec<_> = report.checks.iter().map(|check| check.what).collect();
    assert_eq!(whats, ["file system", "permissions", "space", "clock", "reach"]);
    assert_eq!(store.limits().visibility, Visibility::Machine);
    assert_eq!(visibility_of(&store.url()), Some(Visibility::Machine));
}

#[tokio::test]
async fn a_missing_directory_is_not_created_with_create_0() {
    let scratch = StoreDirectory::new();
    let path = scratch.path().join("moved-away");
    let url = format!("file:{}?create=0", path.display());
    assert_eq!(crate::open(&url).await.unwrap_err().kind(), Kind::Unavailable);
    assert!(!path.exists());
    crate::open(&format!("file:{}", path.display())).await.unwrap();
    crate::open(&url).await.unwrap();
}
