//! In which process we are, without asking the kernel: "am I leader" is asked too often for a system call.
//!
//! A forked child has a copy of every handle and none of the threads that renew: there nothing is held.

#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often this process, or one it comes from, was forked off.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_the_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process something was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessId(u32);

impl ProcessId {
    /// This one.
    pub(crate) fn current() -> Self {
        static WATCHING: Once = Once::new();
        WATCHING.call_once(|| {
            // SAFETY: the handler does nothing but add to an atomic, which is allowed between fork and exec, and it is
            // a plain function that lives as long as the program.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
            // Only memory can be short, for a few words, at the start of the first election.
            assert_eq!(failed, 0, "no memory to notice a fork");
        });
        ProcessId(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this still is that process.
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
