//! The Redis sets `NAME:shards` and `NAME:paused`, which are the default source of a fleet on Redis.
//!
//! Other stores have no such sets; there the functions return nothing.

use tenure::fleet::Shard;
use tenure::fleet::source::Shards;
use tenure::{Name, Result};

/// Reads both sets.
#[cfg(feature = "redis")]
pub(super) async fn both(url: &str, fleet: &Name) -> Result<Shards> {
    if !tenure::fleet::source::redis::supports(url) {
        return Ok(Shards::default());
    }
    tenure::fleet::source::redis(url, fleet)?.read().await
}

#[cfg(not(feature = "redis"))]
pub(super) async fn both(_: &str, _: &Name) -> Result<Shards> {
    Ok(Shards::default())
}

/// Reads only the set of paused shards, because the set of all shards may be large.
#[cfg(feature = "redis")]
pub(super) async fn paused(url: &str, fleet: &Name) -> Result<Vec<Shard>> {
    if !tenure::fleet::source::redis::supports(url) {
        return Ok(Vec::new());
    }
    let set = tenure::fleet::source::redis_set(url, &format!("{fleet}:paused"))?;
    Ok(set.read().await?.shards().to_vec())
}

#[cfg(not(feature = "redis"))]
pub(super) async fn paused(_: &str, _: &Name) -> Result<Vec<Shard>> {
    Ok(Vec::new())
}

/// Removes shards from the set of paused shards.
#[cfg(feature = "redis")]
pub(super) async fn unpause(url: &str, fleet: &Name, shards: &[Shard]) -> Result<()> {
    tenure::fleet::source::redis::unpause(url, fleet, shards).await.map(drop)
}

#[cfg(not(feature = "redis"))]
pub(super) async fn unpause(_: &str, _: &Name, _: &[Shard]) -> Result<()> {
    Ok(())
}
