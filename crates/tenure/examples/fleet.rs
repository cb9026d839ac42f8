//! Fifty shards, shared evenly by all running members. Each shard has its own token and its own checkpoint.
//!
//! In two or three terminals: `cargo run --example fleet`. Each member prints which shards it works on. Start another member,
//! and it gets its share; end one with Ctrl-C, or with `kill -9`, and the others continue its shards where it stopped. A store
//! is the first argument, or `TENURE_STORE`.

use std::time::Duration;

use futures_util::StreamExt;
use tenure::fleet::{Fleet, FleetNotice, ShardWork, source};
use tenure::{Checkpoint, Saved};
use tokio::signal::unix::{SignalKind, signal};

const SHARDS: u32 = 50;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = std::env::args().nth(1).or_else(|| std::env::var("TENURE_STORE").ok());
    let store = tenure::open(argument.as_deref().unwrap_or("file:")).await?;
    let fleet = Fleet::builder("demo:fleet")
        .shards(source::list((1..=SHARDS).map(|number| format!("tenant-{number}"))))
        .ttl(Duration::from_secs(5))
        .ends_with_process(true)
        .join(store)
        .await?;
    println!("{} is a member", fleet.member_id());

    let mut events = fleet.events();
    let observe = async {
        while let Some(notice) = events.next().await {
            match notice {
                FleetNotice::Assigned { shard, token } => println!("+ {shard}, token {token}"),
                FleetNotice::Revoked { shard, why, .. } => println!("- {shard}, {}", why.as_str()),
                FleetNotice::Panicked { shard, message, .. } => println!("! {shard}, {message}"),
                _ => {}
            }
        }
    };
    let stop = async {
        stop_requested().await?;
        // The other members observe that this one leaves, its work is dropped, and each shard goes to its next owner.
        fleet.leave().await;
        Ok::<(), std::io::Error>(())
    };
    let ((), (), stopped) = tokio::join!(fleet.run(poll), observe, stop);
    Ok(stopped?)
}

/// The work on one shard. It is dropped when the shard is revoked.
async fn poll(work: ShardWork) {
    let mut polls = work.checkpoint().and_then(read).unwrap_or(0);
    let mut second = tokio::time::interval(Duration::from_secs(1));
    while !work.should_stop() {
        second.tick().await;
        // … poll work.shard() here, and pass work.token() along with every effect …
        polls += 1;
        match work.save(polls.to_string()).await {
            Ok(Saved::Kept) => {}
            Ok(Saved::Lost) => {
                println!("{}: poll {polls} was not saved: the term is over", work.shard())
            }
            // It may or may not have been saved. The next poll saves a greater number.
            Err(error) => println!("{}: poll {polls}: {error}", work.shard()),
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
