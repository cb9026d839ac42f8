//! The leader's process, held by a pidfd: the guard waits for its death.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};
use tenure::Result;
use tokio::io::unix::AsyncFd;

use super::{cannot, procfs, protocol};

/// The leader's process; `None` if it had ended before the guard opened it.
pub(super) struct LeaderProcess(Option<AsyncFd<OwnedFd>>);

impl LeaderProcess {
    pub(super) fn of(pid: i32) -> Result<LeaderProcess> {
        let Some(pid) = Pid::from_raw(pid) else { return Ok(LeaderProcess(None)) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Ok(LeaderProcess(None)),
            // The leader may be alive: its lease must not be released.
            Err(error) => return Err(cannot("watch the leader", &error.into())),
        };
        // Checked after opening: while the leader is this process's parent, no other process has its number.
        if getppid() != Some(pid) {
            return Ok(LeaderProcess(None));
        }
        let watched =
            protocol::async_fd(pidfd).map_err(|error| cannot("watch the leader", &error))?;
        Ok(LeaderProcess(Some(watched)))
    }

    /// Whether the leader had ended before the guard opened its process.
    pub(super) fn was_gone(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn kill(&self) -> io::Result<()> {
        match &self.0 {
            Some(pidfd) => Ok(procfs::sent(pidfd_send_signal(pidfd.get_ref(), Signal::KILL))?),
            None => Ok(()),
        }
    }

    pub(super) async fn death(&self) {
        let Some(pidfd) = &self.0 else { return };
        if pidfd.readable().await.is_err() {
            // The runtime is going away; nothing else can make this fail.
            std::future::pending::<()>().await;
        }
    }
}
