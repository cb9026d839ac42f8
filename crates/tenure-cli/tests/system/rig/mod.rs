//! The test rig, shared by the system tests and the benches: candidates that run the real command, faults, and the judge that
//! checks the history which the workers have written.

#![allow(dead_code, reason = "the bench uses a part of it")]

pub(crate) mod cycle;
#[path = "../../support/descriptors.rs"]
pub(crate) mod descriptors;
pub(crate) mod fault;
pub(crate) mod fleet;
pub(crate) mod freezer;
pub(crate) mod history;
pub(crate) mod judge;
#[path = "../../support/output.rs"]
pub(crate) mod output;
pub(crate) mod place;
mod poll_server;
pub(crate) mod processes;
mod proxy;
mod register;
pub(crate) mod resume;
pub(crate) mod room;
pub(crate) mod scheduled;
#[path = "../../../../tenure/tests/conformance/servers.rs"]
pub(crate) mod servers;
pub(crate) mod slots;
pub(crate) mod stage;
pub(crate) mod time;
pub(crate) mod trial_process;
mod undertaker;
pub(crate) mod worker;

use std::process::ExitCode;

/// Runs the role that the first argument names, if it names one: then this process runs no tests.
pub(crate) fn run_role() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let part = arguments.next()?;
    let rest: Vec<String> = arguments.collect();
    match (part.as_str(), rest.as_slice()) {
        ("shard", [each, place, shard]) => {
            Some(worker::run_shard_worker(each, place.as_ref(), shard))
        }
        ("slot", [url, name, place]) => Some(worker::run_slot_worker(url, name, place.as_ref())),
        ("worker", [mode, place]) => Some(worker::run_worker(mode, place.as_ref())),
        ("undertaker", [mark, place]) => Some(undertaker::clean_up(mark, place.as_ref())),
        _ => None,
    }
}

/// The parsed arguments of a bench. Otherwise the exit code of this process, because it has run a role or the arguments are
/// invalid.
pub(crate) fn parse_arguments<T>(
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
