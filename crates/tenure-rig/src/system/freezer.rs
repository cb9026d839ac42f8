//! Freezes a whole process tree at one instant and thaws it at one instant.
//!
//! With the kernel's freezer (cgroup v1) where it is permitted; otherwise with SIGSTOP and SIGCONT to one process after the
//! other.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tenure::Moment;

use super::processes::{MARK, below, is_stopped, is_there, signal};
use super::time::{now, poll_until};
use super::trial_directory::TrialDirectory;

const ROOT: &str = "/sys/fs/cgroup/freezer";

fn group(mark: &str) -> PathBuf {
    let last = Path::new(mark).file_name().unwrap_or_default().to_string_lossy().into_owned();
    Path::new(ROOT).join(last)
}

/// Thaws the processes that are frozen under this mark.
pub fn thaw(mark: &str) {
    let _ = std::fs::write(group(mark).join("freezer.state"), "THAWED");
}

/// Removes the group, and moves its members back to the root group.
pub fn remove(mark: &str) {
    let group = group(mark);
    // Until the group is empty: a process that a member forks before it is moved is a member too, and would be frozen with the
    // next tree.
    poll_until(Duration::from_secs(1), || {
        let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines() {
            let _ = std::fs::write(Path::new(ROOT).join("cgroup.procs"), pid);
        }
        members.is_empty().then_some(())
    });
    let _ = std::fs::remove_dir(group);
}

/// Freezes a process while it holds no lock of a lease in a directory store, and returns the moment just before. The kernel drops
/// such a lock only when its process dies: so no other process could hold the lease until the frozen one resumes, and a guard
/// kills it.
pub fn freeze_between_changes(pid: u32) -> Moment {
    let frozen = poll_until(Duration::from_secs(20), || {
        let at = now();
        signal(pid, Signal::STOP);
        poll_until(Duration::from_secs(20), || all_threads_are_stopped(pid).then_some(()))?;
        if !holds_lease_lock(pid) {
            return Some(at);
        }
        signal(pid, Signal::CONT);
        None
    });
    frozen.expect("it does not hold a lock all the time")
}

/// A process that is gone counts as stopped.
fn all_threads_are_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses and may contain any character.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| !rest.starts_with(['R', 'S', 'D']))
    })
}

/// Whether a process holds a lock on a file in a directory `locks`, where a directory store has the locks of its leases.
fn holds_lease_lock(pid: u32) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return false };
    descriptors.flatten().any(|descriptor| {
        let info = std::fs::read_to_string(descriptor.path()).unwrap_or_default();
        let file = Path::new("/proc").join(pid.to_string()).join("fd").join(descriptor.file_name());
        let in_locks =
            |file: PathBuf| file.parent().is_some_and(|parent| parent.ends_with("locks"));
        info.contains("FLOCK") && std::fs::read_link(file).is_ok_and(in_locks)
    })
}

/// A frozen process tree; dropping this thaws it too.
pub struct Frozen {
    mark: String,
    root: u32,
    by_kernel: bool,
    thawed: bool,
}

impl Frozen {
    /// Freezes `root` and all its descendants. Returns the moment just before.
    pub fn new(root: u32, mark: &str) -> (Frozen, Moment) {
        let group = group(mark);
        // The group may exist: it cannot be removed at once after its members were killed.
        let by_kernel = std::fs::create_dir(&group).is_ok() || group.is_dir();
        let frozen = Frozen { mark: mark.to_owned(), root, by_kernel, thawed: false };
        if !by_kernel {
            let at = now();
            frozen.stop_all();
            return (frozen, at);
        }
        // Until no process is found that is not in the group.
        let members = || std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
        let outside = || {
            let members = members();
            let inside = |pid: &u32| members.lines().any(|line| line == pid.to_string());
            let all = std::iter::once(root).chain(below(root));
            all.filter(|pid| !inside(pid)).collect::<Vec<_>>()
        };
        let moved = poll_until(Duration::from_secs(5), || {
            let outside = outside();
            for pid in &outside {
                let _ = std::fs::write(group.join("cgroup.procs"), pid.to_string());
            }
            outside.is_empty().then_some(())
        });
        moved.expect("the tree stays what it is for a moment");
        let at = now();
        std::fs::write(group.join("freezer.state"), "FROZEN").unwrap();
        let state = || std::fs::read_to_string(group.join("freezer.state")).unwrap();
        poll_until(Duration::from_secs(5), || (state().trim() == "FROZEN").then_some(()))
            .expect("the kernel freezes it");
        (frozen, at)
    }

    /// The leader first, so that no process is left that could react.
    fn stop_all(&self) {
        let all = || std::iter::once(self.root).chain(below(self.root));
        poll_until(Duration::from_secs(5), || {
            all().for_each(|pid| signal(pid, Signal::STOP));
            all().all(|pid| is_stopped(pid) || !is_there(pid)).then_some(())
        })
        .expect("they all stop");
    }

    /// Thaws all. Returns the moment just before.
    pub fn thaw(mut self) -> Moment {
        self.thaw_all()
    }

    fn thaw_all(&mut self) -> Moment {
        let at = now();
        if !std::mem::replace(&mut self.thawed, true) {
            if self.by_kernel {
                thaw(&self.mark);
                remove(&self.mark);
            } else {
                let all = std::iter::once(self.root).chain(below(self.root));
                all.for_each(|pid| signal(pid, Signal::CONT));
            }
        }
        at
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.thaw_all();
    }
}

/// A tree that starts processes all the time leaves none of them in the group: a process left there would be frozen with the
/// next tree, and what it does after that thaw would look like work of a stale leader.
pub fn control() {
    let room = TrialDirectory::new();
    let forks = "while :; do sleep 0.001 & sleep 0.001 & wait; done";
    let mut tree = Command::new("setsid");
    let tree = tree.args(["sh", "-c", forks]).env(MARK, room.mark()).spawn();
    let mut tree = tree.expect("sh is there");
    let left = (0..200).filter(|_| {
        let (frozen, _) = Frozen::new(tree.id(), room.mark());
        let by_kernel = frozen.by_kernel;
        frozen.thaw();
        let members = std::fs::read_to_string(group(room.mark()).join("cgroup.procs"));
        by_kernel && members.is_ok_and(|members| !members.is_empty())
    });
    let left = left.count();
    tree.kill().and_then(|()| tree.wait()).expect("the tree ends");
    assert_eq!(left, 0, "of 200 thaws that left a process in the group");
}
