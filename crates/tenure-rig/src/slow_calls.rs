//! A tracer that delays one kind of system call of a process, like a disk or a file system that no longer responds.
//!
//! A process that is killed during such a delay dies when the tracer has ended.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long each call takes: longer than any test waits.
pub const DELAY: Duration = Duration::from_secs(60);

const STRACE: &str = "/usr/bin/strace";

/// Delays the calls until it is dropped.
pub struct SlowCalls {
    tracer: Child,
    pid: u32,
}

impl SlowCalls {
    /// `None` if this user can trace; otherwise the reason.
    pub fn missing() -> Option<String> {
        let able = rustix::process::geteuid().is_root() && Path::new(STRACE).exists();
        (!able).then(|| "needs root and strace".to_owned())
    }

    /// Delays the calls of this process, its threads and its children, as soon as it [is attached](Self::is_attached).
    pub fn start(pid: u32, call: &str) -> SlowCalls {
        let delay = format!("inject={call}:delay_enter={}", DELAY.as_micros());
        let mut strace = Command::new(STRACE);
        strace.args(["-f", "-qq", "-o", "/dev/null", "-p", &pid.to_string()]);
        strace.args(["-e", &format!("trace={call}"), "-e", &delay]);
        SlowCalls { tracer: strace.stdin(Stdio::null()).spawn().unwrap(), pid }
    }

    /// Whether every thread is traced.
    pub fn is_attached(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
        threads.flatten().all(|thread| {
            let status = fs::read_to_string(thread.path().join("status"));
            status.is_ok_and(|status| !status.contains("TracerPid:\t0\n"))
        })
    }
}

/// The children of all threads of this process.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")));
    let lists: String = lists.flatten().collect();
    lists.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

impl Drop for SlowCalls {
    fn drop(&mut self) {
        let _ = self.tracer.kill();
        let _ = self.tracer.wait();
    }
}
