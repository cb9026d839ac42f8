//! The processor at once: what a guard rarely wants, and then cannot wait for.
//!
//! A fair share comes too late on a machine with more to do than it can. Between busy processes a guard was seen to wait more
//! than half a second for its turn, nice or not (niceness counts inside a session only, where the kernel groups by those):
//! longer than it may with a short lease, if its leader is frozen meanwhile. So it asks for the real-time class, which goes
//! before all fair shares, at its lowest priority. The privileged get it, and whoever has a limit for it (`LimitRTPRIO=1`);
//! all others take their turn.
//!
//! Its children are born in the same class, and leave it when they have become [`super::child`]: the guard waits for that,
//! and would otherwise wait for its turn there.

#![allow(unsafe_code)]

use std::io;
use std::sync::OnceLock;

/// The class we were in, and that everything we start belongs in; unset where we have not left it.
static FORMER: OnceLock<i32> = OnceLock::new();

/// Asks to be let through before everybody else: this thread, and those it starts.
pub(super) fn hurry() {
    // SAFETY: takes no pointer. Zero is the calling thread.
    let now = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    let Ok(now) = i32::try_from(now) else { return };
    let fair = ![libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE].contains(&now) && now >= 0;
    // Whoever has put us in a hurry means the command too.
    if fair && enter(libc::SCHED_RR, 1).is_ok() {
        let _ = FORMER.set(now);
    }
}

/// What [`calm`] is to be told in a child, if anything.
pub(super) fn former() -> Option<i32> {
    FORMER.get().copied()
}

/// Back to the class that was before the hurry. Niceness was never changed.
pub(super) fn calm(former: i32) -> io::Result<()> {
    enter(former, 0)
}

fn enter(class: i32, priority: i32) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    // By the kernel's own number: not every libc passes this on.
    // SAFETY: the kernel only reads the parameter, which outlives the call. Zero is the calling thread.
    let failed =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, class, &raw const parameter) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
