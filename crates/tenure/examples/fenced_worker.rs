//! A worker that is fenced and checkpointed: it works through numbered items, and each item is applied once.
//!
//! In two terminals: `cargo run --example fenced_worker`. Kill the leader, or freeze it with Ctrl-Z: the other one continues
//! with the next item. Resume the frozen one with `fg`: the ledger refuses its late item. A store is the first argument, or
//! `TENURE_STORE`; the ledger is in `target/fenced-worker`.
//!
//! - **The token** is compared inside the write of the ledger, so an earlier leader cannot change it.
//! - **The checkpoint** says where to continue. It is saved after the effect, so a leader that dies in between leaves an item
//!   that is applied and not saved.
//! - **The number of the item** is stored with the effect, so the next leader finds out that this item is applied. Without it,
//!   an effect and its checkpoint are two writes, and one of them can be missing.
//!
//! `tests/fenced_worker.rs` runs this worker through all three cases.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tenure::{Checkpoint, Clock, Election, Leadership, Saved, Token};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = std::env::args().nth(1).or_else(|| std::env::var("TENURE_STORE").ok());
    let store = tenure::open(argument.as_deref().unwrap_or("file:")).await?;
    let worker = Worker {
        ledger: Ledger::open("target/fenced-worker")?,
        items: 1_000_000,
        prepare: Duration::from_millis(500),
    };
    let election =
        Election::builder("demo:fenced-worker").ends_with_process(true).start(store).await?;
    println!("{} is a candidate", election.candidate_id());
    tokio::select! {
        done = worker.lead(&election) => println!("item {} is the last", done?),
        stop = stop_requested() => stop?,
    }
    election.stop().await;
    Ok(())
}

/// Works through the items 1 to `items`.
pub(crate) struct Worker {
    pub(crate) ledger: Ledger,
    pub(crate) items: u64,
    /// How long it takes to prepare an item.
    pub(crate) prepare: Duration,
}

impl Worker {
    /// Works in every term of this candidate until the last item is applied. Returns its number.
    pub(crate) async fn lead(&self, election: &Election) -> io::Result<u64> {
        while let Some(leadership) = election.leadership().await {
            let applied = self.work(&leadership).await?;
            if applied == self.items {
                return Ok(applied);
            }
            println!("stops after item {applied}: {:?}", leadership.ended());
        }
        Ok(0)
    }

    /// Works in one term. Returns the last item that is applied and saved.
    pub(crate) async fn work(&self, leadership: &Leadership) -> io::Result<u64> {
        let mut applied = leadership.checkpoint().and_then(item).unwrap_or(0);
        println!("leads, token {}: continues after item {applied}", leadership.token());
        while applied < self.items && !leadership.should_stop() {
            let next = applied + 1;
            // The slow part has no effect. Leadership may be over when it is done.
            Clock::boot().sleep(self.prepare).await;
            match self.ledger.apply(leadership.token(), next)? {
                Applied::Now => println!("item {next} is applied"),
                Applied::Before => println!("item {next} was applied, but not saved"),
                Applied::Refused(newer) => {
                    // Another candidate leads. Never try again with this token.
                    println!("REFUSED: item {next}, because token {newer} has been used");
                    break;
                }
            }
            match leadership.save(next.to_string()).await {
                Ok(Saved::Kept) => applied = next,
                Ok(Saved::Lost) => break,
                // It may or may not have been saved. The same item again does no harm.
                Err(error) => println!("item {next} again: {error}"),
            }
        }
        Ok(applied)
    }
}

fn item(checkpoint: &Checkpoint) -> Option<u64> {
    std::str::from_utf8(checkpoint.as_bytes()).ok()?.parse().ok()
}

/// The result of an effect on the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// The item is applied.
    Now,
    /// The item was applied before: by this worker, or by one that ended before it saved.
    Before,
    /// This newer token has been used.
    Refused(u64),
}

/// The resource: the last item that was applied, and the greatest token that was used, written together.
pub(crate) struct Ledger(PathBuf);

impl Ledger {
    pub(crate) fn open(directory: impl Into<PathBuf>) -> io::Result<Ledger> {
        let ledger = Ledger(directory.into());
        fs::create_dir_all(&ledger.0)?;
        Ok(ledger)
    }

    /// The greatest token, and the last item.
    pub(crate) fn read(&self) -> io::Result<(u64, u64)> {
        let text = match fs::read_to_string(self.0.join("ledger")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, 0)),
            text => text?,
        };
        let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
        numbers.next().zip(numbers.next()).ok_or_else(|| io::Error::other("not a ledger"))
    }

    /// Compares the token and the item, and writes both, under one lock: no other write comes in between.
    pub(crate) fn apply(&self, token: Token, item: u64) -> io::Result<Applied> {
        let lock = File::create(self.0.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let (greatest, last) = self.read()?;
        if greatest > token.get() {
            return Ok(Applied::Refused(greatest));
        }
        // The token is written for an item that was applied before too: from now on, an older token is refused.
        let mut new = File::create(self.0.join("new"))?;
        writeln!(new, "{token} {}", item.max(last))?;
        new.sync_all()?;
        fs::rename(self.0.join("new"), self.0.join("ledger"))?;
        File::open(&self.0)?.sync_all()?;
        Ok(if item <= last { Applied::Before } else { Applied::Now })
    }
}

/// Returns on Ctrl-C and on SIGTERM.
async fn stop_requested() -> io::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        ctrl_c = tokio::signal::ctrl_c() => ctrl_c,
        _ = term.recv() => Ok(()),
    }
}
