//! Shards and paused shards in sets on a Redis server.
//!
//! A set is read with SSCAN, page by page, so that a large set never blocks the server. If the server sends notifications
//! (`CONFIG SET notify-keyspace-events Ksg`), a change is read at once; otherwise at the next interval.
//!
//! # Permissions
//! In addition to those of the [store](crate::store::redis):
//! ```text
//! ~poll:shards ~poll:paused +sscan +sadd +srem &__keyspace@0__:poll:shards &__keyspace@0__:poll:paused
//! ```
//! [`redis_keys`](super::redis_keys()) needs `+scan`. Without `+sadd` and `+srem` no shard can be paused there; without the
//! channels there are no hints.

use std::time::Duration;

use ::redis::{Cmd, Value, cmd};
use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::shard_set::ShardSet;
use super::{Shards, Source};
use crate::blocking;
use crate::error::{Error, Result};
use crate::fleet::Shard;
use crate::lease::Name;
use crate::store::redis::RedisServer;

/// How long the server may take for one page of a scan. The whole read has no limit, so that a slow machine can read a long
/// list.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// The COUNT of one scan step, during which the server does nothing else: about a millisecond.
pub(super) const SCAN_COUNT: usize = 5_000;
/// Members in one SADD or SREM.
const MAX_BATCH: usize = 1_000;

/// Whether the store of this URL is on a Redis server, which can have sets of shards. The options of the URL are not checked.
pub fn supports(url: &str) -> bool {
    RedisServer::serves(url)
}

/// The key of the set of a fleet's shards.
pub(super) fn shards_key(fleet: &Name) -> String {
    format!("{fleet}:shards")
}

/// The key of the set of a fleet's paused shards.
pub(super) fn paused_key(fleet: &Name) -> String {
    format!("{fleet}:paused")
}

/// Adds shards to the set `FLEET:paused`. Returns how many were not paused before.
pub async fn pause(url: &str, fleet: &Name, shards: &[Shard]) -> Result<usize> {
    change(url, "SADD", fleet, shards).await
}

/// Removes shards from the set `FLEET:paused`. Returns how many were paused before.
pub async fn unpause(url: &str, fleet: &Name, shards: &[Shard]) -> Result<usize> {
    change(url, "SREM", fleet, shards).await
}

async fn change(url: &str, verb: &str, fleet: &Name, shards: &[Shard]) -> Result<usize> {
    let (server, key) = (RedisServer::from_url(url)?, paused_key(fleet));
    let mut changed = 0;
    for shards in shards.chunks(MAX_BATCH) {
        let mut command = cmd(verb);
        command.arg(&key);
        for shard in shards {
            command.arg(shard.as_str());
        }
        changed += number(server.send(&command, &key, "set").await?)?;
    }
    Ok(changed)
}

/// A set of shards, and optionally a set of paused shards.
#[derive(Debug)]
pub(super) struct RedisSets {
    server: RedisServer,
    shards: String,
    paused: Option<String>,
}

impl RedisSets {
    pub(super) fn new(url: &str, shards: &str, paused: Option<String>) -> Result<Self> {
        if shards.is_empty() {
            return Err(Error::invalid("the key of a Redis set of shards must not be empty"));
        }
        Ok(RedisSets { server: RedisServer::from_url(url)?, shards: shards.to_owned(), paused })
    }

    async fn read_sets(&self) -> Result<Shards> {
        let mut shards = self.members(&self.shards).await?;
        if let Some(paused) = &self.paused {
            // If the paused shards are not known, the read fails: an error must not resume a shard.
            shards.paused = self.members(paused).await?.shards;
        }
        Ok(shards)
    }

    /// All members of a set. A scan returns every member that was there all the time, even if another set is renamed over this
    /// one meanwhile: its cursor depends on the hashes of the members, which are the same in both sets.
    async fn members(&self, key: &str) -> Result<Shards> {
        let mut set = ShardSet::default();
        let mut cursor = b"0".to_vec();
        loop {
            let mut command = cmd("SSCAN");
            command.arg(key).arg(&cursor).arg("COUNT").arg(SCAN_COUNT);
            let (next, members) = page(&self.server, &command, key, "set").await?;
            for member in members {
                set.add(&member, || "a member of it".to_owned())?;
            }
            if next == b"0" {
                // Sorting a million names would delay the other tasks of this thread.
                return blocking::run(|| set.finish()).await?;
            }
            cursor = next;
        }
    }
}

#[async_trait]
impl Source for RedisSets {
    async fn read(&self) -> Result<Shards> {
        self.read_sets().await.map_err(|error| cannot_read(&self.shown(), &error))
    }

    fn hints(&self) -> BoxStream<'static, ()> {
        let keys: Vec<&str> =
            [&self.shards].into_iter().chain(&self.paused).map(|key| &**key).collect();
        self.server.hints(&keys)
    }

    fn shown(&self) -> String {
        format!("the Redis set '{}'", self.shards.escape_debug())
    }
}

pub(super) fn cannot_read(source: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("cannot read {source}: {error}"))
}

/// One step of a scan: returns the next cursor and the members found.
pub(super) async fn page(
    server: &RedisServer,
    command: &Cmd,
    key: &str,
    kind: &str,
) -> Result<(Vec<u8>, Vec<Vec<u8>>)> {
    let answer = tokio::time::timeout(PAGE_TIMEOUT, server.send(command, key, kind)).await;
    let answer = answer.unwrap_or_else(|_| {
        Err(Error::unavailable(format!("the server did not answer within {PAGE_TIMEOUT:?}")))
    })?;
    ::redis::from_redis_value(answer).map_err(|_| unexpected_reply())
}

fn number(answer: Value) -> Result<usize> {
    match answer {
        Value::Int(number) => usize::try_from(number).map_err(|_| unexpected_reply()),
        _ => Err(unexpected_reply()),
    }
}

fn unexpected_reply() -> Error {
    Error::unavailable("Redis answered something else than was asked")
}
