//! Work that must not be cut in the middle: when it is notified to stop, it ends its step, and then the lease is released.
//!
//! In two terminals: `cargo run --example graceful_shutdown`. Send the leader SIGTERM, or press Ctrl-C: it ends its
//! current step and cleans up, and the other one begins after that, never before. A store is the first argument, or `TENURE_STORE`.

use std::time::Duration;

use tenure::{Clock, Election, Leadership};
use tokio::signal::unix::{SignalKind, signal};

const STEP: Duration = Duration::from_millis(600);
const PAUSE: Duration = Duration::from_millis(400);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = std::env::args().nth(1).or_else(|| std::env::var("TENURE_STORE").ok());
    let store = tenure::open(argument.as_deref().unwrap_or("file:")).await?;
    let election = Election::builder("demo:graceful-shutdown")
        .ttl(Duration::from_secs(5))
        // Longer than a step: a step that has begun when leadership is lost ends before the deadline.
        .stop_within(Duration::from_secs(1))
        .ends_with_process(true)
        .start(store)
        .await?;

    let stop = async {
        stop_requested().await?;
        println!("shutting down");
        // Notifies the work to stop, waits until it has ended, and releases the lease.
        election.stop().await;
        println!("released");
        Ok::<(), std::io::Error>(())
    };
    // `Election::lead` would drop the work at its next `.await`. With a handle of its own, the work ends by itself.
    let work = async {
        while let Some(leadership) = election.leadership().await {
            in_one_term(leadership).await;
        }
    };
    let ((), stopped) = tokio::join!(work, stop);
    Ok(stopped?)
}

/// As long as `leadership` exists, the work counts as running: the lease is not released before this returns.
async fn in_one_term(leadership: Leadership) {
    let clock = Clock::boot();
    println!("leads, token {}", leadership.token());
    for step in 1_u32.. {
        println!("step {step} begins");
        clock.sleep(STEP).await;
        println!("step {step} ends");
        tokio::select! {
            why = leadership.lost() => {
                println!("notified to stop: {why:?}");
                break;
            }
            () = clock.sleep(PAUSE) => {}
        }
    }
    println!("cleaned up, {:?} before the deadline", leadership.valid_for());
}

/// Returns on Ctrl-C and on SIGTERM.
async fn stop_requested() -> std::io::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        ctrl_c = tokio::signal::ctrl_c() => ctrl_c,
        _ = term.recv() => Ok(()),
    }
}
