//! Two file descriptors in reserve, for the moment when no others are free: reading `/proc` takes one, holding a process
//! another.
//!
//! Without them a process, or a machine, that has run out of descriptors could neither find nor kill the descendants of a
//! command.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

const RESERVED_FDS: usize = 2;

static SPARE: Mutex<SpareFds> =
    Mutex::new(SpareFds { wanted: false, released: 0, fds: Vec::new() });

struct SpareFds {
    wanted: bool,
    /// How many nested callers use the released descriptors now.
    released: usize,
    fds: Vec<OwnedFd>,
}

fn spare() -> MutexGuard<'static, SpareFds> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SpareFds {
    /// Opens as many as the system allows; the next call may get more.
    fn fill(&mut self) {
        while self.wanted && self.released == 0 && self.fds.len() < RESERVED_FDS {
            // Not a duplicate: a duplicate would help when this process is at its limit, but not when the machine is.
            let Ok(fd) = eventfd(0, EventfdFlags::CLOEXEC) else { return };
            self.fds.push(fd);
        }
    }
}

/// Keeps the descriptors in reserve from now on.
pub(super) fn keep() {
    let mut spare = spare();
    spare.wanted = true;
    spare.fill();
}

/// The reserved descriptors are closed until this is dropped.
#[must_use]
pub(super) struct Released(());

pub(super) fn release() -> Released {
    let mut spare = spare();
    spare.released += 1;
    spare.fds.clear();
    Released(())
}

impl Drop for Released {
    fn drop(&mut self) {
        let mut spare = spare();
        spare.released -= 1;
        spare.fill();
    }
}
