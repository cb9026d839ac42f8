//! The descendants of this process, read from `/proc`, and signals to them.
//!
//! A list of processes is outdated as soon as it has been read: some of them are gone, others have been forked. So every caller
//! reads it repeatedly, and trusts no process number in it before the process is held by a descriptor. A read that fails is an
//! error, never an empty list: a process that was not found is not proven to be gone.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process};

use super::pidfd::Pidfd;
use super::proc_mount;
use super::spare_fds;

/// The numbers of all processes.
fn all_pids() -> io::Result<Vec<i32>> {
    if !proc_mount::is_own_namespace() {
        return Ok(Vec::new());
    }
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/proc")? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(numbers)
}

/// A snapshot of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessInfo {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// When the process was started. Together with the number it identifies the process.
    pub(super) started: u64,
    /// The process has ended and is not reaped yet.
    pub(super) ended: bool,
}

/// Reads one process; `None` if it is gone.
pub(super) fn read_process(pid: i32) -> io::Result<Option<ProcessInfo>> {
    // The program's name need not be UTF-8.
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(parse_stat(pid, &String::from_utf8_lossy(&stat))),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a process that need not descend from this one. A process that `/proc` hides from this user (mounted with `hidepid`)
/// belongs to another user and counts as gone. A descendant that changed its user becomes a child of this process when its
/// parents have died, and then [`read_process`] reports that it is hidden.
fn read_any_process(pid: i32) -> io::Result<Option<ProcessInfo>> {
    match read_process(pid) {
        Err(error) if matches!(errno(&error), Errno::PERM | Errno::ACCESS) => Ok(None),
        result => result,
    }
}

/// Whether an error of a file below `/proc/PID` means that the process is gone.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || Errno::from_io_error(error) == Some(Errno::SRCH)
}

fn parse_stat(pid: i32, stat: &str) -> Option<ProcessInfo> {
    // The program's name is in parentheses, and may itself contain some.
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
    Ok(read_process(pid)?.map(|process| process.parent))
}

/// The children of this process, reaped or not.
pub(super) fn children() -> io::Result<Vec<Pid>> {
    let _spare = spare_fds::release();
    match listed_by_kernel() {
        Some(pids) => Ok(pids),
        None => searched_in_proc(),
    }
}

fn searched_in_proc() -> io::Result<Vec<Pid>> {
    let mut pids = Vec::new();
    for pid in all_pids()? {
        if read_any_process(pid)?.is_some_and(|process| process.parent == me()) {
            pids.extend(Pid::from_raw(pid));
        }
    }
    Ok(pids)
}

/// The same by the kernel's own lists, where it provides them: faster than reading every process.
fn listed_by_kernel() -> Option<Vec<Pid>> {
    if !proc_mount::is_own_namespace() {
        return Some(Vec::new());
    }
    let mut pids = Vec::new();
    // The directory is closed before the lists are opened: only one descriptor may be free.
    let tasks = fs::read_dir("/proc/self/task").ok()?.map(|task| task.map(|task| task.path()));
    let tasks: Vec<_> = tasks.collect::<io::Result<_>>().ok()?;
    for task in tasks {
        // A thread that has just ended had children too; another thread is their parent now.
        let list = fs::read_to_string(task.join("children")).ok()?;
        pids.extend(
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).filter_map(Pid::from_raw),
        );
    }
    Some(pids)
}

/// Visits every descendant of this process, parents before their children, except the `spared` children and their descendants.
/// `visit` gets each process together with the numbers of all that were found so far, this process included. Returns an error
/// if `/proc` does not show every process.
pub(super) fn walk(
    spared: impl Fn(i32) -> bool,
    mut visit: impl FnMut(&ProcessInfo, &BTreeSet<i32>),
) -> io::Result<()> {
    let _spare = spare_fds::release();
    let me = me();
    let mut descendants = BTreeSet::from([me]);
    let mut visit_descendant = |process: &ProcessInfo, descendants: &mut BTreeSet<i32>| {
        let is_descendant = descendants.contains(&process.parent);
        if is_descendant && descendants.insert(process.pid) {
            visit(process, descendants);
        }
        is_descendant
    };
    // The first error is returned at the end: all readable processes are visited all the same.
    let mut first_error = None;
    let mut found_or_error = |result: io::Result<Option<ProcessInfo>>| {
        result.unwrap_or_else(|error| {
            first_error.get_or_insert(error);
            None
        })
    };
    // Children first: a child that starts its successor and ends would be gone before all processes are listed.
    for pid in children()?.into_iter().map(|pid| pid.as_raw_nonzero().get()) {
        if !spared(pid)
            && let Some(process) = found_or_error(read_process(pid))
        {
            visit_descendant(&process, &mut descendants);
        }
    }
    let mut pids = all_pids()?;
    if !pids.contains(&me) && proc_mount::is_own_namespace() {
        return Err(io::Error::other("/proc shows no processes"));
    }
    // Processes forked after this one have greater numbers, until the numbers wrap around; and parents come before their
    // children.
    pids.sort_unstable_by_key(|pid| (*pid < me, *pid));
    let mut others = Vec::new();
    for pid in pids {
        if !descendants.contains(&pid) && !spared(pid) {
            let found = found_or_error(read_any_process(pid));
            others.extend(found.filter(|process| !visit_descendant(process, &mut descendants)));
        }
    }
    // When the numbers have wrapped around, a child may come before its parent.
    loop {
        let before = others.len();
        others.retain(|process| !visit_descendant(process, &mut descendants));
        if others.len() == before {
            return first_error.map_or(Ok(()), Err);
        }
    }
}

/// Signals a process if its current parent is in `parents`. A process that is gone is no error.
///
/// A number alone is never trusted: the process is held by a descriptor, and then its parent is read. If no descriptor is free,
/// a child of this process is signalled by its number, which no other process gets before the child is reaped. A deeper
/// descendant becomes a child of this process when its parents die.
pub(super) fn signal_if_child_of(
    parents: &BTreeSet<i32>,
    pid: i32,
    signal: Signal,
) -> Result<(), Errno> {
    let Some(number) = Pid::from_raw(pid) else { return Ok(()) };
    let pinned = match Pidfd::open(number) {
        Ok(process) => match process.parent() {
            Ok(parent) if parent.is_some_and(|parent| parents.contains(&parent)) => {
                return sent(process.signal(signal));
            }
            Ok(_) => return Ok(()),
            Err(error) => Err(errno(&error)),
        },
        Err(error) => Err(error),
    };
    match pinned {
        Err(Errno::SRCH) => Ok(()),
        // Only this thread reaps the children that are not spared, so the number stays the child's until this function returns.
        _ if parent(pid).is_ok_and(|parent| parent == Some(me())) => {
            sent(kill_process(number, signal))
        }
        pinned => pinned,
    }
}

/// Maps the error of a process that is gone to success: it needs no signal.
pub(super) fn sent(result: rustix::io::Result<()>) -> Result<(), Errno> {
    match result {
        Err(Errno::SRCH) => Ok(()),
        result => result,
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// The program's name and the real user of a process, for a message.
pub(super) fn name_and_user(pid: i32) -> Option<(String, u32)> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
    let user = value("Uid:")?.split_whitespace().next()?.parse().ok()?;
    Some((crate::output::printable(value("Name:")?.trim()), user))
}

/// The environment that `pid` was started with: variables, each followed by a NUL.
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
    fn a_child_is_found_by_both_methods() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(children().unwrap().contains(&Pid::from_raw(pid).unwrap()));
        assert!(searched_in_proc().unwrap().contains(&Pid::from_raw(pid).unwrap()));
        assert_eq!(parent(pid).unwrap(), Some(me()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children().unwrap().contains(&Pid::from_raw(pid).unwrap()));
        assert_eq!(read_process(pid).unwrap(), None);
    }

    #[test]
    fn parentheses_in_a_program_name_are_parsed() {
        let rest = "S 7 8 9 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 3133440 0";
        let process =
            ProcessInfo { pid: 5, parent: 7, group: 8, session: 9, started: 4711, ended: false };
        assert_eq!(parse_stat(5, &format!("5 (a) S 1 (b) {rest}")), Some(process));
        assert_eq!(parse_stat(5, "5 (a) S 1"), None);
    }

    #[test]
    fn a_walk_finds_a_child_and_leaves_out_a_spared_one() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let found = |spared: Option<i32>| {
            let mut found = false;
            walk(
                |pid| Some(pid) == spared,
                |process, descendants| {
                    assert!(descendants.contains(&process.parent));
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
    fn only_a_child_of_a_given_parent_is_signalled() {
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
