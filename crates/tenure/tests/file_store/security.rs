//! S11: other users cannot tamper with the store.

use std::os::unix::fs::{chown, lchown, symlink};
use std::path::Path;

use rustix::fs::{CWD, Mode, mkfifoat};
use tenure::Kind;
use tenure::store::{Scope, Store};

use crate::child;
use crate::fixture::{
    LONG, Scratch, acquire, assert_fails, chmod, claim, hold, mode, name, open, release, renew,
    wait,
};
use crate::{Check, Needs, check};

const NOBODY_UID: u32 = 65534;

pub(crate) const CHECKS: &[(&str, Needs, Check)] = &[
    check!(created_files_are_private_with_any_umask, Nothing),
    check!(symlinked_directory_is_refused, Nothing),
    check!(symlinked_subdirectory_is_refused, Nothing),
    check!(directory_others_can_write_is_refused, Nothing),
    check!(world_writable_parent_is_refused, Nothing),
    check!(sticky_directory_gets_a_private_subdirectory, Nothing),
    check!(file_in_place_of_the_directory_is_refused, Nothing),
    check!(record_that_is_not_a_plain_private_file_is_refused_and_left_unchanged, Nothing),
    check!(lock_that_is_not_a_plain_private_file_is_refused, Nothing),
    check!(directory_made_writable_at_run_time_is_refused, Nothing),
    check!(foreign_owner_is_refused, Root),
    check!(foreign_link_in_the_path_is_refused, Root),
    check!(unreadable_directory_is_denied, NoRoot),
];

fn created_files_are_private_with_any_umask() {
    let scratch = Scratch::new();
    for umask in ["0", "022", "077", "0277"] {
        let store = scratch.path().join(umask);
        child::run("umask", &store, &[("UMASK", umask)]);
        for (path, expected) in [
            ("", 0o700),
            ("leases", 0o700),
            ("locks", 0o700),
            ("live", 0o700),
            ("tmp", 0o700),
            ("leases/job.lease", 0o600),
            ("locks/job.lock", 0o600),
        ] {
            assert_eq!(mode(&store.join(path)), expected, "{path} with umask {umask}");
        }
        for entry in std::fs::read_dir(store.join("live")).expect("listed") {
            assert_eq!(mode(&entry.expect("an entry").path()), 0o600);
        }
    }
}

#[track_caller]
fn assert_refused(path: &Path, says: &str) {
    assert_fails(wait(open(path)), Kind::Denied, says);
}

fn symlinked_directory_is_refused() {
    let scratch = Scratch::new();
    let real = scratch.path().join("real");
    std::fs::create_dir(&real).expect("made");
    symlink(&real, scratch.store()).expect("linked");
    assert_refused(&scratch.store(), "symbolic link");
    assert_eq!(std::fs::read_dir(&real).expect("listed").count(), 0, "something was written");
}

fn symlinked_subdirectory_is_refused() {
    for part in ["leases", "locks", "live", "tmp"] {
        let scratch = Scratch::new();
        wait(open(&scratch.store())).expect("opened");
        let (path, away) = (scratch.store().join(part), scratch.path().join("away"));
        std::fs::rename(&path, &away).expect("moved");
        symlink(&away, &path).expect("linked");
        assert_refused(&scratch.store(), "symbolic link");
    }
}

fn directory_others_can_write_is_refused() {
    for part in ["", "leases", "locks", "live", "tmp"] {
        for bad in [0o720, 0o702, 0o777] {
            let scratch = Scratch::new();
            wait(open(&scratch.store())).expect("opened");
            chmod(&scratch.store().join(part), bad);
            assert_refused(&scratch.store(), "can be written by");
        }
    }
}

fn world_writable_parent_is_refused() {
    let scratch = Scratch::new();
    let parent = scratch.path().join("open");
    std::fs::create_dir_all(parent.join("below")).expect("made");
    chmod(&parent, 0o777);
    assert_refused(&parent.join("store"), "written by all users");
    assert_refused(&parent.join("below/store"), "written by all users");
    chmod(&parent, 0o1777);
    wait(open(&parent.join("below/store"))).expect("sticky: what is below is its owner's");
}

fn sticky_directory_gets_a_private_subdirectory() {
    let scratch = Scratch::new();
    let sticky = scratch.path().join("tmp");
    std::fs::create_dir(&sticky).expect("made");
    chmod(&sticky, 0o1777);
    let store = wait(open(&sticky)).expect("opened");
    let inside = sticky.join(format!("tenure-{}", rustix::process::geteuid().as_raw()));
    assert_eq!(store.directory(), inside);
    assert_eq!(store.url(), format!("file:{}", inside.display()));
    assert_eq!(mode(&inside), 0o700);
    assert_eq!(std::fs::read_dir(&sticky).expect("listed").count(), 1);
    if rustix::process::geteuid().is_root() {
        chown(&inside, Some(NOBODY_UID), None).expect("given away");
        assert_refused(&sticky, "belongs to user 65534");
    }
}

fn file_in_place_of_the_directory_is_refused() {
    let scratch = Scratch::new();
    std::fs::write(scratch.store(), "x").expect("written");
    assert_refused(&scratch.store(), "Not a directory");
}

/// Replaces the file at a path, and returns what the error must contain.
type Tampering = fn(&Path, &Scratch) -> &'static str;

fn fifo(path: &Path, _: &Scratch) -> &'static str {
    let _ = std::fs::remove_file(path);
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).expect("made");
    "is not a plain file"
}

fn link(path: &Path, scratch: &Scratch) -> &'static str {
    let away = scratch.path().join("away");
    std::fs::rename(path, &away).expect("moved");
    symlink(away, path).expect("linked");
    "symbolic link"
}

fn hard_link(path: &Path, scratch: &Scratch) -> &'static str {
    std::fs::hard_link(path, scratch.path().join("away")).expect("linked");
    "has 2 names"
}

fn world_writable(path: &Path, _: &Scratch) -> &'static str {
    chmod(path, 0o666);
    "can be written by others (mode 0666)"
}

fn group_writable(path: &Path, _: &Scratch) -> &'static str {
    chmod(path, 0o620);
    "can be written by others (mode 0620)"
}

fn directory(path: &Path, _: &Scratch) -> &'static str {
    std::fs::remove_file(path).expect("removed");
    std::fs::create_dir(path).expect("made");
    ""
}

fn socket(path: &Path, _: &Scratch) -> &'static str {
    std::fs::remove_file(path).expect("removed");
    // The path of a socket must be short, so it is created in the temporary directory first.
    let short = std::env::temp_dir().join(format!("t{}", std::process::id()));
    drop(std::os::unix::net::UnixListener::bind(&short).expect("bound"));
    if std::fs::rename(&short, path).is_err() {
        // On another file system the rename fails: use a FIFO instead.
        std::fs::remove_file(short).expect("removed");
        return fifo(path, &Scratch::new());
    }
    ""
}

const TAMPERINGS: &[Tampering] =
    &[fifo, link, hard_link, world_writable, group_writable, directory, socket];

fn record_that_is_not_a_plain_private_file_is_refused_and_left_unchanged() {
    for tamper in TAMPERINGS {
        let scratch = Scratch::new();
        wait(async {
            let store = open(&scratch.store()).await.expect("opened");
            let ours = hold(&store, &claim("a", LONG)).await;
            let says = tamper(&scratch.record(), &scratch);
            let before = std::fs::symlink_metadata(scratch.record()).expect("there");
            assert_fails(acquire(&store, &claim("b", LONG)).await, Kind::Denied, says);
            assert_fails(renew(&store, &ours).await, Kind::Denied, says);
            assert_fails(release(&store, &ours).await, Kind::Denied, says);
            let observed = store.observe(&Scope::name(&name())).await.expect("it works").remove(0);
            assert_fails(observed, Kind::Denied, says);
            let after = std::fs::symlink_metadata(scratch.record()).expect("still there");
            use std::os::unix::fs::MetadataExt;
            assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()));
        });
    }
}

fn lock_that_is_not_a_plain_private_file_is_refused() {
    for tamper in TAMPERINGS {
        let scratch = Scratch::new();
        wait(async {
            let store = open(&scratch.store()).await.expect("opened");
            let ours = hold(&store, &claim("a", LONG)).await;
            let says = tamper(&scratch.lock(), &scratch);
            assert_fails(renew(&store, &ours).await, Kind::Denied, says);
            assert_fails(release(&store, &ours).await, Kind::Denied, says);
        });
    }
}

fn directory_made_writable_at_run_time_is_refused() {
    let scratch = Scratch::new();
    wait(async {
        let store = open(&scratch.store()).await.expect("opened");
        let ours = hold(&store, &claim("a", LONG)).await;
        chmod(&scratch.store(), 0o777);
        assert_fails(renew(&store, &ours).await, Kind::Denied, "can be written by others");
        chmod(&scratch.store(), 0o700);
        assert!(renew(&store, &ours).await.expect("it works").is_held());
    });
}

fn foreign_owner_is_refused() {
    for part in ["", "leases", "locks", "live", "tmp"] {
        let scratch = Scratch::new();
        wait(open(&scratch.store())).expect("opened");
        chown(scratch.store().join(part), Some(NOBODY_UID), None).expect("given away");
        assert_refused(&scratch.store(), "belongs to user 65534");
    }
    for part in [Scratch::record, Scratch::lock] {
        let scratch = Scratch::new();
        wait(async {
            let store = open(&scratch.store()).await.expect("opened");
            let ours = hold(&store, &claim("a", LONG)).await;
            chown(part(&scratch), Some(NOBODY_UID), None).expect("given away");
            assert_fails(renew(&store, &ours).await, Kind::Denied, "belongs to user 65534");
        });
    }
}

fn foreign_link_in_the_path_is_refused() {
    let scratch = Scratch::new();
    let (real, link) = (scratch.path().join("real"), scratch.path().join("link"));
    std::fs::create_dir(&real).expect("made");
    symlink(&real, &link).expect("linked");
    wait(open(&link.join("store"))).expect("our own link is followed");
    lchown(&link, Some(NOBODY_UID), None).expect("given away");
    assert_refused(&link.join("store"), "symbolic link of user 65534");
}

fn unreadable_directory_is_denied() {
    let scratch = Scratch::new();
    let parent = scratch.path().join("closed");
    std::fs::create_dir(&parent).expect("made");
    chmod(&parent, 0o500);
    assert_refused(&parent.join("store"), "Permission denied");
    chmod(&parent, 0o700);
}
