//! What a store on Redis has beside the leases: the sets `NAME:shards` and `NAME:paused`, which a fleet reads there unless it is
//! told of another source. Elsewhere there are none.

use tenure::fleet::Shard;
use tenure::fleet::source::Shards;
use tenure::{Name, Result};

/// Both sets.
#[cfg(feature = "redis")]
pub(super) async fn both(url: &str, fleet: &Name) -> Result<Shards> {
    match on_redis(url) {
        true => tenure::fleet::source::redis(url, fleet)?.read().await,
        false => Ok(Shards::default()),
    }
}

#[cfg(not(feature = "redis"))]
pub(super) async fn both(_: &str, _: &Name) -> Result<Shards> {
    Ok(Shards::default())
}

/// The set of those paused; the other one may be large.
#[cfg(feature = "redis")]
pub(super) async fn paused(url: &str, fleet: &Name) -> Result<Vec<Shard>> {
    if !on_redis(url) {
        return Ok(Vec::new());
    }
    let set = tenure::fleet::source::redis_set(url, &format!("{fleet}:paused"))?;
    Ok(set.read().await?.shards)
}

#[cfg(not(feature = "redis"))]
pub(super) async fn paused(_: &str, _: &Name) -> Result<Vec<Shard>> {
    Ok(Vec::new())
}

/// Takes shards out of the set of those paused.
#[cfg(feature = "redis")]
pub(super) async fn unpause(url: &str, fleet: &Name, shards: &[Shard]) -> Result<()> {
    tenure::fleet::source::redis::unpause(url, fleet, shards).await.map(drop)
}

#[cfg(not(feature = "redis"))]
pub(super) async fn unpause(_: &str, _: &Name, _: &[Shard]) -> Result<()> {
    Ok(())
}

#[cfg(feature = "redis")]
fn on_redis(url: &str) -> bool {
    url.starts_with("redis://") || url.starts_with("rediss://")
}
