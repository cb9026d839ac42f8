//! Child processes that have an owner in this process.
//!
//! A process that adopts orphans (a subreaper) ends and reaps children that it did not start. It must distinguish them from
//! children that other parts of the same process have started and wait for: the shell of
//! `--shards-command`, a hook. So code that starts a child and waits for it registers the
//! child, and code that ends or reaps orphans ignores registered children. [`owned`] is the list of registered children; a
//! [`ProcessGroup`] is on it from its start to its end.
//!
//! No process number is used for a signal after the process was reaped, because it may then belong to another process.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStderr, ChildStdout, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_open,
    waitid,
};

use crate::guard::async_fd;

static OWNED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// The process numbers of all owned children.
///
/// While the returned guard is held, no [`ProcessGroup`] is started or reaped. So a child of this process that is not on the
/// list has no owner that uses [`ProcessGroup`].
pub(crate) fn owned() -> MutexGuard<'static, BTreeSet<i32>> {
    OWNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child that leads its own process group. It is registered until it is reaped. Dropping it kills the group and reaps the
/// child.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    leader: Option<GroupLeader>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
}

impl ProcessGroup {
    /// Starts the command in its own process group.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<ProcessGroup> {
        let mut owned = owned();
        let mut child = command.process_group(0).spawn()?;
        let raw = child.id().cast_signed();
        owned.insert(raw);
        drop(owned);
        let registration = Registration(raw);
        let number = || io::Error::other("the child has no process number");
        let pid = Pid::from_raw(raw).ok_or_else(number)?;
        let end = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(end) => end,
            Err(error) => {
                // The child was not reaped, so the number still belongs to its group.
                let _ = kill_process_group(pid, Signal::KILL);
                let _ = child.wait();
                return Err(error.into());
            }
        };
        let leader = GroupLeader { pid, end, registration };
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        Ok(ProcessGroup { leader: Some(leader), stdout, stderr })
    }

    /// Takes the standard output and standard error, if they are pipes and were not taken before.
    pub(crate) fn take_output(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.stdout.take(), self.stderr.take())
    }

    /// Returns when the child has ended. Other processes of its group may still run.
    pub(crate) async fn ended(&self) -> io::Result<()> {
        let Some(leader) = &self.leader else { return Ok(()) };
        let end = async_fd(leader.end.try_clone()?)?;
        end.readable().await?.retain_ready();
        Ok(())
    }

    /// Kills the whole group, unless another part of this process has reaped the child: then nothing is signalled.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.leader.as_ref().map_or(Ok(()), GroupLeader::kill)
    }

    /// Waits for the child, reaps it and returns its exit status. The rest of its group continues.
    pub(crate) fn reap(mut self) -> io::Result<ExitStatus> {
        let reaped = || io::Error::from(Errno::CHILD);
        self.leader.take().ok_or_else(reaped)?.reap()
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // A child that may not be killed, because it runs as another user now, is not awaited.
        let Some(leader) = self.leader.take().filter(|leader| leader.kill().is_ok()) else {
            return;
        };
        // A child that the kernel cannot end at once must not block the caller. If the thread cannot be started, the child is
        // unregistered, and a subreaper reaps it with the orphans.
        let _ = std::thread::Builder::new().spawn(move || leader.reap());
    }
}

#[derive(Debug)]
struct GroupLeader {
    pid: Pid,
    /// Readable when the child has ended.
    end: OwnedFd,
    registration: Registration,
}

impl GroupLeader {
    /// Waits for the exit status through the descriptor; an error if the child was reaped.
    fn wait(&self, options: WaitIdOptions) -> Result<Option<WaitIdStatus>, Errno> {
        loop {
            match waitid(WaitId::PidFd(self.end.as_fd()), WaitIdOptions::EXITED | options) {
                Err(Errno::INTR) => {}
                waited => return waited,
            }
        }
    }

    fn kill(&self) -> io::Result<()> {
        match self.wait(WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT) {
            // Alive or not reaped, so the number belongs to its group.
            Ok(_) => match kill_process_group(self.pid, Signal::KILL) {
                Err(Errno::SRCH) => Ok(()),
                killed => Ok(killed?),
            },
            Err(Errno::CHILD) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn reap(self) -> io::Result<ExitStatus> {
        // Waits without the lock, and reaps with it: the number leaves the list before another child can get it.
        self.wait(WaitIdOptions::NOWAIT)?;
        let mut owned = owned();
        let status = self.wait(WaitIdOptions::empty());
        owned.remove(&self.registration.0);
        drop(owned);
        std::mem::forget(self.registration);
        let status = status?.ok_or(Errno::CHILD)?;
        let code = status.exit_status().map(|code| code << 8);
        Ok(ExitStatus::from_raw(code.or(status.terminating_signal()).unwrap_or_default()))
    }
}

/// An entry in the list of owned children, removed on drop.
#[derive(Debug)]
struct Registration(i32);

impl Drop for Registration {
    fn drop(&mut self) {
        owned().remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    use std::time::Duration;

    use rustix::process::{WaitOptions, kill_process, waitpid};

    use super::*;
    use tenure::Clock;

    fn shell(line: &str) -> ProcessGroup {
        let mut command = Command::new("/bin/sh");
        ProcessGroup::spawn(command.arg("-c").arg(line).stdout(Stdio::piped())).unwrap()
    }

    fn number(group: &ProcessGroup) -> i32 {
        group.leader.as_ref().unwrap().pid.as_raw_nonzero().get()
    }

    /// A process that the test must end, even if an assertion fails.
    struct Sleeper(Pid);

    impl Sleeper {
        /// The process whose number the group prints first.
        fn of(group: &mut ProcessGroup) -> Sleeper {
            let mut line = String::new();
            let (stdout, _) = group.take_output();
            BufReader::new(stdout.unwrap()).read_line(&mut line).unwrap();
            Sleeper(Pid::from_raw(line.trim().parse().unwrap()).unwrap())
        }

        fn lives(&self) -> bool {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0));
            let stat = stat.unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            if self.lives() {
                let _ = kill_process(self.0, Signal::KILL);
            }
        }
    }

    async fn eventually(what: &str, done: impl Fn() -> bool) {
        let clock = Clock::boot();
        let timeout_at = clock.now() + Duration::from_secs(30);
        while !done() {
            assert!(clock.now() < timeout_at, "never happened: {what}");
            clock.sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_child_is_registered_until_it_is_reaped() {
        let group = shell("exit 3");
        let pid = number(&group);
        assert!(owned().contains(&pid));
        group.ended().await.unwrap();
        assert!(owned().contains(&pid));
        assert_eq!(group.reap().unwrap().code(), Some(3));
        assert!(!owned().contains(&pid));
        assert_eq!(shell("kill -9 $$").reap().unwrap().signal(), Some(9));
    }

    #[tokio::test]
    async fn a_dropped_group_is_killed_and_then_reaped() {
        let mut group = shell("sleep 1000 & echo $!; wait");
        let (pid, sleeper) = (number(&group), Sleeper::of(&mut group));
        drop(group);
        eventually("the whole group is dead", || !sleeper.lives()).await;
        eventually("the child is reaped", || !owned().contains(&pid)).await;
    }

    #[tokio::test]
    async fn the_rest_of_the_group_survives_a_reap_without_a_kill() {
        let mut group = shell("sleep 1000 & echo $!");
        let sleeper = Sleeper::of(&mut group);
        assert!(group.reap().unwrap().success());
        assert!(sleeper.lives());
    }

    /// The sleeper represents an unrelated process whose group has the number of a child that is gone.
    #[tokio::test]
    async fn nothing_is_signalled_after_another_reaped_the_child() {
        let mut group = shell("sleep 1000 & echo $!");
        let sleeper = Sleeper::of(&mut group);
        group.ended().await.unwrap();
        let pid = Pid::from_raw(number(&group));
        assert!(waitpid(pid, WaitOptions::empty()).unwrap().is_some());
        group.kill().unwrap();
        drop(group);
        // A signal takes effect within this time, if it was sent.
        Clock::boot().sleep(Duration::from_millis(200)).await;
        assert!(sleeper.lives(), "a process was signalled by a number that was reaped");
        eventually("the number is not registered", || {
            !owned().contains(&pid.unwrap().as_raw_nonzero().get())
        })
        .await;
    }
}
