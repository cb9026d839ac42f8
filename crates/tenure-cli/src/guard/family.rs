//! Who descends from this process, read from `/proc`.
//!
//! A list of processes is old when it has been read: some of them are gone, others have been forked. So everybody who uses it
//! asks again, and nobody trusts a number in it before it is pinned down.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// The number of everybody there is. Without a readable `/proc`, nobody's.
fn numbers() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program is in parentheses, and may itself contain some.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

/// The children of this process, reaped or not.
pub(super) fn children() -> Vec<Pid> {
    match listed() {
        Some(pids) => pids,
        None => searched(),
    }
}

fn searched() -> Vec<Pid> {
    let mut pids = numbers();
    pids.retain(|pid| parent(*pid) == Some(me()));
    pids.into_iter().filter_map(Pid::from_raw).collect()
}

/// The same by the kernel's own lists, where it keeps them: quicker than looking at everybody.
fn listed() -> Option<Vec<Pid>> {
    let mut pids = Vec::new();
    for task in fs::read_dir("/proc/self/task").ok()? {
        // A thread that has just ended had children too, and they are another's now.
        let list = fs::read_to_string(task.ok()?.path().join("children")).ok()?;
        pids.extend(
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).filter_map(Pid::from_raw),
        );
    }
    Some(pids)
}

/// Kills everybody who descends from us, but for those that are `spared` and their families: all of them in one go, because
/// on a busy machine it takes its time until each layer has died and the next is ours.
pub(super) fn kill(spared: &[Pid]) {
    let me = me();
    let mut everybody = numbers();
    // Whoever was forked after us has a greater number, until they begin anew; and parents come before their children.
    everybody.sort_unstable_by_key(|pid| (*pid < me, *pid));
    let mut ours = BTreeSet::from([me]);
    for pid in everybody {
        let spared = spared.iter().any(|spared| spared.as_raw_nonzero().get() == pid);
        if !spared && parent(pid).is_some_and(|parent| ours.contains(&parent)) {
            ours.insert(pid);
            kill_if_child_of(&ours, pid);
        }
    }
}

/// Kills `pid` if its parent, by now, is us or one of ours.
fn kill_if_child_of(ours: &BTreeSet<i32>, pid: i32) {
    let Some(pinned) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
    else {
        return;
    };
    // Asked after it was pinned: whoever has this number now is the one who will be killed.
    if parent(pid).is_some_and(|parent| ours.contains(&parent)) {
        let _ = pidfd_send_signal(&pinned, Signal::KILL);
    }
}

fn me() -> i32 {
    getpid().as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_is_found_whichever_way() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(children().contains(&Pid::from_raw(pid).unwrap()));
        assert!(searched().contains(&Pid::from_raw(pid).unwrap()));
        assert_eq!(parent(pid), Some(me()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children().contains(&Pid::from_raw(pid).unwrap()));
    }
}
