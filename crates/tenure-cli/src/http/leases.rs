//! `/leases`: what is in the store, read over a connection of its own, at most four times a second, whoever asks how often.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use tenure::{Clock, Error, Lease, Moment, Store};
use tokio::sync::{Notify, watch};

use super::reply::Refusal;
use crate::reach;
use crate::status::Row;
use crate::target::Target;

/// A reading is good for so long, and the next begins no sooner.
const FRESH: Duration = Duration::from_millis(250);

/// One reading for everybody who asks.
#[derive(Debug)]
pub(super) struct Leases {
    clock: Clock,
    wanted: Arc<Notify>,
    latest: watch::Receiver<Option<Reading>>,
}

#[derive(Clone, Debug)]
struct Reading {
    at: Moment,
    found: Result<Bytes, Refusal>,
}

impl Leases {
    /// Reads on the runtime this is called on. A task of its own does it: a client that goes away in the middle makes
    /// nobody read again.
    pub(super) fn start(store: Arc<dyn Store>, clock: &Clock, patience: Duration) -> Leases {
        let (latest, readings) = watch::channel(None);
        let wanted = Arc::new(Notify::new());
        let (asked, clock) = (Arc::clone(&wanted), clock.clone());
        let reading = clock.clone();
        tokio::spawn(async move {
            loop {
                asked.notified().await;
                let next = reading.now() + FRESH;
                let found = read(&*store, patience).await;
                // The one who asks may be gone, and so may we soon.
                let _ = latest.send(Some(Reading { at: reading.now(), found }));
                reading.sleep_until(next).await;
            }
        });
        Leases { clock, wanted, latest: readings }
    }

    pub(super) async fn get(&self) -> Result<Bytes, Refusal> {
        let mut latest = self.latest.clone();
        let oldest = self.clock.now().before(FRESH);
        let fresh = |reading: &Option<Reading>| {
            reading.as_ref().is_some_and(|reading| reading.at >= oldest)
        };
        if !fresh(&latest.borrow()) {
            self.wanted.notify_one();
        }
        match latest.wait_for(fresh).await.as_deref() {
            Ok(Some(reading)) => reading.found.clone(),
            // Only while everything comes down.
            _ => Err(Refusal::busy("this instance is about to end")),
        }
    }
}

async fn read(store: &dyn Store, patience: Duration) -> Result<Bytes, Refusal> {
    let all = Target::all();
    let scope = all.scope();
    let found = reach::patiently(&store.url(), patience, store.observe(&scope)).await;
    let found = found.map_err(|error| refusal(&error))?;
    // What is not ours is no lease; `tenure doctor` tells of it.
    let mut leases: Vec<Lease> = found.into_iter().filter_map(Result::ok).collect();
    leases.retain(|lease| all.shows(&lease.name));
    leases.sort_by(|a, b| a.name.cmp(&b.name));
    let rows: Vec<Row> = leases.iter().map(Row::from).collect();
    let body = serde_json::to_vec(&rows);
    body.map(Bytes::from).map_err(|_| Refusal::busy("the leases cannot be written as JSON"))
}

fn refusal(error: &Error) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.kind().as_str(), error.to_string())
}
