//! Who descends from this process, read from `/proc`, and signals to those processes.
//!
//! A list of processes is old when it has been read: some of them are gone, others have been forked. So everybody who uses it
//! asks again, and nobody trusts a number in it before it is pinned down. What cannot be read is an error, never an empty
//! list: a process that was not seen is not gone.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process};

use super::pidfd::Pidfd;
use super::proc_mount;
use super::spare_fds;

/// The number of everybody there is.
fn numbers() -> io::Result<Vec<i32>> {
    if !proc_mount::is_ours() {
        return Ok(Vec::new());
    }
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/proc")? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(numbers)
}

/// One process, as it was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessInfo {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// When it was started: with its number it is this one and no other.
    pub(super) started: u64,
    /// It has ended, and waits to be reaped.
    pub(super) ended: bool,
}

/// `None` for a process that is gone.
pub(super) fn look_at(pid: i32) -> io::Result<Option<ProcessInfo>> {
    // The name of the program need not be text.
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(read(pid, &String::from_utf8_lossy(&stat))),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The same for a process that need not be ours. Of one that `/proc` hides from this user (mounted with `hidepid`) nothing is
/// known: it is another user's. A descendant of ours that became another user's is our child when its parents have died, and
/// then [`look_at`] says that it is hidden.
fn look_at_any(pid: i32) -> io::Result<Option<ProcessInfo>> {
    match look_at(pid) {
        Err(error) if matches!(errno(&error), Errno::PERM | Errno::ACCESS) => Ok(None),
        looked => looked,
    }
}

/// Whether an error of a file below `/proc/PID` says that the process is gone.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || Errno::from_io_error(error) == Some(Errno::SRCH)
}

fn read(pid: i32, stat: &str) -> Option<ProcessInfo> {
    // The name of the program is in parentheses, and may itself contain some.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    let [state, parent, group, session] =
        [words.next()?, words.next()?, words.next()?, words.next()?];
    Some(ProcessInfo {
        pid,
        parent: parent.parse().ok()?,
        group: group.parse().ok()?,
        session: session.parse().ok()?,
        started: words.nth(15)?.parse().ok()?,
        ended: matches!(state, "Z" | "X"),
    })
}

pub(super) fn parent(pid: i32) -> io::Result<Option<i32>> {
    Ok(look_at(pid)?.map(|process| process.parent))
}

/// The children of this process, reaped or not.
pub(super) fn children() -> io::Result<Vec<Pid>> {
    let _spare = spare_fds::release();
    match listed() {
        Some(pids) => Ok(pids),
        None => searched(),
    }
}

fn searched() -> io::Result<Vec<Pid>> {
    let mut pids = Vec::new();
    for pid in numbers()? {
        if look_at_any(pid)?.is_some_and(|process| process.parent == me()) {
            pids.extend(Pid::from_raw(pid));
        }
    }
    Ok(pids)
}

/// The same by the kernel's own lists, where it keeps them: quicker than looking at everybody.
fn listed() -> Option<Vec<Pid>> {
    if !proc_mount::is_ours() {
        return Some(Vec::new());
    }
    let mut pids = Vec::new();
    // Closed before the lists are opened: there may be one descriptor only.
    let tasks = fs::read_dir("/proc/self/task").ok()?.map(|task| task.map(|task| task.path()));
    let tasks: Vec<_> = tasks.collect::<io::Result<_>>().ok()?;
    for task in tasks {
        // A thread that has just ended had children too, and they are another's now.
        let list = fs::read_to_string(task.join("children")).ok()?;
        pids.extend(
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).filter_map(Pid::from_raw),
        );
    }
    Some(pids)
}

/// Shows everybody who descends from us, parents before their children, but for those that are `spared` and their families.
/// `seen` gets each one together with the numbers of all that were found so far, ours among them. An error where `/proc` does
/// not show every process.
pub(super) fn walk(
    spared: impl Fn(i32) -> bool,
    mut seen: impl FnMut(&ProcessInfo, &BTreeSet<i32>),
) -> io::Result<()> {
    let _spare = spare_fds::release();
    let me = me();
    let mut ours = BTreeSet::from([me]);
    let mut meet = |process: &ProcessInfo, ours: &mut BTreeSet<i32>| {
        let is_ours = ours.contains(&process.parent);
        if is_ours && ours.insert(process.pid) {
            seen(process, ours);
        }
        is_ours
    };
    // The first error is returned at the end: whatever can be seen is shown all the same.
    let mut unseen = None;
    let mut seen_or_not = |looked: io::Result<Option<ProcessInfo>>| {
        looked.unwrap_or_else(|error| {
            unseen.get_or_insert(error);
            None
        })
    };
    // Our children at once: one that starts its successor and ends is among them, and gone before all others are listed.
    for pid in children()?.into_iter().map(|pid| pid.as_raw_nonzero().get()) {
        if !spared(pid)
            && let Some(process) = seen_or_not(look_at(pid))
        {
            meet(&process, &mut ours);
        }
    }
    let mut everybody = numbers()?;
    if !everybody.contains(&me) && proc_mount::is_ours() {
        return Err(io::Error::other("/proc shows no processes"));
    }
    // Whoever was forked after us has a greater number, until they begin anew; and parents come before their children.
    everybody.sort_unstable_by_key(|pid| (*pid < me, *pid));
    let mut others = Vec::new();
    for pid in everybody {
        if !ours.contains(&pid) && !spared(pid) {
            let found = seen_or_not(look_at_any(pid));
            others.extend(found.filter(|process| !meet(process, &mut ours)));
        }
    }
    // Numbers begin anew, and then a child comes before its parent.
    loop {
        let before = others.len();
        others.retain(|process| !meet(process, &mut ours));
        if others.len() == before {
            return unseen.map_or(Ok(()), Err);
        }
    }
}

/// Signals a process if its parent, by now, is us or one of `ours`. One that is gone is no error.
///
/// A number alone is never trusted: the process is held by a descriptor, and then its parent is read. Without a descriptor to
/// spare, our own child is signalled by its number, which no other process gets before we reap the child. A deeper
/// descendant becomes our child when its parents die.
pub(super) fn signal_if_child_of(
    ours: &BTreeSet<i32>,
    pid: i32,
    signal: Signal,
) -> Result<(), Errno> {
    let Some(number) = Pid::from_raw(pid) else { return Ok(()) };
    let pinned = match Pidfd::open(number) {
        Ok(process) => match process.parent() {
            Ok(parent) if parent.is_some_and(|parent| ours.contains(&parent)) => {
                return sent(process.signal(signal));
            }
            Ok(_) => return Ok(()),
            Err(error) => Err(errno(&error)),
        },
        Err(error) => Err(error),
    };
    match pinned {
        Err(Errno::SRCH) => Ok(()),
        // Only this thread reaps what it has not spared, so the number is the child's until we return.
        _ if parent(pid).is_ok_and(|parent| parent == Some(me())) => {
            sent(kill_process(number, signal))
        }
        pinned => pinned,
    }
}

/// A process that is gone needs no signal.
pub(super) fn sent(result: rustix::io::Result<()>) -> Result<(), Errno> {
    match result {
        Err(Errno::SRCH) => Ok(()),
        result => result,
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// The name of its program and its real user, for a message.
pub(super) fn name_and_user(pid: i32) -> Option<(String, u32)> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
    let user = value("Uid:")?.split_whitespace().next()?.parse().ok()?;
    Some((crate::output::printable(value("Name:")?.trim()), user))
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
        assert!(children().unwrap().contains(&Pid::from_raw(pid).unwrap()));
        assert!(searched().unwrap().contains(&Pid::from_raw(pid).unwrap()));
        assert_eq!(parent(pid).unwrap(), Some(me()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children().unwrap().contains(&Pid::from_raw(pid).unwrap()));
        assert_eq!(look_at(pid).unwrap(), None);
    }

    #[test]
    fn the_name_of_a_program_does_not_confuse_us() {
        let rest = "S 7 8 9 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 3133440 0";
        let process =
            ProcessInfo { pid: 5, parent: 7, group: 8, session: 9, started: 4711, ended: false };
        assert_eq!(read(5, &format!("5 (a) S 1 (b) {rest}")), Some(process));
        assert_eq!(read(5, "5 (a) S 1"), None);
    }

    #[test]
    fn a_walk_finds_a_child_and_leaves_out_a_spared_one() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let found = |spared: Option<i32>| {
            let mut found = false;
            walk(
                |pid| Some(pid) == spared,
                |process, ours| {
                    assert!(ours.contains(&process.parent));
                    found |= process.pid == pid;
                },
            )
            .unwrap();
            found
        };
        assert!(found(None));
        assert!(!found(Some(pid)));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn only_a_child_of_ours_is_signalled() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        signal_if_child_of(&BTreeSet::from([1]), pid, Signal::KILL).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "its parent is not in the set");
        assert_eq!(name_and_user(pid).unwrap().1, rustix::process::getuid().as_raw());
        signal_if_child_of(&BTreeSet::from([me()]), pid, Signal::KILL).unwrap();
        assert_eq!(child.wait().unwrap().code(), None);
        signal_if_child_of(&BTreeSet::from([me()]), pid, Signal::KILL).unwrap();
    }
}
