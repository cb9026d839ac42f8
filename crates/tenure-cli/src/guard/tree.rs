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

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpgid, getpid, kill_process,
    kill_process_group, set_child_subreaper, wait, waitid, waitpid,
};

use super::family;
use crate::exit::Exit;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Ended {
    Code(i32),
    Signal(i32),
}

impl From<Ended> for Exit {
    fn from(ended: Ended) -> Exit {
        let code = match ended {
            Ended::Code(code) => code,
            Ended::Signal(signal) => 128 + signal,
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
pub(crate) struct Spared(Pid);

impl Spared {
    /// To be called before anything else gets its turn on this thread.
    pub(crate) fn new(pid: Pid) -> Spared {
        spared().insert(raw(pid));
        Spared(pid)
    }
}

impl Drop for Spared {
    fn drop(&mut self) {
        spared().remove(&raw(self.0));
    }
}

/// From now on whatever is orphaned below us is ours.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// The command and what came of it.
#[derive(Debug)]
pub(crate) struct Tree {
    /// The leader of its own group.
    main: Pid,
    /// We have no other children than these.
    alone: bool,
    ended: Option<Ended>,
    reaped: bool,
}

impl Tree {
    /// The tree of the child `main`, which leads its own process group, in a process that has no other children.
    pub(crate) fn alone(main: Pid) -> Tree {
        Tree { main, alone: true, ended: None, reaped: false }
    }

    /// The same where others are spared.
    pub(crate) fn among_others(main: Pid) -> Tree {
        Tree { main, alone: false, ended: None, reaped: false }
    }

    /// How the command itself has ended, if it has. Does not reap it, so that its group can still be reached.
    pub(crate) fn ended(&mut self) -> Option<Ended> {
        if self.ended.is_none() {
            self.ended = peek(self.main);
        }
        self.ended
    }

    /// To the command's group, and to the command itself if it has left that.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.reaped {
            return;
        }
        // One that has ended already wants no signal.
        let _ = kill_process_group(self.main, signal);
        if getpgid(Some(self.main)) != Ok(self.main) {
            let _ = kill_process(self.main, signal);
        }
    }

    /// Asks everything to end, also what is stopped.
    pub(crate) fn ask(&mut self) {
        for signal in [Signal::TERM, Signal::CONT] {
            self.signal(signal);
        }
        if !self.is_gone() {
            for pid in self.strays() {
                let _ = kill_process(pid, Signal::TERM);
                let _ = kill_process(pid, Signal::CONT);
            }
        }
    }

    /// Kills what there is now. What has been forked meanwhile is found the next time: again, until [`Tree::is_gone`].
    pub(crate) fn kill(&mut self) {
        // The group at once: no fork escapes that, and often it is all there is.
        self.signal(Signal::KILL);
        if !self.is_gone() {
            family::kill(&spared());
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
            reap_all(self.strays());
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
            reap_all(self.strays());
            if ended && !self.reaped {
                self.reaped = true;
                reap(self.main);
            }
            return ended && self.strays().is_empty();
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
    fn strays(&self) -> Vec<Pid> {
        let mut pids = unknown();
        pids.retain(|pid| *pid != self.main);
        pids
    }
}

/// Ends whatever became our child and is nobody's we know: the tree of a guard that died. Returns whether nothing is left.
pub(crate) fn end_orphans() -> bool {
    family::kill(&spared());
    reap_orphans();
    unknown().is_empty()
}

/// Reaps what became our child and has ended: all there is to do for it.
pub(crate) fn reap_orphans() {
    reap_all(unknown());
}

/// Those of our children that have ended and that nobody has spared or reaped so far.
pub(crate) fn ended_orphans() -> Vec<Pid> {
    unknown().into_iter().filter(|pid| peek(*pid).is_some()).collect()
}

/// Our children that nobody has spared.
pub(super) fn unknown() -> Vec<Pid> {
    let mut pids = family::children();
    let spared = spared();
    pids.retain(|pid| !spared.contains(&raw(*pid)));
    pids
}

fn peek(pid: Pid) -> Option<Ended> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(pid), options).ok()??;
    let code = status.exit_status().map(Ended::Code);
    code.or_else(|| status.terminating_signal().map(Ended::Signal))
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

fn how(status: WaitStatus) -> Option<Ended> {
    let code = status.exit_status().map(Ended::Code);
    code.or_else(|| status.terminating_signal().map(Ended::Signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_the_library_owns_is_no_orphan() {
        let mut command = std::process::Command::new("true");
        let group = tenure::process::Group::spawn(&mut command).unwrap();
        let orphans = unknown().into_iter().chain(ended_orphans()).map(raw).collect();
        assert!(tenure::process::owned().is_disjoint(&orphans), "{orphans:?}");
        assert!(group.reap().unwrap().success());
    }

    #[test]
    fn an_end_is_an_exit_code() {
        assert_eq!(Exit::from(Ended::Code(3)), Exit::Passed(3));
        assert_eq!(Exit::from(Ended::Signal(9)), Exit::Passed(137));
    }
}
