//! A hook: a user's shell command that is run and waited for.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process::ProcessGroup;
use tenure::{CandidateId, Clock, Name, Token};

/// A hook that takes longer is killed: the lease is not released before it ends.
const HOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// A hook that is ready to run.
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
        crate::child_env::set(&mut command, name, candidate, token);
        // It runs in its own process group, so that the shell's descendants can be killed with it. Stdout belongs to the
        // command.
        command.arg("-c").arg(line).stdin(Stdio::null()).stdout(Stdio::null());
        Hook { command }
    }

    /// Runs the hook until it ends, or kills it at the limit. Returns whether it succeeded.
    ///
    /// # Cancellation
    /// Dropping this kills the hook.
    pub(crate) async fn run(mut self) -> bool {
        let Ok(group) = ProcessGroup::spawn(&mut self.command) else { return false };
        let clock = Clock::boot();
        tokio::select! {
            ended = group.ended() => {
                ended.is_ok() && group.reap().is_ok_and(|status| status.success())
            }
            () = clock.sleep(HOOK_TIMEOUT) => {
                // A hook that may not be killed, because it runs as another user now, is not waited for.
                if group.kill().is_ok() && group.ended().await.is_ok() {
                    let _ = group.reap();
                }
                false
            }
        }
    }
}
