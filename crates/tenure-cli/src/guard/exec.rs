//! The process that becomes the command: `tenure guard-child` ties its life to the guard's, and then executes the command.
//!
//! It is a separate process because only a process itself can tie its life to its parent's, and between fork and exec there is
//! no safe way to do it. It also keeps a slow exec (a program on a network file system) from blocking the guard.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::log;
use super::realtime::restore_class;
use crate::exit::Exit;

/// `tenure guard-child PID:CLASS CMD ARG…`
pub fn run(args: &[OsString]) -> Exit {
    let [guard, command, rest @ ..] = args else {
        let _written_at_the_end = log::start();
        log::unprefixed(&format!("only 'tenure run' may start {}", super::CHILD));
        return Exit::Usage;
    };
    // Without the guard no process would end the command in time. This covers the case that the leader and the guard are
    // killed, and the command is not.
    let tied = set_parent_process_death_signal(Some(Signal::KILL));
    let (guard, class) = guard.to_str().and_then(|guard| guard.split_once(':')).unzip();
    let guard = guard.and_then(|pid| pid.parse().ok());
    // The real-time class is for the guard only.
    let class_restored = match class {
        None | Some("") => true,
        Some(class) => class.parse().is_ok_and(|class| restore_class(class).is_ok()),
    };
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get());
    if tied.is_err() || !class_restored || parent != guard {
        return Exit::CannotRun;
    }
    // `exec` returns only if it fails.
    let error = Command::new(command).args(rest).exec();
    let refusal = super::command_check::refused(command, &error);
    let _written_at_the_end = log::start();
    log::unprefixed(&refusal.sentence);
    refusal.exit
}
