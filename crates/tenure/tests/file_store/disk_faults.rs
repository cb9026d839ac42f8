//! Full, read-only and vanishing disks: the store grants and frees nothing by mistake, and it recovers.

use std::path::{Path, PathBuf};
use std::process::Command;

use tenure::store::file::{FileOptions, FileStore};
use tenure::store::{Grade, Scope, Store, Verdict};
use tenure::{Answer, Blocker, Checkpoint, Kind, Name};

use crate::fixture::{
    LONG, Scratch, acquire, assert_fails, chmod, claim, claim_ending_with_process, hold, name,
    open, release, renew, wait,
};
use crate::{Check, Needs, check};

pub(crate) const CHECKS: &[(&str, Needs, Check)] = &[
    check!(full_disk_neither_grants_nor_frees, Root),
    check!(read_only_disk_neither_grants_nor_frees, Root),
    check!(directory_without_write_permission_neither_grants_nor_frees, NoRoot),
    check!(a_directory_that_was_moved_away_is_detected, Nothing),
    check!(a_replaced_subdirectory_is_detected, Nothing),
    check!(removed_lock_files_are_created_again, Nothing),
    check!(names_of_every_length_coexist, Nothing),
    check!(foreign_files_among_the_records_are_reported_and_left_unchanged, Nothing),
    check!(unknown_file_system_is_refused, Nothing),
    check!(forced_file_system_works_with_a_lower_grade, Root),
    check!(lock_holder_is_identified_on_overlayfs, Root),
];

/// A small private file system, unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(path: PathBuf, kind: &str, options: &str) -> Self {
        std::fs::create_dir(&path).expect("made");
        let status =
            Command::new("mount").args(["-t", kind, "-o", options, kind]).arg(&path).status();
        assert!(status.expect("mount runs").success(), "cannot mount");
        Mounted(path)
    }

    fn remount(&self, option: &str) {
        let options = format!("remount,{option}");
        let status = Command::new("mount").args(["-o", &options]).arg(&self.0).status();
        assert!(status.expect("mount runs").success(), "cannot remount");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn fill(path: &Path) {
    let mut size = 1 << 20;
    let mut file = std::fs::File::create(path).expect("made");
    while size > 0 {
        if std::io::Write::write_all(&mut file, &vec![0; size]).is_err() {
            size /= 2;
        }
    }
}

fn full_disk_neither_grants_nor_frees() {
    let scratch = Scratch::new();
    let disk = Mounted::new(scratch.path().join("disk"), "tmpfs", "size=256k,mode=0700");
    wait(async {
        let store = open(&disk.0.join("store")).await.expect("opened");
        let ours = hold(&store, &claim("a", LONG)).await;
        let filler = disk.0.join("filler");
        fill(&filler);
        let free = Name::new("other").expect("a name");
        let other = claim("b", LONG).with_name(free.clone());
        assert_fails(acquire(&store, &other).await, Kind::Unavailable, "the disk is full");
        assert!(store.observe(&Scope::name(&free)).await.expect("it works").is_empty());
        let many: Vec<_> = (0..100)
            .map(|n| Name::new(&format!("n{n}")).expect("a name"))
            .map(|name| claim("b", LONG).with_name(name))
            .collect();
        for answer in store.acquire(&many).await.expect("it works") {
            assert_fails(answer, Kind::Unavailable, "the disk is full");
        }
        assert!(renew(&store, &ours).await.expect("needs no room").is_held());
        let checkpoint = Checkpoint::new("x").expect("short");
        assert_fails(store.save(&ours, 1, &checkpoint).await, Kind::Unavailable, "full");
        assert_fails(release(&store, &ours).await, Kind::Unavailable, "full");
        assert!(!acquire(&store, &claim("b", LONG)).await.expect("a look is enough").is_held());
        std::fs::remove_file(filler).expect("removed");
        release(&store, &ours).await.expect("there is room again");
        assert!(acquire(&store, &claim("b", LONG)).await.expect("it works").is_held());
        assert!(acquire(&store, &other).await.expect("it works").is_held());
        let left = std::fs::read_dir(disk.0.join("store/tmp")).expect("listed").count();
        assert_eq!(left, 0, "temporary records were left behind");
    });
}

fn read_only_disk_neither_grants_nor_frees() {
    let scratch = Scratch::new();
    let disk = Mounted::new(scratch.path().join("disk"), "tmpfs", "size=1m,mode=0700");
    wait(async {
        let store = open(&disk.0.join("store")).await.expect("opened");
        let ours = hold(&store, &claim("a", LONG)).await;
        disk.remount("ro");
        let other = claim("b", LONG).with_name(Name::new("other").expect("a name"));
        assert_fails(acquire(&store, &other).await, Kind::Unavailable, "read-only");
        assert_fails(renew(&store, &ours).await, Kind::Unavailable, "read-only");
        assert_fails(release(&store, &ours).await, Kind::Unavailable, "read-only");
        disk.remount("rw");
        assert!(renew(&store, &ours).await.expect("it recovers").is_held());
    });
}

fn directory_without_write_permission_neither_grants_nor_frees() {
    let scratch = Scratch::new();
    wait(async {
        let store = open(&scratch.store()).await.expect("opened");
        let ours = hold(&store, &claim("a", LONG)).await;
        for part in ["leases", "tmp"] {
            chmod(&scratch.store().join(part), 0o500);
        }
        assert_fails(release(&store, &ours).await, Kind::Denied, "Permission denied");
        assert!(!acquire(&store, &claim("b", LONG)).await.expect("a look is enough").is_held());
        for part in ["leases", "tmp"] {
            chmod(&scratch.store().join(part), 0o700);
        }
        release(&store, &ours).await.expect("it recovers");
    });
}

fn a_directory_that_was_moved_away_is_detected() {
    let scratch = Scratch::new();
    wait(async {
        let store = open(&scratch.store()).await.expect("opened");
        let ours = hold(&store, &claim("a", LONG)).await;
        let away = scratch.path().join("away");
        std::fs::rename(scratch.store(), &away).expect("moved");
        assert_fails(renew(&store, &ours).await, Kind::Unavailable, "moved away");
        assert_fails(acquire(&store, &claim("b", LONG)).await, Kind::Unavailable, "moved away");
        let newcomer = open(&scratch.store()).await.expect("a new one is made");
        assert!(acquire(&newcomer, &claim("c", LONG)).await.expect("it works").is_held());
        assert_fails(renew(&store, &ours).await, Kind::Unavailable, "moved away");
        std::fs::rename(scratch.store(), scratch.path().join("wrong")).expect("moved");
        std::fs::rename(&away, scratch.store()).expect("moved back");
        assert!(renew(&store, &ours).await.expect("it recovers").is_held());
    });
}

fn a_replaced_subdirectory_is_detected() {
    for part in ["leases", "locks"] {
        let scratch = Scratch::new();
        wait(async {
            let store = open(&scratch.store()).await.expect("opened");
            let ours = hold(&store, &claim("a", LONG)).await;
            let path = scratch.store().join(part);
            std::fs::rename(&path, scratch.path().join("away")).expect("moved");
            assert_fails(renew(&store, &ours).await, Kind::Unavailable, "moved away");
            std::fs::create_dir(&path).expect("made");
            chmod(&path, 0o700);
            assert_fails(renew(&store, &ours).await, Kind::Unavailable, "moved away");
        });
    }
}

fn removed_lock_files_are_created_again() {
    let scratch = Scratch::new();
    wait(async {
        let store = open(&scratch.store()).await.expect("opened");
        let ours = hold(&store, &claim("a", LONG)).await;
        std::fs::remove_file(scratch.lock()).expect("removed");
        assert!(renew(&store, &ours).await.expect("it works").is_held());
        std::fs::remove_file(scratch.lock()).expect("removed");
        release(&store, &ours).await.expect("it works");
        assert!(acquire(&store, &claim("b", LONG)).await.expect("it works").is_held());
    });
}

fn names_of_every_length_coexist() {
    let scratch = Scratch::new();
    wait(async {
        let store = open(&scratch.store()).await.expect("opened");
        let own = |length: usize| Name::stored(&"n/".repeat(160)[..length]).expect("a name");
        let lengths = [1, 199, 200, 201, 206, 255, 256, 319, 320];
        let claims: Vec<_> =
            lengths.iter().map(|&length| claim("a", LONG).with_name(own(length))).collect();
        let mut holds = Vec::new();
        for answer in store.acquire(&claims).await.expect("it works") {
            holds.push(answer.expect("it works").held().expect("it is free").hold);
        }
        for answer in store.renew(&holds, LONG).await.expect("it works") {
            assert!(answer.expect("it works").is_held());
        }
        for (prefix, count) in [(0, 9), (150, 8), (200, 7), (201, 6), (300, 2)] {
            let scope = Scope::Prefix("n/".repeat(160)[..prefix].to_owned());
            let found = store.observe(&scope).await.expect("it works");
            assert_eq!(found.len(), count, "prefix of {prefix}");
            assert!(found.into_iter().all(|lease| lease.expect("readable").holder.is_some()));
        }
        let releases: Vec<_> = holds.into_iter().map(Into::into).collect();
        for answer in store.release(&releases).await.expect("it works") {
            answer.expect("it works");
        }
        let again = store.acquire(&claims).await.expect("it works").remove(8).expect("it works");
        assert!(matches!(again, Answer::Held(_)));
    });
}

fn foreign_files_among_the_records_are_reported_and_left_unchanged() {
    let scratch = Scratch::new();
    wait(async {
        let store = open(&scratch.store()).await.expect("opened");
        hold(&store, &claim("a", LONG)).await;
        let leases = scratch.store().join("leases");
        // A copy contains the name of its original.
        std::fs::copy(scratch.record(), leases.join("copy.lease")).expect("copied");
        std::fs::write(leases.join("not a name.lease"), "").expect("written");
        std::fs::write(leases.join("README"), "").expect("written");
        let all = store.observe(&Scope::Prefix(String::new())).await.expect("it works");
        let kinds: Vec<_> =
            all.iter().map(|l| l.as_ref().map(|_| ()).map_err(|e| e.kind())).collect();
        assert_eq!(kinds, [Err(Kind::Corrupt), Ok(()), Err(Kind::Corrupt)]);
        let copy = claim("b", LONG).with_name(Name::new("copy").expect("a name"));
        assert_fails(acquire(&store, &copy).await, Kind::Corrupt, "is the lease of 'job'");
        let some = store.observe(&Scope::Prefix("jo".to_owned())).await.expect("it works");
        assert_eq!(some.len(), 1);
        assert_eq!(some[0].as_ref().expect("readable").name, name());
    });
}

fn unknown_file_system_is_refused() {
    // Nothing can be created there, but the file system is checked first.
    let directory = Path::new("/proc/self/task");
    assert_fails(wait(open(directory)), Kind::Denied, "unknown file system (0x9fa0)");
}

fn forced_file_system_works_with_a_lower_grade() {
    let scratch = Scratch::new();
    let disk = Mounted::new(scratch.path().join("disk"), "ramfs", "mode=0700");
    let path = disk.0.join("store");
    assert_fails(wait(open(&path)), Kind::Denied, "lies on ramfs");
    wait(async {
        let store = FileStore::open(&path, FileOptions::default().force()).await.expect("opened");
        assert_eq!(store.limits().grade, Grade::C);
        assert!(store.url().ends_with("?force=1"));
        assert!(
            acquire(&store, &claim_ending_with_process("a", LONG))
                .await
                .expect("it works")
                .is_held()
        );
        let report = store.examine().await.expect("it works");
        assert_eq!((report.grade, report.checks[0].verdict), (Grade::C, Verdict::Weak));
    });
}

/// B4: with its layers on two file systems overlayfs shows another device in `stat` than in `/proc/locks`.
fn lock_holder_is_identified_on_overlayfs() {
    let scratch = Scratch::new();
    let at = |name: &str| scratch.path().join(name);
    let lower = Mounted::new(at("lower"), "tmpfs", "size=256k,mode=0700");
    let upper = Mounted::new(at("upper"), "tmpfs", "size=4m,mode=0700");
    for part in ["files", "work"] {
        std::fs::create_dir(upper.0.join(part)).expect("made");
    }
    let options = format!(
        "lowerdir={},upperdir={upper}/files,workdir={upper}/work,xino=off",
        lower.0.display(),
        upper = upper.0.display()
    );
    let merged = Mounted::new(at("merged"), "overlay", &options);
    let store_path = merged.0.join("store");
    wait(async {
        let store = open(&store_path).await.expect("opened");
        let ours = hold(&store, &claim("a", LONG)).await;
        let lock = std::fs::File::open(store_path.join("locks/job.lock")).expect("a lock file");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
        let error = release(&store, &ours).await.expect_err("it is locked");
        let blocker = Some(Blocker::new(Some(std::process::id())));
        assert_eq!(error.blocked_by(), blocker, "{error}");
    });
}
