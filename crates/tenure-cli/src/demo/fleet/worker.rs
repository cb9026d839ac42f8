//! The work of one shard of the demo: a process that writes into the shard's journal ten times a second, until it is told to
//! stop or killed.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use tenure::{Clock, Error, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::demo::journal::{Journal, JournalAction};
use crate::exit::Exit;
use crate::output;

/// Stands first on the command line; then the journal.
pub(crate) const WORKER: &str = "demo-shard";
const BEAT: Duration = Duration::from_millis(100);

pub(crate) fn run(words: &[OsString]) -> Exit {
    match orders(words).and_then(|orders| crate::runtime()?.block_on(work(orders))) {
        Ok(()) => Exit::Done,
        Err(error) => output::failed(&error, false),
    }
}

/// The journal, and in which term it is written.
fn orders(words: &[OsString]) -> Result<(Journal, u64)> {
    let told = |what: &str| Error::invalid(format!("demo-shard is for 'tenure demo': {what}"));
    let path = words.first().ok_or_else(|| told("it needs a journal"))?;
    let member = std::env::var("TENURE_CANDIDATE").map_err(|_| told("it needs a member"))?;
    let token = std::env::var("TENURE_TOKEN").ok().and_then(|token| token.parse().ok());
    let token = token.ok_or_else(|| told("it needs a token"))?;
    let journal = Journal::append(Path::new(path), &member).map_err(|error| failure(&error))?;
    Ok((journal, token))
}

async fn work((journal, token): (Journal, u64)) -> Result<()> {
    let clock = Clock::boot();
    let mut told_to_end = signal(SignalKind::terminate()).map_err(|error| failure(&error))?;
    let write = |deed, count| journal.write(token, deed, count).map_err(|error| failure(&error));
    write(JournalAction::Lead, 0)?;
    for count in 1.. {
        tokio::select! {
            biased;
            _ = told_to_end.recv() => return write(JournalAction::End, count - 1),
            () = clock.sleep(BEAT) => write(JournalAction::Count, count)?,
        }
    }
    Ok(())
}

fn failure(error: &std::io::Error) -> Error {
    Error::denied(format!("a shard's work cannot go on: {error}"))
}
