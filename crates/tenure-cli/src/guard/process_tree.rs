//! The command and everything it has started, however they are related by now.
//!
//! Whoever has a [`Tree`] is a subreaper: a process of it whose parent dies becomes our own child. So what is left can be
//! listed, and is known to be gone when we have no child any more. No stranger is ever signalled, although process numbers
//! are used again: those of our own children are safe, because nobody reaps them but us; the command's group has its number
//! for as long as it has a member or we do not reap the command itself; whoever is deeper is first held by a descriptor, and
//! then asked whose child it is.

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

use super::command_loop::{AGAIN, AT_LAST};
use super::kill_errors::KillErrors;
use super::{procfs, spare_fds};
use crate::exit::Exit;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum ProcessExit {
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

/// Children of this process that do not belong to the command: the guard itself, a hook, and those that the library starts.
pub(super) fn spared() -> MutexGuard<'static, BTreeSet<i32>> {
    tenure::process::owned()
}

/// Spares a child of ours for as long as it lives. Its owner reaps it, and then drops this.
#[derive(Debug)]
pub(crate) struct SparedProcess(Pid);

impl SparedProcess {
    /// To be called before anything else gets its turn on this thread.
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

/// From now on whatever is orphaned below us is ours.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    spare_fds::keep();
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// The command and what came of it.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    /// The leader of its own group.
    main: Pid,
    /// We have no other children than these.
    alone: bool,
    ended: Option<ProcessExit>,
    reaped: bool,
}

impl ProcessTree {
    /// The tree of the child `main`, which leads its own process group, in a process that has no other children.
    pub(crate) fn alone(main: Pid) -> ProcessTree {
        ProcessTree { main, alone: true, ended: None, reaped: false }
    }

    /// The same where others are spared.
    pub(crate) fn among_others(main: Pid) -> ProcessTree {
        ProcessTree { main, alone: false, ended: None, reaped: false }
    }

    /// How the command itself has ended, if it has. Does not reap it, so that its group can still be reached.
    pub(crate) fn ended(&mut self) -> Option<ProcessExit> {
        if self.ended.is_none() {
            self.ended = peek(self.main);
        }
        self.ended
    }

    /// To the command's group, and to the command itself if it has left that.
    pub(crate) fn signal(&self, signal: Signal, failures: &mut KillErrors) {
        if self.reaped {
            return;
        }
        // A group takes it if one of its processes does. The others are signalled one by one when everything is killed.
        let mut sent = procfs::sent(kill_process_group(self.main, signal));
        if sent.is_ok() && getpgid(Some(self.main)) != Ok(self.main) {
            sent = procfs::sent(kill_process(self.main, signal));
        }
        if let Err(error) = sent
            && let Ok(Some(process)) = procfs::look_at(raw(self.main))
            && !process.ended
        {
            failures.signal(&process, error);
        }
    }

    /// Asks everything to end, also what is stopped.
    pub(crate) fn ask(&mut self, failures: &mut KillErrors) {
        for signal in [Signal::TERM, Signal::CONT] {
            self.signal(signal, failures);
        }
        if self.is_gone() {
            return;
        }
        let us = BTreeSet::from([procfs::me()]);
        for pid in self.strays().unwrap_or_default().into_iter().map(raw) {
            for signal in [Signal::TERM, Signal::CONT] {
                if let Err(error) = procfs::signal_if_child_of(&us, pid, signal)
                    && let Ok(Some(process)) = procfs::look_at(pid)
                {
                    failures.signal(&process, error);
                }
            }
        }
    }

    /// Kills what there is now. What has been forked meanwhile is found the next time: again, until [`Tree::is_gone`].
    pub(crate) fn kill(&mut self, failures: &mut KillErrors) {
        // The group at once: no fork escapes that, and often it is all there is.
        self.signal(Signal::KILL, failures);
        if !self.is_gone() {
            let mut spared = spared().clone();
            spared.remove(&raw(self.main));
            kill_all(&spared, failures);
        }
    }

    /// Reaps the orphans that have ended, while the command runs on.
    pub(crate) fn reap_strays(&mut self) {
        if self.ended().is_some() {
            // The end of the command is somebody else's to see.
            return;
        }
        if self.alone {
            self.is_gone();
        } else {
            reap_all(self.strays().unwrap_or_default());
        }
    }

    /// Who leads the command's group.
    pub(super) fn main(&self) -> Pid {
        self.main
    }

    /// Reaps the command itself, which has ended. Its number is anybody's from now on.
    pub(super) fn bury(self) {
        reap(self.main);
    }

    /// Reaps what has ended, and tells whether nothing is left.
    pub(crate) fn is_gone(&mut self) -> bool {
        let ended = self.ended().is_some();
        if !self.alone {
            reap_all(self.strays().unwrap_or_default());
            if ended && !self.reaped {
                self.reaped = true;
                reap(self.main);
            }
            return ended && nothing_left();
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main => {
                    self.reaped = true;
                    self.ended = self.ended.or_else(|| how(status));
                }
                Ok(Some(_)) => {}
                Ok(None) => return false,
                // The kernel's own word for it: no child is left.
                Err(Errno::CHILD) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Our children that are not the command itself.
    fn strays(&self) -> io::Result<Vec<Pid>> {
        let mut pids = unknown()?;
        pids.retain(|pid| *pid != self.main);
        Ok(pids)
    }
}

/// Kills everybody who descends from us, but for those that are `spared` and their families: all of them in one go, because
/// on a busy machine it takes its time until each layer has died and the next is ours.
fn kill_all(spared: &BTreeSet<i32>, failures: &mut KillErrors) {
    let walked = procfs::walk(
        |pid| spared.contains(&pid),
        |process, ours| {
            if !process.ended
                && let Err(error) = procfs::signal_if_child_of(ours, process.pid, Signal::KILL)
            {
                failures.signal(process, error);
            }
        },
    );
    if let Err(error) = walked {
        failures.unseen(&error);
    }
}

/// How often what could not be killed is tried again, at least.
pub(super) const RETRY_AT_MOST: Duration = Duration::from_secs(1);

/// Ends every child that is not spared: the process tree of a guard that died.
#[derive(Debug)]
pub(crate) struct Orphans {
    failures: KillErrors,
    pause: Duration,
}

impl Orphans {
    pub(crate) fn new() -> Orphans {
        Orphans { failures: KillErrors::default(), pause: AGAIN }
    }

    /// Returns `None` when nothing is left, and before that whatever could not be killed, each once: then it is to be called
    /// again.
    ///
    /// # Cancellation
    /// Dropping this leaves what is left as it is; it can be called again.
    pub(crate) async fn end(&mut self) -> Option<String> {
        let clock = Clock::boot();
        loop {
            kill_all(&spared(), &mut self.failures);
            reap_orphans();
            if let Some(failure) = self.failures.next() {
                return Some(failure);
            }
            if nothing_left() {
                return None;
            }
            clock.sleep(self.pause).await;
            let most = if self.failures.take_recent() { RETRY_AT_MOST } else { AT_LAST };
            self.pause = (2 * self.pause).min(most);
        }
    }
}

/// Reaps what became our child and has ended: all there is to do for it.
pub(crate) fn reap_orphans() {
    reap_all(unknown().unwrap_or_default());
}

/// Those of our children that have ended and that nobody has spared or reaped so far.
pub(crate) fn ended_orphans() -> Vec<Pid> {
    let unknown = unknown().unwrap_or_default();
    unknown.into_iter().filter(|pid| peek(*pid).is_some()).collect()
}

/// Our children that nobody has spared.
pub(super) fn unknown() -> io::Result<Vec<Pid>> {
    let mut pids = procfs::children()?;
    let spared = spared();
    pids.retain(|pid| !spared.contains(&raw(*pid)));
    Ok(pids)
}

/// Whether every child is gone that is not spared.
fn nothing_left() -> bool {
    unknown().map_or_else(|_| no_child_left(), |unknown| unknown.is_empty())
}

/// The same where `/proc` cannot be read, by `wait`. While a spared child is left, `wait` cannot tell the others apart.
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

fn how(status: WaitStatus) -> Option<ProcessExit> {
    let code = status.exit_status().map(ProcessExit::Code);
    code.or_else(|| status.terminating_signal().map(ProcessExit::Signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_the_library_owns_is_no_orphan() {
        let mut command = std::process::Command::new("true");
        let group = tenure::process::ProcessGroup::spawn(&mut command).unwrap();
        let orphans = unknown().unwrap().into_iter().chain(ended_orphans()).map(raw).collect();
        assert!(tenure::process::owned().is_disjoint(&orphans), "{orphans:?}");
        assert!(group.reap().unwrap().success());
    }

    #[test]
    fn an_end_is_an_exit_code() {
        assert_eq!(Exit::from(ProcessExit::Code(3)), Exit::Passed(3));
        assert_eq!(Exit::from(ProcessExit::Signal(9)), Exit::Passed(137));
    }
}
