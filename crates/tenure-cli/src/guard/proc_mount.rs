//! Checks whether `/proc` shows the pid namespace of this process.
//!
//! In a container or after `unshare --pid` it may show another namespace. Its numbers are then those of other processes, and a
//! signal to such a number would reach an unrelated process. So no process list is read from such a `/proc`.

use std::fs;
use std::sync::OnceLock;

use rustix::process::getpid;
use tenure::{Error, Result};

const ADVICE: &str = "a command cannot be run here, because nothing could see to it that all of it ends: mount /proc for \
    this namespace ('unshare --pid --fork --mount-proc', or a container with its own /proc)";

/// Refuses to run commands where `/proc` does not show their processes.
pub(crate) fn check() -> Result<()> {
    match detect() {
        ProcMount::OwnNamespace => Ok(()),
        ProcMount::ForeignNamespace => Err(Error::denied(format!(
            "/proc belongs to another pid namespace than this process: {ADVICE}"
        ))),
        ProcMount::Unreadable => Err(Error::denied(format!("/proc cannot be read: {ADVICE}"))),
    }
}

/// Whether the numbers in `/proc` are those that signals use. A missing `/proc` shows up when it is read.
pub(super) fn is_own_namespace() -> bool {
    static FOREIGN: OnceLock<bool> = OnceLock::new();
    !*FOREIGN.get_or_init(|| detect() == ProcMount::ForeignNamespace)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcMount {
    OwnNamespace,
    ForeignNamespace,
    Unreadable,
}

fn detect() -> ProcMount {
    let link = fs::read_link("/proc/self").ok();
    let status = fs::read_to_string("/proc/self/status").ok();
    let number = link.as_ref().and_then(|link| link.to_str()?.parse::<i32>().ok());
    classify(getpid().as_raw_nonzero().get(), number, status.as_deref())
}

/// `number` is the target of `/proc/self`, `status` the text of its status file.
fn classify(me: i32, number: Option<i32>, status: Option<&str>) -> ProcMount {
    let (Some(number), Some(status)) = (number, status) else { return ProcMount::Unreadable };
    // The numbers of this process in the namespace of `/proc` and in each one below it, down to its own: only one number if
    // they are the same namespace. Kernels before 4.1 do not show them.
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let one = numbers.is_none_or(|numbers| numbers.split_whitespace().count() == 1);
    if number == me && one { ProcMount::OwnNamespace } else { ProcMount::ForeignNamespace }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_of_this_namespace_only_if_it_shows_one_number_and_that_is_this_process() {
        let status = |numbers: &str| format!("Name:\tx\nNSpid:\t{numbers}\nNSpgid:\t7\n");
        for (me, number, status, expected) in [
            (7, Some(7), Some(status("7")), ProcMount::OwnNamespace),
            (7, Some(7), Some("Name:\tx\n".to_owned()), ProcMount::OwnNamespace),
            (7, Some(4711), Some(status("4711\t7")), ProcMount::ForeignNamespace),
            // The same number in both, by chance.
            (7, Some(7), Some(status("7\t7")), ProcMount::ForeignNamespace),
            (7, None, Some(status("7")), ProcMount::Unreadable),
            (7, Some(7), None, ProcMount::Unreadable),
        ] {
            assert_eq!(classify(me, number, status.as_deref()), expected);
        }
        assert!(check().is_ok() && is_own_namespace(), "tests run where /proc is right");
    }
}
