//! A member process of the fleet demo: an ordinary `tenure fleet run` that dies with the demo.
//!
//! The process requests a parent death signal from the kernel and then executes `tenure fleet run`. The request survives the
//! exec, so `tenure fleet run` needs no support for the demo.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use tenure::Error;

use crate::demo::processes::own_executable;
use crate::exit::Exit;
use crate::output;

/// The first argument on the command line; the demo's process id and the arguments of the member follow.
pub(crate) const DEMO_MEMBER_COMMAND: &str = "demo-member";

pub(crate) fn run(arguments: &[OsString]) -> Exit {
    let usage = "demo-member is for 'tenure demo --fleet': it needs the process that starts it";
    let parent = arguments.first().and_then(|word| word.to_str()?.parse::<i32>().ok());
    let Some(parent) = parent else {
        return output::report_error(&Error::invalid(usage), false);
    };
    let requested = set_parent_process_death_signal(Some(Signal::KILL));
    // If the demo ended before the request, the signal never comes.
    if requested.is_err() || getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(parent) {
        return Exit::Done;
    }
    let exec_error =
        own_executable().map(|path| Command::new(path).arg0("tenure").args(&arguments[1..]).exec());
    let error = exec_error.unwrap_or_else(|error| error);
    output::report_error(&Error::denied(format!("cannot start a member: {error}")), false)
}
