//! Takes file descriptors away from a running process.

use std::collections::BTreeMap;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// The descriptors that a guard can still open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptors {
    All,
    /// Only the two that it keeps in reserve for this.
    Spare,
    /// Only one of them: it can hold a process or read it, and not both.
    One,
}

impl Descriptors {
    /// Sets a limit: from now on a new descriptor must be below a number below which all others are in use.
    pub fn limit(self, guard: u32) {
        let fds = std::fs::read_dir(format!("/proc/{guard}/fd")).into_iter().flatten().flatten();
        let fds: BTreeMap<u64, String> = fds
            .filter_map(|fd| {
                let what = std::fs::read_link(fd.path()).ok()?.to_string_lossy().into_owned();
                Some((fd.file_name().to_str()?.parse().ok()?, what))
            })
            .collect();
        // A timer is closed, and so free, when it has fired.
        let is_free = |fd: &u64| fds.get(fd).is_none_or(|what| what.contains("[timerfd]"));
        let free = (0..).find(is_free).unwrap();
        // The first eventfd belongs to the runtime, the others are in reserve.
        let mut events = fds.iter().filter(|(_, what)| what.contains("[eventfd]"));
        let limit = match self {
            Descriptors::All => 1_000,
            Descriptors::Spare => free,
            Descriptors::One => events.nth(1).map_or(free, |(fd, _)| free.min(fd + 1)),
        };
        let limit = Rlimit { current: Some(limit), maximum: Some(1_000) };
        // A process that has ended meanwhile needs no limit.
        let _ = prlimit(Pid::from_raw(guard.cast_signed()), Resource::Nofile, limit);
    }
}
