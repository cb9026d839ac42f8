//! Fifty shards, shared evenly by all running members. Each shard has its own token and its own checkpoint.
//!
//! In two or three terminals: `cargo run --example fleet`. Each member prints which shards it works on. Start another member,
//! and it gets its share; end one with Ctrl-C, or with `kill -9`, and the others continue its shards where it stopped. A store
//! is the first argument, or `TENURE_STORE`.

use std::collections::HashMap;
use std::time::Duration;

use tenure::fleet::{Fleet, FleetEvent, Shard, ShardWork, source};
use tenure::{Checkpoint, Saved};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

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

    let stop = async {
        stop_requested().await?;
        // The other members observe that this one leaves, its work ends, and each shard goes to its next owner.
        fleet.leave().await;
        Ok::<(), std::io::Error>(())
    };
    let ((), stopped) = tokio::join!(work(&fleet), stop);
    Ok(stopped?)
}

/// Runs one task for each shard that this member owns, until the member has left the fleet.
async fn work(fleet: &Fleet) {
    let mut running: HashMap<Shard, JoinHandle<()>> = HashMap::new();
    while let Some(event) = fleet.next().await {
        match event {
            FleetEvent::Assigned { shard, token, checkpoint, work, .. } => {
                let polls = checkpoint.as_ref().and_then(read).unwrap_or(0);
                println!("+ {shard}, token {token}, after poll {polls}");
                running.insert(shard.clone(), tokio::spawn(poll(shard, work, polls)));
            }
            FleetEvent::Revoked { shard, why, .. } => {
                println!("- {shard}, {}", why.as_str());
                if let Some(task) = running.remove(&shard) {
                    // It drops the task and its `ShardWork`: then the work has ended, and the lease is released.
                    task.abort();
                }
            }
            FleetEvent::StoreUnreachable(error) => println!("the store does not answer: {error}"),
            FleetEvent::StoreBack => println!("the store answers again"),
            _ => {}
        }
    }
}

/// The work on one shard. As long as it has `work`, it counts as running.
async fn poll(shard: Shard, work: ShardWork, mut polls: u64) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        second.tick().await;
        if !work.is_valid() {
            // The shard is about to be revoked.
            continue;
        }
        // … here the tenant is polled, with work.token() in every effect …
        polls += 1;
        match work.save(polls.to_string()).await {
            Ok(Saved::Kept) => {}
            Ok(Saved::Lost) => println!("{shard}: poll {polls} was not saved, the term is over"),
            // It may or may not have been saved. The next poll saves a greater number.
            Err(error) => println!("{shard}: poll {polls}: {error}"),
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
