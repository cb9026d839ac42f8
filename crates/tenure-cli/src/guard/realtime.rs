//! The real-time scheduling class: the guard seldom needs the processor, but then it cannot wait for it.
//!
//! A fair share comes too late on an overloaded machine. Between busy processes a guard was observed to wait more than half a
//! second for its turn, at any nice value (niceness counts only inside a session, where the kernel groups by session). With a
//! short lease that is too long, if the leader is frozen meanwhile. So the guard requests the real-time class, which precedes
//! all fair shares, at its lowest priority. Privileged processes get it, and processes with a limit for it (`LimitRTPRIO=1`);
//! all others keep their fair share.
//!
//! The guard's children start in the same class, and leave it in [`super::exec`]: the guard waits for that step, and would
//! otherwise wait for the child's turn.

#![allow(unsafe_code)]

use std::io;
use std::sync::OnceLock;

/// The former class of this process, in which everything that it starts belongs; unset if the class was not changed.
static FORMER: OnceLock<i32> = OnceLock::new();

/// Requests the real-time class for this thread and the threads that it starts.
pub(super) fn request_class() {
    // SAFETY: takes no pointer. Zero is the calling thread.
    let now = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    let Ok(now) = i32::try_from(now) else { return };
    let fair = ![libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE].contains(&now) && now >= 0;
    // A real-time class that was set from outside is meant for the command too.
    if fair && enter(libc::SCHED_RR, 1).is_ok() {
        let _ = FORMER.set(now);
    }
}

/// The class that a child passes to [`restore_class`], if any.
pub(super) fn former_class() -> Option<i32> {
    FORMER.get().copied()
}

/// Returns to the former class. The nice value was never changed.
pub(super) fn restore_class(former: i32) -> io::Result<()> {
    enter(former, 0)
}

fn enter(class: i32, priority: i32) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    // By the raw system call: not every libc implements this function.
    let failed =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, class, &raw const parameter) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
