//! Becomes a member of the demo's fleet: an ordinary `tenure fleet run`, but one that dies with the demo.
//!
//! The kernel sends the signal, and keeps to it when the process becomes another program. So the demo needs nothing from
//! `tenure fleet run` that it has not got.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use tenure::Error;

use crate::demo::processes::ourselves;
use crate::exit::Exit;
use crate::output;

/// Stands first on the command line; then the demo's process, then what to become.
pub(crate) const TIED: &str = "demo-member";

pub(crate) fn run(words: &[OsString]) -> Exit {
    let wrong = "demo-member is for 'tenure demo --fleet': it needs the process that starts it";
    let parent = words.first().and_then(|word| word.to_str()?.parse::<i32>().ok());
    let Some(parent) = parent else {
        return output::failed(&Error::invalid(wrong), false);
    };
    let tied = set_parent_process_death_signal(Some(Signal::KILL));
    // Whoever was gone before that was asked for sends nothing any more.
    if tied.is_err() || getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(parent) {
        return Exit::Done;
    }
    let became = ourselves().map(|path| Command::new(path).arg0("tenure").args(&words[1..]).exec());
    let why = became.unwrap_or_else(|error| error);
    output::failed(&Error::denied(format!("cannot start a member: {why}")), false)
}
