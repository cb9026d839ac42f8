//! Fork detection: in which process the code runs, without a system call, because `is_leader` is called too often for one.
//!
//! A forked child has a copy of every handle and none of the threads that renew, so it holds nothing.

#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process in which a value was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessId(u32);

impl ProcessId {
    /// The current process.
    pub(crate) fn current() -> Self {
        static REGISTER_HANDLER: Once = Once::new();
        REGISTER_HANDLER.call_once(|| {
            // SAFETY: the handler does nothing but add to an atomic, which is allowed between fork and exec, and it is
            // a plain function that lives as long as the program.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
            // Fails only without memory for a few words, at the start of the first election.
            assert_eq!(failed, 0, "no memory to notice a fork");
        });
        ProcessId(FORKS.load(Ordering::Relaxed))
    }

    /// Whether the code still runs in that process.
    pub(crate) fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_another_process() {
        let process = ProcessId::current();
        assert!(process.is_current());
        // SAFETY: between fork and _exit the child reads two atomics and nothing else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(process.is_current());
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(code) };
        }
        assert!(child > 0, "no fork");
        let mut status = -1;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child takes itself for its parent");
        assert!(process.is_current());
    }
}
