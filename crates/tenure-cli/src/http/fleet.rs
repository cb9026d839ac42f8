//! `/fleet`: who is there, and who has what. As in the store, where everybody's shards are, and not only ours; with those the
//! source names and nobody has ever owned.

use std::sync::Weak;
use std::time::Duration;

use axum::body::Bytes;
use tenure::Store;
use tenure::fleet::survey;

use super::member::HttpMember;
use super::response::HttpError;
use crate::fleet::FleetJson;
use crate::store_access;

/// A reading is good for so long. It is much work for the store: it looks at every shard.
pub(super) const FRESH: Duration = Duration::from_secs(2);

/// `member` is not kept alive by it: whoever ends it need not wait for us.
pub(super) async fn read(
    member: &Weak<HttpMember>,
    store: &dyn Store,
    patience: Duration,
) -> Result<Bytes, HttpError> {
    let gone = || HttpError::busy("this instance is about to end");
    let (name, source) = member.upgrade().map(|member| member.sight()).ok_or_else(gone)?;
    let known = source.shards.iter().cloned();
    let found = store_access::patiently(&store.url(), patience, survey(store, &name, known)).await;
    let mut found = found.map_err(|error| HttpError::of(&error))?;
    for shard in &source.paused {
        found.shards.entry(shard.clone()).or_default().paused = true;
    }
    let body = serde_json::to_vec(&FleetJson::new(&name, &found));
    body.map(Bytes::from).map_err(|_| HttpError::busy("the fleet cannot be written as JSON"))
}
