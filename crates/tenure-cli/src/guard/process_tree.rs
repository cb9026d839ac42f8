//! The process tree of a command: the command and all its descendants, in any group or session and with any parent.
//!
//! A process that has a [`ProcessTree`] is a subreaper: a descendant whose parent dies becomes its own child. So the remaining
//! processes can be listed, and all are known to be gone when this process has no child any more.
//!
//! No unrelated process is ever signalled, although process numbers are reused:
//!
//! - The number of a child is safe, because only this process reaps it.
//! - The number of the command's group is safe while the group has a member or this process has not reaped the command itself.
//! - A deeper descendant is first held by a descriptor (pidfd), and then its parent is checked.

use std::collections::BTreeSet;
use std::io;
use std::sync::MutexGuard;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpgid, getpid, kill_process,
    kill_process_group, set_child_subreaper, wait, waitid, waitpid,
};
use tenure::Clock;

use super::command_loop::{MAX_POLL_INTERVAL, MIN_POLL_INTERVAL};
use super::kill_errors::KillErrors;
use super::{procfs, spare_fds};
use crate::exit::Exit;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ProcessExit {
    Code(i32),
    Signal(i32),
}

impl From<ProcessExit> for Exit {
    fn from(ended: ProcessExit) -> Exit {
        let code = match ended {
            ProcessExit::Code(code) => code,
            ProcessExit::Signal(signal) => 128 + signal,
        };
        Exit::Passed(u8::try_from(code & 0xff).unwrap_or(u8::MAX))
    }
}

/// Children of this process that do not belong to the command: the guard itself, a hook, and the processes that the library
/// starts.
pub(super) fn spared() -> MutexGuard<'static, BTreeSet<i32>> {
    crate::process::owned()
}

/// Spares a child of this process while it lives. Its owner reaps it, and then drops this.
#[derive(Debug)]
pub(crate) struct SparedProcess(Pid);

impl SparedProcess {
    /// Must be called before any other task runs on this thread.
    pub(crate) fn new(pid: Pid) -> SparedProcess {
        spared().insert(raw(pid));
        SparedProcess(pid)
    }
}

impl Drop for SparedProcess {
    fn drop(&mut self) {
        spared().remove(&raw(self.0));
    }
}

/// Makes this process a subreaper: from now on it adopts every orphaned descendant.
pub fn adopt_orphans() -> io::Result<()> {
    spare_fds::keep();
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// A command and its descendants.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    /// The command itself, which leads its own process group.
    main: Pid,
    /// This process has no other children.
    alone: bool,
    ended: Option<ProcessExit>,
    reaped: bool,
}

impl ProcessTree {
    /// The tree of the child `main`, which leads its own process group, in a process that has no other children.
    pub(crate) fn alone(main: Pid) -> ProcessTree {
        ProcessTree { main, alone: true, ended: None, reaped: false }
    }

    /// The tree of the child `main` in a process that also has spared children.
    pub(crate) fn with_spared_children(main: Pid) -> ProcessTree {
        ProcessTree { main, alone: false, ended: None, reaped: false }
    }

    /// How the command itself has ended, if it has. Does not reap it, so that its group can still be signalled.
    pub(crate) fn ended(&mut self) -> Option<ProcessExit> {
        if self.ended.is_none() {
            self.ended = peek(self.main);
        }
        self.ended
    }

    /// Signals the command's group, and the command itself if it has left that group.
    pub(crate) fn signal(&self, signal: Signal, failures: &mut KillErrors) {
        if self.reaped {
            return;
        }
        // Signalling a group succeeds if one of its processes can be signalled. The others are signalled one by one when the
        // whole tree is killed.
        let mut sent = procfs::sent(kill_process_group(self.main, signal));
        if sent.is_ok() && getpgid(Some(self.main)) != Ok(self.main) {
            sent = procfs::sent(kill_process(self.main, signal));
        }
        if let Err(error) = sent
            && let Ok(Some(process)) = procfs::read_process(raw(self.main))
            && !process.ended
        {
            failures.signal(&process, error);
        }
    }

    /// Sends SIGTERM to the whole tree, and SIGCONT so that stopped processes act on it.
    pub(crate) fn terminate(&mut self, failures: &mut KillErrors) {
        for signal in [Signal::TERM, Signal::CONT] {
            self.signal(signal, failures);
        }
        if self.is_gone() {
            return;
        }
        let guard = BTreeSet::from([procfs::me()]);
        for pid in self.strays().unwrap_or_default().into_iter().map(raw) {
            for signal in [Signal::TERM, Signal::CONT] {
                if let Err(error) = procfs::signal_if_child_of(&guard, pid, signal)
                    && let Ok(Some(process)) = procfs::read_process(pid)
                {
                    failures.signal(&process, error);
                }
            }
        }
    }

    /// Kills every process of the tree that exists now. Processes that were forked meanwhile are found by the next call: repeat
    /// until [`ProcessTree::is_gone`].
    pub(crate) fn kill(&mut self, failures: &mut KillErrors) {
        // The group first, in one call: no fork escapes it, and often no other process exists.
        self.signal(Signal::KILL, failures);
        if !self.is_gone() {
            let mut spared = spared().clone();
            spared.remove(&raw(self.main));
            kill_all(&spared, failures);
        }
    }

    /// Reaps the orphans that have ended, while the command keeps running.
    pub(crate) fn reap_strays(&mut self) {
        if self.ended().is_some() {
            // The command's end is reported by `ended` and reaped by `is_gone`.
            return;
        }
        if self.alone {
            self.is_gone();
        } else {
            reap_all(self.strays().unwrap_or_default());
        }
    }

    /// The process that leads the command's group.
    pub(super) fn main(&self) -> Pid {
        self.main
    }

    /// Reaps the command itself, which has ended. Its process number may be reused from now on.
    pub(super) fn reap_main(self) {
        reap(self.main);
    }

    /// Reaps the processes that have ended. Returns whether no process of the tree is left.
    pub(crate) fn is_gone(&mut self) -> bool {
        let ended = self.ended().is_some();
        if !self.alone {
            reap_all(self.strays().unwrap_or_default());
            if ended && !self.reaped {
                self.reaped = true;
                reap(self.main);
            }
            return ended && none_left();
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main => {
                    self.reaped = true;
                    self.ended = self.ended.or_else(|| exit_of(status));
                }
                Ok(Some(_)) => {}
                Ok(None) => return false,
                // ECHILD: the kernel confirms that no child is left.
                Err(Errno::CHILD) => return true,
                Err(_) => return false,
            }
        }
    }

    /// The unspared children of this process, except the command itself.
    fn strays(&self) -> io::Result<Vec<Pid>> {
        let mut pids = unspared_children()?;
        pids.retain(|pid| *pid != self.main);
        Ok(pids)
    }
}

/// Kills every descendant of this process except the `spared` children and their descendants. All in one walk: on a busy
/// machine it takes a while until each generation has died and this process has adopted the next.
fn kill_all(spared: &BTreeSet<i32>, failures: &mut KillErrors) {
    let walked = procfs::walk(
        |pid| spared.contains(&pid),
        |process, descendants| {
            if !process.ended
                && let Err(error) =
                    procfs::signal_if_child_of(descendants, process.pid, Signal::KILL)
            {
                failures.signal(process, error);
            }
        },
    );
    if let Err(error) = walked {
        failures.incomplete(&error);
    }
}

/// The longest interval between two attempts to kill a process that could not be killed.
pub(super) const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Kills every child that is not spared: the process tree of a guard that died.
#[derive(Debug)]
pub(crate) struct Orphans {
    failures: KillErrors,
    pause: Duration,
}

impl Orphans {
    pub(crate) fn new() -> Orphans {
        Orphans { failures: KillErrors::default(), pause: MIN_POLL_INTERVAL }
    }

    /// Returns `None` when no process is left. Before that, returns each process that could not be killed, once: then call it
    /// again.
    ///
    /// # Cancellation
    /// Dropping this leaves the remaining processes as they are; it can be called again.
    pub(crate) async fn end(&mut self) -> Option<String> {
        let clock = Clock::boot();
        loop {
            kill_all(&spared(), &mut self.failures);
            reap_orphans();
            if let Some(failure) = self.failures.next() {
                return Some(failure);
            }
            if none_left() {
                return None;
            }
            clock.sleep(self.pause).await;
            let most =
                if self.failures.take_recent() { MAX_RETRY_INTERVAL } else { MAX_POLL_INTERVAL };
            self.pause = (2 * self.pause).min(most);
        }
    }
}

/// Reaps the adopted orphans that have ended.
pub fn reap_orphans() {
    reap_all(unspared_children().unwrap_or_default());
}

/// The children of this process that have ended and are neither spared nor reaped.
pub(crate) fn ended_orphans() -> Vec<Pid> {
    let unknown = unspared_children().unwrap_or_default();
    unknown.into_iter().filter(|pid| peek(*pid).is_some()).collect()
}

/// The children of this process that are not spared.
pub(super) fn unspared_children() -> io::Result<Vec<Pid>> {
    let mut pids = procfs::children()?;
    let spared = spared();
    pids.retain(|pid| !spared.contains(&raw(*pid)));
    Ok(pids)
}

/// Whether every child that is not spared is gone.
fn none_left() -> bool {
    unspared_children().map_or_else(|_| no_child_left(), |unknown| unknown.is_empty())
}

/// The same by `wait`, where `/proc` cannot be read. While a spared child is left, `wait` cannot tell the others apart.
fn no_child_left() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let is_child = |pid: &i32| {
        Pid::from_raw(*pid).is_some_and(|pid| waitid(WaitId::Pid(pid), options).is_ok())
    };
    if spared().iter().any(is_child) {
        return false;
    }
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Err(Errno::CHILD) => return true,
            Ok(None) | Err(_) => return false,
        }
    }
}

fn peek(pid: Pid) -> Option<ProcessExit> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(pid), options).ok()??;
    let code = status.exit_status().map(ProcessExit::Code);
    code.or_else(|| status.terminating_signal().map(ProcessExit::Signal))
}

pub(crate) fn reap(pid: Pid) {
    let _ = waitpid(Some(pid), WaitOptions::NOHANG);
}

fn reap_all(pids: Vec<Pid>) {
    pids.into_iter().for_each(reap);
}

fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

fn exit_of(status: WaitStatus) -> Option<ProcessExit> {
    let code = status.exit_status().map(ProcessExit::Code);
    code.or_else(|| status.terminating_signal().map(ProcessExit::Signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_the_library_owns_is_no_orphan() {
        let mut command = std::process::Command::new("true");
        let group = crate::process::ProcessGroup::spawn(&mut command).unwrap();
        let orphans =
            unspared_children().unwrap().into_iter().chain(ended_orphans()).map(raw).collect();
        assert!(crate::process::owned().is_disjoint(&orphans), "{orphans:?}");
        assert!(group.reap().unwrap().success());
    }

    #[test]
    fn an_end_is_an_exit_code() {
        assert_eq!(Exit::from(ProcessExit::Code(3)), Exit::Passed(3));
        assert_eq!(Exit::from(ProcessExit::Signal(9)), Exit::Passed(137));
    }
}
