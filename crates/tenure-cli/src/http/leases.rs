//! `/leases`: all leases of the store, read at most four times per second.

use std::time::Duration;

use axum::body::Bytes;
use tenure::presence::nodes;
use tenure::{Lease, Store};

use super::response::HttpError;
use crate::selector::Selector;
use crate::status::LeaseJson;
use crate::store_access;

/// How long a read is valid.
pub(super) const MAX_AGE: Duration = Duration::from_millis(250);

pub(super) async fn read(store: &dyn Store, timeout: Duration) -> Result<Bytes, HttpError> {
    let all = Selector::all();
    let scope = all.scope();
    let found = store_access::with_timeout(&store.url(), timeout, store.observe(&scope)).await;
    let found = found.map_err(|error| HttpError::of(&error))?;
    // Data that is not a lease is left out; `tenure doctor` reports it.
    let mut leases: Vec<Lease> = found.into_iter().filter_map(Result::ok).collect();
    let candidates = nodes(&leases);
    leases.retain(|lease| all.shows(&lease.name));
    leases.sort_by(|a, b| a.name.cmp(&b.name));
    let rows: Vec<LeaseJson> =
        leases.iter().map(|lease| LeaseJson::from(lease).with_candidates(&candidates)).collect();
    let body = serde_json::to_vec(&rows);
    body.map(Bytes::from).map_err(|_| HttpError::busy("the leases cannot be written as JSON"))
}
