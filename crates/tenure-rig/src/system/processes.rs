//! Process information, read from `/proc`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

/// The environment variable that identifies every process that a trial has started.
pub const MARK: &str = "SYSTEM_TRIAL";

/// Sends a signal; a process that is gone needs none.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = kill_process(pid, signal);
    }
}

/// Whether the process exists and has not ended: a zombie has.
pub fn is_there(pid: u32) -> bool {
    stat(&Path::new("/proc").join(pid.to_string())).is_some_and(|(state, _)| state != 'Z')
}

/// Whether the process is dead or has received SIGKILL: from then on it does nothing more, though dying takes a while on a busy
/// machine.
pub fn is_killed(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().filter_map(|line| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    });
    let kill = 1 << (Signal::KILL.as_raw() - 1);
    pending.into_iter().any(|set| set & kill != 0) || !is_there(pid)
}

pub fn is_stopped(pid: u32) -> bool {
    stat(&Path::new("/proc").join(pid.to_string())).is_none_or(|(state, _)| "TZX".contains(state))
}

/// The state and the parent.
fn stat(process: &Path) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    // The program's name is in parentheses and may contain anything.
    let mut words = stat.get(stat.rfind(')')? + 2..)?.split(' ');
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

fn all() -> Vec<(u32, std::path::PathBuf)> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .collect()
}

/// The direct children, except zombies.
pub fn children(parent: u32) -> Vec<u32> {
    let of_it = |path: &Path| stat(path).is_some_and(|(state, of)| of == parent && state != 'Z');
    all().into_iter().filter(|(_, path)| of_it(path)).map(|(pid, _)| pid).collect()
}

/// Whether the process has a pidfd: a guard has one as soon as it watches its leader.
pub fn watches_a_process(pid: u32) -> bool {
    open(pid).any(|file| file.to_string_lossy().contains("[pidfd]"))
}

/// Whether the process has this directory, or a file in it, open.
pub fn has_open(pid: u32, directory: &Path) -> bool {
    open(pid).any(|file| file.starts_with(directory))
}

/// The files that the process has open.
fn open(pid: u32) -> impl Iterator<Item = PathBuf> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.filter_map(|file| std::fs::read_link(file.path()).ok())
}

/// All descendants of a process, parents before their children.
pub fn below(root: u32) -> Vec<u32> {
    let mut families: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (pid, path) in all() {
        if let Some((state, parent)) = stat(&path)
            && state != 'Z'
        {
            families.entry(parent).or_default().push(pid);
        }
    }
    let mut found = families.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(families.remove(pid).unwrap_or_default());
        next += 1;
    }
    found
}

/// The running processes that were started under this mark.
pub fn marked(mark: &str) -> Vec<u32> {
    let mark = format!("{MARK}={mark}");
    let has_mark = |path: &Path| {
        let environ = std::fs::read(path.join("environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    all().into_iter().filter(|(_, path)| has_mark(path)).map(|(pid, _)| pid).collect()
}

/// A description of processes, for the message of a trial that fails.
pub fn described(pids: &[u32]) -> String {
    let one = |pid: &u32| {
        let path = Path::new("/proc").join(pid.to_string());
        let command = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        format!("{pid} {:?} {command}", stat(&path))
    };
    pids.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// A line of `/proc/PID/status` in kibibytes.
pub fn memory(pid: u32, what: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Kills every process with the mark, repeatedly while any is left: they may be forking.
pub fn kill_marked(mark: &str) {
    for _ in 0..1_000 {
        let left = marked(mark);
        if left.is_empty() {
            return;
        }
        left.iter().for_each(|pid| signal(*pid, Signal::KILL));
        super::time::pause(std::time::Duration::from_millis(1));
    }
}
