//! What the system tests and the failover bench share: contenders that run the real command, the faults they suffer, and
//! the judge who reads what their work has written.

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

/// Plays the part that our first argument names, if it names one: then this process is none of the tests.
pub(crate) fn play() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let part = arguments.next()?;
    let rest: Vec<String> = arguments.collect();
    match (part.as_str(), rest.as_slice()) {
        ("shard", [each, place, shard]) => Some(worker::play_shard(each, place.as_ref(), shard)),
        ("slot", [url, name, place]) => Some(worker::play_slot(url, name, place.as_ref())),
        ("worker", [mode, place]) => Some(worker::play(mode, place.as_ref())),
        ("undertaker", [mark, place]) => Some(undertaker::play(mark, place.as_ref())),
        _ => None,
    }
}

/// What a bench was told; or the code that this process ends with, because it plays a part or was told nonsense.
pub(crate) fn told<T>(
    read: impl FnOnce(std::iter::Skip<std::env::Args>) -> Result<T, String>,
) -> Result<T, ExitCode> {
    if let Some(code) = play() {
        return Err(code);
    }
    read(std::env::args().skip(1)).map_err(|why| {
        eprintln!("{why}");
        ExitCode::from(125)
    })
}
