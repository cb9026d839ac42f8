//! A process held by a descriptor (`pidfd_open(2)`): its number cannot become another process's between a check and a signal.
//!
//! From Linux 6.13 on the kernel returns the parent of such a process. Then one free descriptor is enough to prove that a
//! process descends from the guard, and to kill it. On older kernels the parent is read from `/proc`, which needs a second
//! descriptor.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process that may be gone.
pub(super) struct Pidfd {
    pid: i32,
    fd: OwnedFd,
}

impl Pidfd {
    /// Opens a descriptor of the process; `Errno::SRCH` if there is no such process.
    pub(super) fn open(pid: Pid) -> rustix::io::Result<Pidfd> {
        let fd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Pidfd { pid: pid.as_raw_nonzero().get(), fd })
    }

    /// The process's parent; `None` if the process is gone.
    pub(super) fn parent(&self) -> io::Result<Option<i32>> {
        match self.parent_by_kernel() {
            Ok(parent) => Ok(Some(parent)),
            Err(Errno::SRCH) => Ok(None),
            // An older kernel, or one that refuses the request.
            Err(_) => super::procfs::parent(self.pid),
        }
    }

    fn parent_by_kernel(&self) -> rustix::io::Result<i32> {
        // SAFETY: integers only, for which zero is a value.
        let mut info: libc::pidfd_info = unsafe { std::mem::zeroed() };
        info.mask = libc::PIDFD_INFO_PID.into();
        // SAFETY: the kernel writes no more than the size that is part of the request, which is that of `info`.
        let failed =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info) };
        if failed != 0 {
            return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        i32::try_from(info.ppid).map_err(|_| Errno::RANGE)
    }

    pub(super) fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        pidfd_send_signal(&self.fd, signal)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::guard::procfs;

    #[test]
    fn the_kernel_and_proc_name_the_same_parent() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let held = Pidfd::open(pid).unwrap();
        assert_eq!(held.parent().unwrap(), Some(procfs::me()));
        match held.parent_by_kernel() {
            Ok(parent) => assert_eq!(parent, procfs::me()),
            Err(error) => assert!(matches!(error, Errno::NOTTY | Errno::INVAL), "{error}"),
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(held.parent().unwrap(), None, "it is gone");
        assert_eq!(held.signal(Signal::KILL), Err(Errno::SRCH));
    }
}
