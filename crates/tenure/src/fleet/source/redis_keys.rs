//! Shards in the names of keys at a Redis server: what the `*` of a pattern stands for.
//!
//! They are found with SCAN, a piece at a time, never with KEYS, which would hold up the server. It goes through all keys of
//! the database, so a large one is better served by a set. There is no hint: every write to every such key would be one, and
//! each would mean to go through all of them again.

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};

use super::redis::{COUNT, cannot_read, page};
use super::shard_set::{ShardSet, aside};
use super::{Shards, Source};
use crate::error::{Error, Result};
use crate::fleet::{leases_prefix, nodes_prefix};
use crate::lease::{Name, OWN_PREFIX};
use crate::store::redis::RedisServer;

#[derive(Debug)]
pub(super) struct Keys {
    server: RedisServer,
    pattern: String,
    before: String,
    after: String,
    /// How keys begin that are no shards but made for them: a lease taken for a shard would have a lease, and so on.
    own: [String; 3],
}

impl Keys {
    pub(super) fn new(url: &str, pattern: &str, fleet: &Name) -> Result<Self> {
        let refused = |why: &str| {
            Err(Error::invalid(format!("the pattern '{}' {why}", pattern.escape_debug())))
        };
        if let Some(glob) = pattern.chars().find(|c| "?[]\\".contains(*c)) {
            return refused(&format!(
                "holds '{glob}', which Redis would take for a pattern of its own: only one '*' is \
                 understood here"
            ));
        }
        let Some((before, after)) = pattern.split_once('*') else {
            return refused("has no '*', which stands for the shard: write 'session:*'");
        };
        if after.contains('*') {
            return refused("has more than one '*', so it does not say which one is the shard");
        }
        let own = [leases_prefix(fleet), nodes_prefix(fleet), OWN_PREFIX.to_owned()];
        Ok(Keys {
            server: RedisServer::at(url)?,
            pattern: pattern.to_owned(),
            before: before.to_owned(),
            after: after.to_owned(),
            own,
        })
    }

    async fn scanned(&self) -> Result<Shards> {
        let mut gather = ShardSet::default();
        let mut cursor = b"0".to_vec();
        loop {
            let mut command = ::redis::cmd("SCAN");
            command.arg(&cursor).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(COUNT);
            let (next, keys) = page(&self.server, &command, &self.pattern, "key").await?;
            for key in keys {
                if self.own.iter().any(|own| key.starts_with(own.as_bytes())) {
                    continue;
                }
                let rest = key.strip_prefix(self.before.as_bytes());
                if let Some(shard) = rest.and_then(|rest| rest.strip_suffix(self.after.as_bytes()))
                {
                    gather.take(shard, || format!("in the key '{}'", begin(&key)))?;
                }
            }
            if next == b"0" {
                return aside(|| gather.finish()).await;
            }
            cursor = next;
        }
    }
}

fn begin(key: &[u8]) -> std::slice::EscapeAscii<'_> {
    key[..key.len().min(60)].escape_ascii()
}

#[async_trait]
impl Source for Keys {
    async fn read(&self) -> Result<Shards> {
        self.scanned().await.map_err(|error| cannot_read(&self.shown(), &error))
    }

    fn hints(&self) -> BoxStream<'static, ()> {
        stream::pending().boxed()
    }

    fn shown(&self) -> String {
        format!("the Redis keys '{}'", self.pattern.escape_debug())
    }
}
