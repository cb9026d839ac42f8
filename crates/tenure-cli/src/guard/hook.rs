//! A user's shell command that is run and waited for: a hook, a health check.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tenure::{CandidateId, Clock, Name, Token};

use super::tree::Spared;

/// A hook that takes longer is killed: somebody waits for the lease.
const LIMIT: Duration = Duration::from_secs(2);

/// What is run, and for whom.
pub(crate) struct Hook {
    command: Command,
    limit: Duration,
}

impl Hook {
    pub(crate) fn new(
        line: &str,
        name: &Name,
        candidate: &CandidateId,
        token: Option<Token>,
    ) -> Hook {
        let mut command = Command::new("/bin/sh");
        crate::environment::of(&mut command, name, candidate, token);
        // A group of its own, so that what the shell has started can be ended with it. Stdout is the command's.
        command.arg("-c").arg(line).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        Hook { command, limit: LIMIT }
    }

    /// A health check is asked again and again: it may take so long, and must not fill the log.
    pub(crate) fn quiet_within(mut self, limit: Duration) -> Hook {
        self.command.stderr(Stdio::null());
        self.limit = limit;
        self
    }

    /// Runs it to its end, or to the limit; whether it succeeded.
    ///
    /// # Cancellation
    /// Dropping this kills it.
    pub(crate) async fn run(self) -> bool {
        let mut command = tokio::process::Command::from(self.command);
        let Ok(mut child) = command.kill_on_drop(true).spawn() else { return false };
        let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
        else {
            return false;
        };
        let _spared = Spared::new(pid);
        let mut group = Group(Some(pid));
        let clock = Clock::boot();
        tokio::select! {
            status = child.wait() => {
                // Reaped, so its number may be a stranger's.
                group.0 = None;
                status.is_ok_and(|status| status.success())
            }
            () = clock.sleep(self.limit) => {
                // One that may not be killed (it has become another user's) is not waited for.
                if group.kill().is_ok() {
                    let _ = child.wait().await;
                }
                false
            }
        }
    }
}

/// Killed when nobody waits for it any more.
struct Group(Option<Pid>);

impl Group {
    fn kill(&mut self) -> rustix::io::Result<()> {
        self.0.take().map_or(Ok(()), |pid| kill_process_group(pid, Signal::KILL))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Whoever drops it unfinished has no use for the answer.
        let _ = self.kill();
    }
}
