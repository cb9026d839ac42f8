//! Resumes a frozen process so that its first thread runs before the others.
//!
//! Which thread of a process runs first after SIGCONT is up to the scheduler. In a leader the first thread does the work, and
//! another one declares the loss of the term. Work that relies on that declaration is stale only if it runs first, so a trial
//! has to force that order, which a busy machine produces by chance.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::processes::signal;
use super::time::pause;

/// How long the other threads are delayed.
const LATE: Duration = Duration::from_millis(50);

/// Sends SIGCONT. Meanwhile the other threads are confined to one processor, in the idle class, beside a busy loop.
pub fn resume_first_thread_first(pid: u32) {
    let others = other_threads(pid);
    let processors = sched_getaffinity(None).unwrap();
    let mut first = CpuSet::new();
    first.set((0..CpuSet::MAX_CPU).find(|cpu| processors.is_set(*cpu)).unwrap());
    others.iter().for_each(|thread| class(*thread, "--idle", &first));
    let (spins, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sched_setaffinity(None, &first).unwrap();
            spins.store(true, Ordering::SeqCst);
            while !done.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
        });
        while !spins.load(Ordering::SeqCst) {
            pause(Duration::from_millis(1));
        }
        signal(pid, Signal::CONT);
        pause(LATE);
        done.store(true, Ordering::SeqCst);
    });
    others.iter().for_each(|thread| class(*thread, "--other", &processors));
}

fn other_threads(pid: u32) -> Vec<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let ids = threads.filter_map(|thread| thread.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| *id != pid).filter_map(|id| Pid::from_raw(id.cast_signed())).collect()
}

/// Sets the scheduling class and the processors of a thread; a thread that has ended needs neither. Without `chrt` the
/// trial is still right, and only finds less.
fn class(thread: Pid, class: &str, processors: &CpuSet) {
    let id = thread.as_raw_nonzero().get().to_string();
    let mut chrt = Command::new("chrt");
    let _ =
        chrt.args([class, "--pid", "0", &id]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let _ = sched_setaffinity(Some(thread), processors);
}
