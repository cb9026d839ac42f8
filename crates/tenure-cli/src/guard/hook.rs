//! A user's shell command that is run and waited for: a hook.

use std::process::{Command, Stdio};
use std::time::Duration;

use tenure::process::ProcessGroup;
use tenure::{CandidateId, Clock, Name, Token};

/// A hook that takes longer is killed: somebody waits for the lease.
const LIMIT: Duration = Duration::from_secs(2);

/// What is run, and for whom.
pub(crate) struct Hook {
    command: Command,
}

impl Hook {
    pub(crate) fn new(
        line: &str,
        name: &Name,
        candidate: &CandidateId,
        token: Option<Token>,
    ) -> Hook {
        let mut command = Command::new("/bin/sh");
        crate::child_env::of(&mut command, name, candidate, token);
        // It runs in a group of its own, so that what the shell has started can be ended with it. Stdout is the command's.
        command.arg("-c").arg(line).stdin(Stdio::null()).stdout(Stdio::null());
        Hook { command }
    }

    /// Runs it to its end, or to the limit; whether it succeeded.
    ///
    /// # Cancellation
    /// Dropping this kills it.
    pub(crate) async fn run(mut self) -> bool {
        let Ok(group) = ProcessGroup::spawn(&mut self.command) else { return false };
        let clock = Clock::boot();
        tokio::select! {
            ended = group.ended() => {
                ended.is_ok() && group.reap().is_ok_and(|status| status.success())
            }
            () = clock.sleep(LIMIT) => {
                // One that may not be killed, because it has become another user's, is not waited for.
                if group.kill().is_ok() && group.ended().await.is_ok() {
                    let _ = group.reap();
                }
                false
            }
        }
    }
}
