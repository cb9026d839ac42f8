//! Two file descriptors kept for the moment when there are no others: to read `/proc` takes one, to hold a process another.
//!
//! Without them a process, or a machine, that has run out of descriptors could neither find nor kill what a command has
//! started.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

const NUMBER: usize = 2;

static SPARE: Mutex<SpareFds> =
    Mutex::new(SpareFds { wanted: false, released: 0, fds: Vec::new() });

struct SpareFds {
    wanted: bool,
    /// How many callers use the free places now, nested.
    released: usize,
    fds: Vec<OwnedFd>,
}

fn spare() -> MutexGuard<'static, SpareFds> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SpareFds {
    /// As many as there are to be had; the next time perhaps more.
    fn fill(&mut self) {
        while self.wanted && self.released == 0 && self.fds.len() < NUMBER {
            // Not a duplicate: that would help where this process has no more, but not where the machine has none.
            let Ok(fd) = eventfd(0, EventfdFlags::CLOEXEC) else { return };
            self.fds.push(fd);
        }
    }
}

/// Sets them aside from now on.
pub(super) fn keep() {
    let mut spare = spare();
    spare.wanted = true;
    spare.fill();
}

/// Their places are free until this is dropped.
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
