//! Whether `/proc` shows the pid namespace of this process.
//!
//! In a container or after `unshare --pid` it may be the one of another namespace. Its numbers are then those of other
//! processes, and a signal to such a number would hit a stranger. Nothing here reads a list of processes from such a `/proc`.

use std::fs;
use std::sync::OnceLock;

use rustix::process::getpid;
use tenure::{Error, Result};

const ADVICE: &str = "a command cannot be run here, because nothing could see to it that all of it ends: mount /proc for \
    this namespace ('unshare --pid --fork --mount-proc', or a container with its own /proc)";

/// Refuses to run commands where `/proc` does not show their processes.
pub(crate) fn check() -> Result<()> {
    match found() {
        ProcMount::Ours => Ok(()),
        ProcMount::Foreign => Err(Error::denied(format!(
            "/proc belongs to another pid namespace than this process: {ADVICE}"
        ))),
        ProcMount::Unreadable => Err(Error::denied(format!("/proc cannot be read: {ADVICE}"))),
    }
}

/// Whether its numbers are those that signals go to. A missing `/proc` shows when it is read.
pub(super) fn is_ours() -> bool {
    static FOREIGN: OnceLock<bool> = OnceLock::new();
    !*FOREIGN.get_or_init(|| found() == ProcMount::Foreign)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcMount {
    Ours,
    Foreign,
    Unreadable,
}

fn found() -> ProcMount {
    let link = fs::read_link("/proc/self").ok();
    let status = fs::read_to_string("/proc/self/status").ok();
    let number = link.as_ref().and_then(|link| link.to_str()?.parse::<i32>().ok());
    judge(getpid().as_raw_nonzero().get(), number, status.as_deref())
}

/// `number` is where `/proc/self` leads, `status` its status.
fn judge(me: i32, number: Option<i32>, status: Option<&str>) -> ProcMount {
    let (Some(number), Some(status)) = (number, status) else { return ProcMount::Unreadable };
    // Our number in the namespace of `/proc` and in each below it, down to ours: only one if they are the same. Kernels
    // before 4.1 do not say.
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let one = numbers.is_none_or(|numbers| numbers.split_whitespace().count() == 1);
    if number == me && one { ProcMount::Ours } else { ProcMount::Foreign }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_ours_only_if_it_shows_one_number_and_that_is_ours() {
        let status = |numbers: &str| format!("Name:\tx\nNSpid:\t{numbers}\nNSpgid:\t7\n");
        for (me, number, status, expected) in [
            (7, Some(7), Some(status("7")), ProcMount::Ours),
            (7, Some(7), Some("Name:\tx\n".to_owned()), ProcMount::Ours),
            (7, Some(4711), Some(status("4711\t7")), ProcMount::Foreign),
            // The same number in both, by chance.
            (7, Some(7), Some(status("7\t7")), ProcMount::Foreign),
            (7, None, Some(status("7")), ProcMount::Unreadable),
            (7, Some(7), None, ProcMount::Unreadable),
        ] {
            assert_eq!(judge(me, number, status.as_deref()), expected);
        }
        assert!(check().is_ok() && is_ours(), "tests run where /proc is right");
    }
}
