//! The worker of one shard of the demo: a process that writes to the shard's journal ten times a second, until it is stopped or
//! killed.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use tenure::{Clock, Error, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::demo::journal::{Journal, JournalAction};
use crate::exit::Exit;
use crate::output;

/// The first argument on the command line; the journal's path follows.
pub(crate) const DEMO_WORKER_COMMAND: &str = "demo-shard";
const COUNT_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn run(arguments: &[OsString]) -> Exit {
    match parse_arguments(arguments).and_then(|parsed| crate::runtime()?.block_on(work(parsed))) {
        Ok(()) => Exit::Done,
        Err(error) => output::report_error(&error, false),
    }
}

/// The journal, and the token of the term in which it is written.
fn parse_arguments(arguments: &[OsString]) -> Result<(Journal, u64)> {
    let usage = |what: &str| Error::invalid(format!("demo-shard is for 'tenure demo': {what}"));
    let path = arguments.first().ok_or_else(|| usage("it needs a journal"))?;
    let member = std::env::var("TENURE_CANDIDATE").map_err(|_| usage("it needs a member"))?;
    let token = std::env::var("TENURE_TOKEN").ok().and_then(|token| token.parse().ok());
    let token = token.ok_or_else(|| usage("it needs a token"))?;
    let journal = Journal::append(Path::new(path), &member).map_err(|error| failure(&error))?;
    Ok((journal, token))
}

async fn work((journal, token): (Journal, u64)) -> Result<()> {
    let clock = Clock::boot();
    let mut sigterm = signal(SignalKind::terminate()).map_err(|error| failure(&error))?;
    let write =
        |action, count| journal.write(token, action, count).map_err(|error| failure(&error));
    write(JournalAction::Lead, 0)?;
    for count in 1.. {
        tokio::select! {
            biased;
            _ = sigterm.recv() => return write(JournalAction::End, count - 1),
            () = clock.sleep(COUNT_INTERVAL) => write(JournalAction::Count, count)?,
        }
    }
    Ok(())
}

fn failure(error: &std::io::Error) -> Error {
    Error::denied(format!("a shard's work cannot go on: {error}"))
}
