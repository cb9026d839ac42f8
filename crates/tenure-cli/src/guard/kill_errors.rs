//! Processes of a command that could not be signalled: each is reported once.

use std::collections::HashSet;
use std::io;

use rustix::io::Errno;

use super::procfs::{self, ProcessInfo};

/// What was reported of the processes below us.
#[derive(Debug, Default)]
pub(crate) struct KillErrors {
    /// Number and start of the process.
    reported: HashSet<(i32, u64)>,
    /// `/proc` could not be read.
    unreadable: bool,
    new: Vec<String>,
    /// There was a failure since this was last asked.
    recent: bool,
}

impl KillErrors {
    /// A signal to this process failed. What to report, if that is new.
    pub(super) fn signal(&mut self, process: &ProcessInfo, error: Errno) -> Option<String> {
        self.recent = true;
        if !self.reported.insert((process.pid, process.started)) {
            return None;
        }
        let pid = process.pid;
        let of = procfs::name_and_user(pid)
            .map(|(name, user)| format!(" ({name}, uid {user})"))
            .unwrap_or_default();
        let hint = match error {
            Errno::PERM => "; only root may kill another user's process",
            _ => "",
        };
        let text = format!("cannot kill process {pid}{of}: {error}{hint}. It keeps running");
        self.new.push(text.clone());
        Some(text)
    }

    /// `/proc` did not show every process, so there may be some that were not signalled. What to report, if that is new.
    pub(super) fn unseen(&mut self, error: &io::Error) -> Option<String> {
        self.recent = true;
        if std::mem::replace(&mut self.unreadable, true) {
            return None;
        }
        let text = format!(
            "cannot see every process of the command in /proc, so some may run on: {error}"
        );
        self.new.push(text.clone());
        Some(text)
    }

    /// The next that has not been reported yet.
    pub(crate) fn next(&mut self) -> Option<String> {
        self.new.pop()
    }

    /// Everything that has not been reported yet.
    pub(crate) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.new)
    }

    /// Whether there was a failure since this was last asked.
    pub(super) fn take_recent(&mut self) -> bool {
        std::mem::take(&mut self.recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_is_reported_once() {
        let of = |pid, started| ProcessInfo {
            pid,
            parent: 1,
            group: 1,
            session: 1,
            started,
            ended: false,
        };
        let mut failures = KillErrors::default();
        let me = procfs::me();
        let text = failures.signal(&of(me, 5), Errno::PERM).unwrap();
        let user = rustix::process::getuid().as_raw();
        assert!(text.starts_with(&format!("cannot kill process {me} (")), "{text}");
        assert!(text.contains(&format!(", uid {user}): Operation not permitted")), "{text}");
        assert_eq!(failures.signal(&of(me, 5), Errno::PERM), None);
        assert!(failures.signal(&of(me, 6), Errno::MFILE).is_some(), "another with its number");
        failures.unseen(&io::Error::from(Errno::MFILE));
        failures.unseen(&io::Error::from(Errno::MFILE));
        assert_eq!(failures.take().len(), 3);
        assert_eq!(failures.take().len(), 0);
        assert!(failures.take_recent() && !failures.take_recent());
    }
}
