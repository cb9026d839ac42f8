//! Twelve shards, dealt out over however many of these are running.
//!
//! In two or three terminals: `cargo run --example fleet`. Each says what it works on. Start another and it is given its share;
//! end one with Ctrl-C, or with `kill -9`, and the others take over what it had. A store is the first argument, or
//! `TENURE_STORE`.

use std::collections::HashMap;
use std::time::Duration;

use tenure::fleet::{Fleet, FleetEvent, Shard, source};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

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

    let mut running: HashMap<Shard, JoinHandle<()>> = HashMap::new();
    let work = async {
        while let Some(event) = fleet.next().await {
            match event {
                FleetEvent::Assigned { shard, token, work, .. } => {
                    println!("+ {shard}, token {token}");
                    let polled = shard.clone();
                    let task = tokio::spawn(async move {
                        // As long as the task has it, the work counts as going on.
                        let _work = work;
                        poll(&polled).await;
                    });
                    running.insert(shard, task);
                }
                FleetEvent::Revoked { shard, why, .. } => {
                    println!("- {shard}, {}", why.as_str());
                    if let Some(task) = running.remove(&shard) {
                        task.abort();
                    }
                }
                _ => {}
            }
        }
    };
    let stop = async {
        stop_requested().await?;
        // The others see it go, its work is ended, and each shard is given to its next owner.
        fleet.leave().await;
        Ok::<(), std::io::Error>(())
    };
    let ((), stopped) = tokio::join!(work, stop);
    Ok(stopped?)
}

async fn poll(_shard: &Shard) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        second.tick().await;
        // … and here it would be polled, with the token in whatever has an effect.
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
