//! Counts on where the last leader stopped: the count is a checkpoint, saved under the token of the term.
//!
//! In two terminals: `cargo run --example checkpointed_counter`. End the leader in any way you like: the other one continues,
//! with no number missing. A store is the first argument, or `TENURE_STORE`.

use std::time::Duration;

use tenure::{Checkpoint, Election, Leadership, Saved};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = std::env::args().nth(1).or_else(|| std::env::var("TENURE_STORE").ok());
    let store = tenure::open(argument.as_deref().unwrap_or("file:")).await?;
    let election = Election::builder("demo:counter").ends_with_process(true).start(store).await?;
    println!("{} is a candidate", election.candidate_id());
    tokio::select! {
        _ = election.lead(count) => {}
        stop = stop_requested() => stop?,
    }
    election.stop().await;
    Ok(())
}

async fn count(leadership: Leadership) {
    let found = leadership.checkpoint().and_then(read);
    println!("token {}: found {found:?}", leadership.token());
    let mut next = found.unwrap_or(0) + 1;
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        second.tick().await;
        match leadership.save(next.to_string()).await {
            Ok(Saved::Kept) => {
                println!("{next}");
                next += 1;
            }
            // The term is over: `lead` is about to drop this work.
            Ok(Saved::Lost) => println!("{next} was not kept: {:?}", leadership.lost().await),
            // It may or may not have been saved. Saving the same number again does no harm.
            Err(error) => println!("{next} again: {error}"),
        }
    }
}

fn read(checkpoint: &Checkpoint) -> Option<u64> {
    std::str::from_utf8(checkpoint.as_bytes()).ok()?.parse().ok()
}

/// Returns on Ctrl-C and on SIGTERM.
async fn stop_requested() -> std::io::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        ctrl_c = tokio::signal::ctrl_c() => ctrl_c,
        _ = term.recv() => Ok(()),
    }
}
