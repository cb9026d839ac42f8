//! The leader's process, as its guard sees it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};
use tenure::{Error, Result};
use tokio::io::unix::AsyncFd;

use super::{cannot, family, wire};

/// The process that leads.
pub(super) struct Leader(AsyncFd<OwnedFd>);

impl Leader {
    pub(super) fn of(pid: i32) -> Result<Leader> {
        let gone = || Error::unavailable("the leader died before the guard could see it");
        let pid = Pid::from_raw(pid).ok_or_else(gone)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|_| gone())?;
        // Asked after: as long as it is our parent, nobody else has its number.
        if getppid() != Some(pid) {
            return Err(gone());
        }
        let watched = wire::watched(pidfd).map_err(|error| cannot("watch the leader", &error))?;
        Ok(Leader(watched))
    }

    pub(super) fn kill(&self) -> io::Result<()> {
        Ok(family::sent(pidfd_send_signal(self.0.get_ref(), Signal::KILL))?)
    }

    pub(super) async fn death(&self) {
        if self.0.readable().await.is_err() {
            // The runtime is going away; nothing else can make this fail.
            std::future::pending::<()>().await;
        }
    }
}
