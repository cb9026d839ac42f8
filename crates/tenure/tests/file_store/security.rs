//! S11: lets no one in where they don't belong.

use std::os::unix::fs::{chown, lchown, symlink};
use std::path::Path;

use rustix::fs::{CWD, Mode, mkfifoat};
use tenure::Kind;
use tenure::store::{Scope, Store};

use crate::child;
use crate::fixture::{
    LONG, Scratch, acquire, chmod, claim, fails, hold, mode, name, open, release, renew, wait,
};
use crate::{Check, Needs, check};

const NOBODY: u32 = 65534;

pub(crate) const CHECKS: &[(&str, Needs, Check)] = &[
    check!(what_is_made_is_private_whatever_the_umask, Nothing),
    check!(symlinked_directory_is_refused, Nothing),
    check!(symlinked_part_of_it_is_refused, Nothing),
    check!(directory_others_can_write_is_refused, Nothing),
    check!(parent_everybody_can_write_is_refused, Nothing),
    check!(sticky_directory_gets_a_private_one_inside, Nothing),
    check!(file_in_place_of_the_directory_is_refused, Nothing),
    check!(record_that_is_not_a_plain_private_file_is_refused_and_left_alone, Nothing),
    check!(lock_that_is_not_a_plain_private_file_is_refused, Nothing),
    check!(directory_opened_up_while_it_runs_is_refused, Nothing),
    check!(foreign_owner_is_refused, Root),
    check!(foreign_link_on_the_way_is_refused, Root),
    check!(unreadable_directory_is_denied, NoRoot),
];

fn what_is_made_is_private_whatever_the_umask() {
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
fn refused(path: &Path, says: &str) {
    fails(wait(open(path)), Kind::Denied, says);
}

fn symlinked_directory_is_refused() {
    let scratch = Scratch::new();
    let real = scratch.path().join("real");
    std::fs::create_dir(&real).expect("made");
    symlink(&real, scratch.store()).expect("linked");
    refused(&scratch.store(), "symbolic link");
    assert_eq!(std::fs::read_dir(&real).expect("listed").count(), 0, "something was written");
}

fn symlinked_part_of_it_is_refused() {
    for part in ["leases", "locks", "live", "tmp"] {
        let scratch = Scratch::new();
        wait(open(&scratch.store())).expect("opened");
        let (path, away) = (scratch.store().join(part), scratch.path().join("away"));
        std::fs::rename(&path, &away).expect("moved");
        symlink(&away, &path).expect("linked");
        refused(&scratch.store(), "symbolic link");
    }
}

fn directory_others_can_write_is_refused() {
    for part in ["", "leases", "locks", "live", "tmp"] {
        for bad in [0o720, 0o702, 0o777] {
            let scratch = Scratch::new();
            wait(open(&scratch.store())).expect("opened");
            chmod(&scratch.store().join(part), bad);
            refused(&scratch.store(), "can be written by");
        }
    }
}

fn parent_everybody_can_write_is_refused() {
    let scratch = Scratch::new();
    let parent = scratch.path().join("open");
    std::fs::create_dir_all(parent.join("below")).expect("made");
    chmod(&parent, 0o777);
    refused(&parent.join("store"), "written by everybody");
    refused(&parent.join("below/store"), "written by everybody");
    chmod(&parent, 0o1777);
    wait(open(&parent.join("below/store"))).expect("sticky: what is below is its owner's");
}

fn sticky_directory_gets_a_private_one_inside() {
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
        chown(&inside, Some(NOBODY), None).expect("given away");
        refused(&sticky, "belongs to user 65534");
    }
}

fn file_in_place_of_the_directory_is_refused() {
    let scratch = Scratch::new();
    std::fs::write(scratch.store(), "x").expect("written");
    refused(&scratch.store(), "Not a directory");
}

/// Puts something at a path. Says what must be said about it.
type Intrusion = fn(&Path, &Scratch) -> &'static str;

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
    // The path of a socket is short: by way of the working directory of nobody.
    let short = std::env::temp_dir().join(format!("t{}", std::process::id()));
    drop(std::os::unix::net::UnixListener::bind(&short).expect("bound"));
    if std::fs::rename(&short, path).is_err() {
        // Another file system: a FIFO does as well.
        std::fs::remove_file(short).expect("removed");
        return fifo(path, &Scratch::new());
    }
    ""
}

const INTRUSIONS: &[Intrusion] =
    &[fifo, link, hard_link, world_writable, group_writable, directory, socket];

fn record_that_is_not_a_plain_private_file_is_refused_and_left_alone() {
    for intrude in INTRUSIONS {
        let scratch = Scratch::new();
        wait(async {
            let store = open(&scratch.store()).await.expect("opened");
            let ours = hold(&store, &claim("a", LONG)).await;
            let says = intrude(&scratch.record(), &scratch);
            let before = std::fs::symlink_metadata(scratch.record()).expect("there");
            fails(acquire(&store, &claim("b", LONG)).await, Kind::Denied, says);
            fails(renew(&store, &ours).await, Kind::Denied, says);
            fails(release(&store, &ours).await, Kind::Denied, says);
            let seen = store.observe(&Scope::name(&name())).await.expect("it works").remove(0);
            fails(seen, Kind::Denied, says);
            let after = std::fs::symlink_metadata(scratch.record()).expect("still there");
            use std::os::unix::fs::MetadataExt;
            assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()));
        });
    }
}

fn lock_that_is_not_a_plain_private_file_is_refused() {
    for intrude in INTRUSIONS {
        let scratch = Scratch::new();
        wait(async {
            let store = open(&scratch.store()).await.expect("opened");
            let ours = hold(&store, &claim("a", LONG)).await;
            let says = intrude(&scratch.lock(), &scratch);
            fails(renew(&store, &ours).await, Kind::Denied, says);
            fails(release(&store, &ours).await, Kind::Denied, says);
        });
    }
}

fn directory_opened_up_while_it_runs_is_refused() {
    let scratch = Scratch::new();
    wait(async {
        let store = open(&scratch.store()).await.expect("opened");
        let ours = hold(&store, &claim("a", LONG)).await;
        chmod(&scratch.store(), 0o777);
        fails(renew(&store, &ours).await, Kind::Denied, "can be written by others");
        chmod(&scratch.store(), 0o700);
        assert!(renew(&store, &ours).await.expect("it works").is_held());
    });
}

fn foreign_owner_is_refused() {
    for part in ["", "leases", "locks", "live", "tmp"] {
        let scratch = Scratch::new();
        wait(open(&scratch.store())).expect("opened");
        chown(scratch.store().join(part), Some(NOBODY), None).expect("given away");
        refused(&scratch.store(), "belongs to user 65534");
    }
    for part in [Scratch::record, Scratch::lock] {
        let scratch = Scratch::new();
        wait(async {
            let store = open(&scratch.store()).await.expect("opened");
            let ours = hold(&store, &claim("a", LONG)).await;
            chown(part(&scratch), Some(NOBODY), None).expect("given away");
            fails(renew(&store, &ours).await, Kind::Denied, "belongs to user 65534");
        });
    }
}

fn foreign_link_on_the_way_is_refused() {
    let scratch = Scratch::new();
    let (real, link) = (scratch.path().join("real"), scratch.path().join("link"));
    std::fs::create_dir(&real).expect("made");
    symlink(&real, &link).expect("linked");
    wait(open(&link.join("store"))).expect("our own link is followed");
    lchown(&link, Some(NOBODY), None).expect("given away");
    refused(&link.join("store"), "symbolic link of user 65534");
}

fn unreadable_directory_is_denied() {
    let scratch = Scratch::new();
    let parent = scratch.path().join("closed");
    std::fs::create_dir(&parent).expect("made");
    chmod(&parent, 0o500);
    refused(&parent.join("store"), "Permission denied");
    chmod(&parent, 0o700);
}
