//! The test rig, shared by the system tests and the benches: candidates that run the real command, faults, and the judge that
//! checks the history which the workers have written.

pub mod checker;
pub mod election_trial;
pub mod fault;
pub mod fault_cycle;
pub mod fleet_trial;
pub mod freezer;
pub mod history;
pub mod poll_server;
pub mod processes;
pub mod proxy;
pub mod reaper;
pub mod resume;
pub mod schedule_trial;
pub mod slots;
pub mod time;
pub mod token_register;
pub mod trial_directory;
pub mod trial_process;
pub mod trial_store;
pub mod worker;

use std::process::ExitCode;

/// Runs the role that the first argument names, if it names one: then this process runs no tests.
pub fn run_role() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let part = arguments.next()?;
    let rest: Vec<String> = arguments.collect();
    match (part.as_str(), rest.as_slice()) {
        ("shard", [each, place, shard]) => {
            Some(worker::run_shard_worker(each, place.as_ref(), shard))
        }
        ("slot", [url, name, place]) => Some(worker::run_slot_worker(url, name, place.as_ref())),
        ("worker", [mode, place]) => Some(worker::run_worker(mode, place.as_ref())),
        ("undertaker", [mark, place]) => Some(reaper::clean_up(mark, place.as_ref())),
        _ => None,
    }
}

/// The parsed arguments of a bench. Otherwise the exit code of this process, because it has run a role or the arguments are
/// invalid.
pub fn parse_arguments<T>(
    read: impl FnOnce(std::iter::Skip<std::env::Args>) -> Result<T, String>,
) -> Result<T, ExitCode> {
    if let Some(code) = run_role() {
        return Err(code);
    }
    read(std::env::args().skip(1)).map_err(|why| {
        eprintln!("{why}");
        ExitCode::from(125)
    })
}
