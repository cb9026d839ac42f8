//! One of many processes leads, the others wait: the README's ten lines.
//!
//! In two terminals: `cargo run --example minimal`. One of them prints a line a second. End that one with Ctrl-C, or
//! with `kill -9`, and the other one continues. A store is the first argument, or `TENURE_STORE`:
//! `cargo run --features redis --example minimal redis://127.0.0.1:6379/0`.

use std::sync::Arc;
use std::time::Duration;

use tenure::Election;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = tenure::open(&store_url()).await?;
    let builder = Election::builder("demo:minimal").ends_with_process(true);
    let election = Arc::new(builder.start(store).await?);
    println!("{} is a candidate", election.candidate_id());

    let work = election.spawn_lead(|leadership| async move {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        loop {
            second.tick().await;
            println!("leads, token {}", leadership.token());
        }
    });
    tokio::select! {
        _ = work => {}
        stop = stop_requested() => stop?,
    }
    // Ends the work and then releases the lease, so another candidate leads at once.
    election.stop().await;
    Ok(())
}

fn store_url() -> String {
    let argument = std::env::args().nth(1);
    argument.or_else(|| std::env::var("TENURE_STORE").ok()).unwrap_or_else(|| "file:".to_owned())
}

/// Returns on Ctrl-C and on SIGTERM.
async fn stop_requested() -> std::io::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        ctrl_c = tokio::signal::ctrl_c() => ctrl_c,
        _ = term.recv() => Ok(()),
    }
}
