//! Twelve shards, shared by all running processes of this program.
//!
//! In two or three terminals: `cargo run --example fleet`. Each prints the shards that it works on. Start another one and it gets
//! its share; end one with Ctrl-C, or with `kill -9`, and the others take over its shards. A store is the first argument, or
//! `TENURE_STORE`.

use std::time::Duration;

use futures_util::StreamExt;
use tenure::fleet::{Fleet, FleetNotice, ShardWork, source};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = std::env::args().nth(1).or_else(|| std::env::var("TENURE_STORE").ok());
    let store = tenure::open(argument.as_deref().unwrap_or("file:")).await?;
    let fleet = Fleet::builder("demo:fleet")
        .shards(source::list((1..=12).map(|number| format!("tenant-{number}"))))
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
    let mut second = tokio::time::interval(Duration::from_secs(1));
    while !work.should_stop() {
        second.tick().await;
        // … poll work.shard() here, and pass work.token() along with every effect …
    }
}

/// Returns on Ctrl-C and on SIGTERM.
async fn stop_requested() -> std::io::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        ctrl_c = tokio::signal::ctrl_c() => ctrl_c,
        _ = term.recv() => Ok(()),
    }
}
