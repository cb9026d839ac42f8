//! Shards in sets at a Redis server, and those paused there.
//!
//! A set is read with SSCAN, a piece at a time, so that the server is never held up by a large one. Who changes it is heard
//! at once if the server tells of it (`CONFIG SET notify-keyspace-events Ksg`); else the period decides.
//!
//! # Permissions
//! Beside those of the [store](crate::store::redis):
//! ```text
//! ~poll:shards ~poll:paused +sscan +sadd +srem &__keyspace@0__:poll:shards &__keyspace@0__:poll:paused
//! ```
//! For [`redis_keys`](super::redis_keys()) `+scan`. Without `+sadd` and `+srem` nobody can be paused there, without the channels
//! nothing is heard.

use std::time::Duration;

use ::redis::{Cmd, Value, cmd};
use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::shard_set::{ShardSet, aside};
use super::{Shards, Source};
use crate::error::{Error, Result};
use crate::fleet::Shard;
use crate::lease::Name;
use crate::store::redis::RedisServer;

/// How long the server may take for one page of a scan. The whole list has no limit: it is as long as it is, and a slow machine
/// reads it too.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Looked at in one step: the server does nothing else meanwhile, for about a millisecond.
pub(super) const COUNT: usize = 5_000;
/// Members named in one SADD or SREM.
const BATCH: usize = 1_000;

/// The set of a fleet's shards.
pub(super) fn shards_key(fleet: &Name) -> String {
    format!("{fleet}:shards")
}

/// The set of those paused.
pub(super) fn paused_key(fleet: &Name) -> String {
    format!("{fleet}:paused")
}

/// Puts shards into the set `FLEET:paused`; how many were not there yet.
pub async fn pause(url: &str, fleet: &Name, shards: &[Shard]) -> Result<usize> {
    change(url, "SADD", fleet, shards).await
}

/// Takes shards out of the set `FLEET:paused`; how many were there.
pub async fn unpause(url: &str, fleet: &Name, shards: &[Shard]) -> Result<usize> {
    change(url, "SREM", fleet, shards).await
}

async fn change(url: &str, verb: &str, fleet: &Name, shards: &[Shard]) -> Result<usize> {
    let (server, key) = (RedisServer::at(url)?, paused_key(fleet));
    let mut changed = 0;
    for shards in shards.chunks(BATCH) {
        let mut command = cmd(verb);
        command.arg(&key);
        for shard in shards {
            command.arg(shard.as_str());
        }
        changed += number(server.ask(&command, &key, "set").await?)?;
    }
    Ok(changed)
}

/// One set of shards, and perhaps one of those paused.
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
        Ok(RedisSets { server: RedisServer::at(url)?, shards: shards.to_owned(), paused })
    }

    async fn both(&self) -> Result<Shards> {
        let mut shards = self.members(&self.shards).await?;
        if let Some(paused) = &self.paused {
            // Not known who is paused is not known: nobody is resumed by an error.
            shards.paused = self.members(paused).await?.shards;
        }
        Ok(shards)
    }

    /// All members of a set. A scan finds what was there all the time, also if another set was renamed over this one
    /// meanwhile: it goes by the members' hashes, which are the same in both.
    async fn members(&self, key: &str) -> Result<Shards> {
        let mut gather = ShardSet::default();
        let mut cursor = b"0".to_vec();
        loop {
            let mut command = cmd("SSCAN");
            command.arg(key).arg(&cursor).arg("COUNT").arg(COUNT);
            let (next, members) = page(&self.server, &command, key, "set").await?;
            for member in members {
                gather.take(&member, || "a member of it".to_owned())?;
            }
            if next == b"0" {
                return aside(|| gather.finish()).await;
            }
            cursor = next;
        }
    }
}

#[async_trait]
impl Source for RedisSets {
    async fn read(&self) -> Result<Shards> {
        self.both().await.map_err(|error| cannot_read(&self.shown(), &error))
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

/// One step of a scan: the next cursor, and what was found.
pub(super) async fn page(
    server: &RedisServer,
    command: &Cmd,
    key: &str,
    kind: &str,
) -> Result<(Vec<u8>, Vec<Vec<u8>>)> {
    let answer = tokio::time::timeout(PAGE_TIMEOUT, server.ask(command, key, kind)).await;
    let answer = answer.unwrap_or_else(|_| {
        Err(Error::unavailable(format!("the server did not answer within {PAGE_TIMEOUT:?}")))
    })?;
    ::redis::from_redis_value(answer).map_err(|_| not_understood())
}

fn number(answer: Value) -> Result<usize> {
    match answer {
        Value::Int(number) => usize::try_from(number).map_err(|_| not_understood()),
        _ => Err(not_understood()),
    }
}

fn not_understood() -> Error {
    Error::unavailable("Redis answered something else than was asked")
}
