//! The last step before the command: ties it to the guard's life, and becomes it.
//!
//! A process of its own because a tie to the parent's life can only be made from inside, and between fork and exec there is
//! no safe way to do it. It also keeps a slow exec (a program on a network file system) from holding up the guard.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::log;
use super::realtime::calm;
use crate::exit::Exit;

/// `tenure guard-child PID:CLASS CMD ARG…`
pub(crate) fn run(args: &[OsString]) -> Exit {
    let [guard, command, rest @ ..] = args else {
        let _written_at_the_end = log::start();
        log::unprefixed(&format!(
            "{} is started by 'tenure run', and by nobody else",
            super::CHILD
        ));
        return Exit::Usage;
    };
    // Without the guard nobody would end the command in time. Somebody who kills both, and not the command, does this.
    let tied = set_parent_process_death_signal(Some(Signal::KILL));
    let (guard, class) = guard.to_str().and_then(|guard| guard.split_once(':')).unzip();
    let guard = guard.and_then(|pid| pid.parse().ok());
    // The guard's haste is its own.
    let calmed = match class {
        None | Some("") => true,
        Some(class) => class.parse().is_ok_and(|class| calm(class).is_ok()),
    };
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get());
    if tied.is_err() || !calmed || parent != guard {
        return Exit::CannotRun;
    }
    // Returns only if it fails.
    let error = Command::new(command).args(rest).exec();
    let refusal = super::command_check::refused(command, &error);
    let _written_at_the_end = log::start();
    log::unprefixed(&refusal.sentence);
    refusal.exit
}
