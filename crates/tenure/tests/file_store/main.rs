//! The directory store against other users, failing disks, crashes and dying processes.
//!
//! A trial that cannot run here is shown as ignored, with the reason.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

mod child;
mod crash;
mod disk_faults;
mod fixture;
mod leftovers;
mod process_death;
mod security;

/// What a trial needs from the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// The right to change the owner of files, and to mount.
    Root,
    /// A user whom the kernel refuses.
    NoRoot,
    /// The right to make system calls fail.
    Strace,
}

impl Needs {
    fn missing(self) -> Option<&'static str> {
        let root = rustix::process::geteuid().is_root();
        match self {
            Needs::Root if !root => Some("needs root"),
            Needs::NoRoot if root => Some("needs a user other than root"),
            Needs::Strace if !crash::can_trace() => Some("needs strace and the right to trace"),
            _ => None,
        }
    }
}

type Check = fn();

fn main() -> ExitCode {
    if let Some(role) = std::env::var_os(child::ROLE) {
        child::run_role(&role.to_string_lossy());
        return ExitCode::SUCCESS;
    }
    let checks = [
        security::CHECKS,
        disk_faults::CHECKS,
        process_death::CHECKS,
        leftovers::CHECKS,
        crash::CHECKS,
    ];
    let trials = checks.into_iter().flatten().map(|&(name, needs, check)| {
        let trial = Trial::test(name, move || -> Result<(), Failed> {
            check();
            Ok(())
        });
        match needs.missing() {
            Some(why) => trial.with_kind(why).with_ignored_flag(true),
            None => trial,
        }
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// One row of a table: its name is the function's name.
macro_rules! check {
    ($name:ident, $needs:ident) => {
        (stringify!($name), crate::Needs::$needs, $name as crate::Check)
    };
}
use check;
