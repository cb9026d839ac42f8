//! The errors of signalling a command's processes: each process is reported once.

use std::collections::HashSet;
use std::io;

use rustix::io::Errno;

use super::procfs::{self, ProcessInfo};

/// The processes below the guard that could not be signalled.
#[derive(Debug, Default)]
pub(crate) struct KillErrors {
    /// Process number and start time of each reported process.
    reported: HashSet<(i32, u64)>,
    /// `/proc` could not be read.
    unreadable: bool,
    new: Vec<String>,
    /// A signal failed since this was last taken.
    recent: bool,
}

impl KillErrors {
    /// A signal to this process failed. Returns what to report, if that is new.
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

    /// `/proc` did not show every process, so some may not have been signalled. Returns what to report, if that is new.
    pub(super) fn incomplete(&mut self, error: &io::Error) -> Option<String> {
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

    /// The next failure that has not been reported yet.
    pub(crate) fn next(&mut self) -> Option<String> {
        self.new.pop()
    }

    /// All failures that have not been reported yet.
    pub(crate) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.new)
    }

    /// Whether a signal failed since this was last called.
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
        failures.incomplete(&io::Error::from(Errno::MFILE));
        failures.incomplete(&io::Error::from(Errno::MFILE));
        assert_eq!(failures.take().len(), 3);
        assert_eq!(failures.take().len(), 0);
        assert!(failures.take_recent() && !failures.take_recent());
    }
}
