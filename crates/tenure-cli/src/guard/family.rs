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

/// One process, as it was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// When it was started: with its number it is this one and no other.
    pub(super) started: u64,
}

fn look_at(pid: i32) -> Option<Process> {
    // The name of the program need not be text.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    read(pid, &String::from_utf8_lossy(&stat))
}

fn read(pid: i32, stat: &str) -> Option<Process> {
    // The name of the program is in parentheses, and may itself contain some.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split(' ').skip(1);
    let [parent, group, session] = [words.next()?, words.next()?, words.next()?];
    Some(Process {
        pid,
        parent: parent.parse().ok()?,
        group: group.parse().ok()?,
        session: session.parse().ok()?,
        started: words.nth(15)?.parse().ok()?,
    })
}

fn parent(pid: i32) -> Option<i32> {
    Some(look_at(pid)?.parent)
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

/// Shows everybody who descends from us, parents before their children, but for those that are `spared` and their families.
/// `seen` gets each one together with the numbers of all that were found so far, ours among them. Whether `/proc` shows
/// processes at all.
pub(super) fn walk(
    spared: impl Fn(i32) -> bool,
    mut seen: impl FnMut(&Process, &BTreeSet<i32>),
) -> bool {
    let me = me();
    let mut ours = BTreeSet::from([me]);
    let mut meet = |process: &Process, ours: &mut BTreeSet<i32>| {
        let is_ours = ours.contains(&process.parent);
        if is_ours && ours.insert(process.pid) {
            seen(process, ours);
        }
        is_ours
    };
    // Our children at once: one that starts its successor and ends is among them, and gone before all others are listed.
    for pid in children().into_iter().map(|pid| pid.as_raw_nonzero().get()) {
        if let Some(process) = Some(pid).filter(|pid| !spared(*pid)).and_then(look_at) {
            meet(&process, &mut ours);
        }
    }
    let mut everybody = numbers();
    let shown = everybody.contains(&me);
    // Whoever was forked after us has a greater number, until they begin anew; and parents come before their children.
    everybody.sort_unstable_by_key(|pid| (*pid < me, *pid));
    let mut others = Vec::new();
    for pid in everybody {
        if !ours.contains(&pid) && !spared(pid) {
            others.extend(look_at(pid).filter(|process| !meet(process, &mut ours)));
        }
    }
    // Numbers begin anew, and then a child comes before its parent.
    loop {
        let before = others.len();
        others.retain(|process| !meet(process, &mut ours));
        if others.len() == before {
            return shown;
        }
    }
}

/// Kills everybody who descends from us, but for those that are `spared` and their families: all of them in one go, because
/// on a busy machine it takes its time until each layer has died and the next is ours.
pub(super) fn kill(spared: &BTreeSet<i32>) {
    walk(
        |pid| spared.contains(&pid),
        |process, ours| signal_if_child_of(ours, process.pid, Signal::KILL),
    );
}

/// Signals `pid` if its parent, by now, is us or one of ours.
pub(super) fn signal_if_child_of(ours: &BTreeSet<i32>, pid: i32, signal: Signal) {
    let Some(pinned) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
    else {
        return;
    };
    // Asked after it was pinned: whoever has this number now is the one who will be signalled.
    if parent(pid).is_some_and(|parent| ours.contains(&parent)) {
        let _ = pidfd_send_signal(&pinned, signal);
    }
}

/// The environment which `pid` was started with: variables, with a NUL behind each.
pub(super) fn environment(pid: i32) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/environ")).ok()
}

pub(super) fn me() -> i32 {
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

    #[test]
    fn the_name_of_a_program_does_not_confuse_us() {
        let rest = "S 7 8 9 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 3133440 0";
        let process = Process { pid: 5, parent: 7, group: 8, session: 9, started: 4711 };
        assert_eq!(read(5, &format!("5 (a) S 1 (b) {rest}")), Some(process));
        assert_eq!(read(5, "5 (a) S 1"), None);
    }

    #[test]
    fn a_walk_finds_a_child_and_leaves_out_a_spared_one() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let found = |spared: Option<i32>| {
            let mut found = false;
            assert!(walk(
                |pid| Some(pid) == spared,
                |process, ours| {
                    assert!(ours.contains(&process.parent));
                    found |= process.pid == pid;
                }
            ));
            found
        };
        assert!(found(None));
        assert!(!found(Some(pid)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
