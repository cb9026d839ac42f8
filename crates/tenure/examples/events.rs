//! Everything that an election reports: the id of this candidate, the durations, each event, and the status, five times.
//!
//! In two terminals: `cargo run --example events`, the second a moment after the first. The first stops after five
//! seconds, and the second gets the event that it leads. A store is the first argument, or `TENURE_STORE`.

use std::time::Duration;

use futures_util::StreamExt;
use tenure::Election;
use tenure::timing::{Timing, TimingOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = tenure::open(&store_url()).await?;
    // What is not set has a default; the store's limits are checked here too.
    let mut options = TimingOptions::default();
    options.ttl = Some(Duration::from_secs(3));
    let timing = Timing::new(&options, &store.limits())?;

    let election = Election::builder("demo:events")
        .note("http://localhost:8080")
        .ttl(timing.ttl)
        .renew_every(timing.renew_every)
        .ends_with_process(true)
        .start(store)
        .await?;
    // A subscriber first gets the current state as events, and then each event.
    let mut events = election.events();
    let listener = tokio::spawn(async move {
        while let Some(event) = events.next().await {
            println!("event:     {event:?}");
        }
    });

    println!("candidate: {}", election.candidate_id());
    println!("name:      {}", election.name());
    println!("options:   {timing:?}");
    let mut second = tokio::time::interval(Duration::from_secs(1));
    for check in 1..=5 {
        second.tick().await;
        let status = election.status();
        println!(
            "status {check}:  {}, leader {}, token {}, valid for {:?}, store {} (grade {})",
            status.state.as_str(),
            status.current_leader.as_deref().unwrap_or("unknown"),
            status.token.map_or("none".to_owned(), |token| token.to_string()),
            status.valid_for,
            status.store,
            status.store_grade,
        );
    }

    election.stop().await;
    // The stream ends after the last event.
    listener.await?;
    Ok(())
}

fn store_url() -> String {
    let argument = std::env::args().nth(1);
    argument.or_else(|| std::env::var("TENURE_STORE").ok()).unwrap_or_else(|| "file:".to_owned())
}
