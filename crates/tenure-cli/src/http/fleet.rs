//! `/fleet`: the members and the owners of all shards. Read from the store, which knows the shards of every member and not only
//! of this one; plus the shards that the source names and that no member has ever owned.

use std::sync::Weak;
use std::time::Duration;

use axum::body::Bytes;
use tenure::Store;
use tenure::fleet::observe_fleet;

use super::member::HttpMember;
use super::response::HttpError;
use crate::fleet::FleetJson;
use crate::store_access;

/// How long a read is valid. A read is expensive for the store, because it observes every shard.
pub(super) const MAX_AGE: Duration = Duration::from_secs(2);

/// Reads the fleet. `member` is a weak reference, so that dropping the member does not wait for a read.
pub(super) async fn read(
    member: &Weak<HttpMember>,
    store: &dyn Store,
    timeout: Duration,
) -> Result<Bytes, HttpError> {
    let gone = || HttpError::busy("this instance is about to end");
    let (name, source) =
        member.upgrade().map(|member| member.name_and_shards()).ok_or_else(gone)?;
    let known = source.shards.iter().cloned();
    let found =
        store_access::with_timeout(&store.url(), timeout, observe_fleet(store, &name, known)).await;
    let mut found = found.map_err(|error| HttpError::of(&error))?;
    for shard in &source.paused {
        found.shards.entry(shard.clone()).or_default().paused = true;
    }
    let body = serde_json::to_vec(&FleetJson::new(&name, &found));
    body.map(Bytes::from).map_err(|_| HttpError::busy("the fleet cannot be written as JSON"))
}
