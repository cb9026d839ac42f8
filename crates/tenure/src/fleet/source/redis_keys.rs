//! Shards in the names of keys on a Redis server: the text that the `*` of a pattern matches.
//!
//! The source reads the keys with SCAN, page by page, never with KEYS, which would block the server. A read scans all keys of
//! the database, so for a large database a set is better. There are no hints: every write to a matching key would be one, and
//! each would cause another scan of all keys.

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};

use super::redis::{SCAN_COUNT, cannot_read, page};
use super::shard_set::ShardSet;
use super::{Shards, Source};
use crate::blocking;
use crate::error::{Error, Result};
use crate::fleet::{leases_prefix, nodes_prefix};
use crate::lease::{Name, OWN_PREFIX};
use crate::store::redis::RedisServer;

#[derive(Debug)]
pub(super) struct RedisKeys {
    server: RedisServer,
    pattern: String,
    before: String,
    after: String,
    /// The prefixes of Tenure's own keys. They are no shards: a lease taken for a shard would get a lease, and so on.
    own_prefixes: [String; 3],
}

impl RedisKeys {
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
        let own_prefixes = [leases_prefix(fleet), nodes_prefix(fleet), OWN_PREFIX.to_owned()];
        Ok(RedisKeys {
            server: RedisServer::from_url(url)?,
            pattern: pattern.to_owned(),
            before: before.to_owned(),
            after: after.to_owned(),
            own_prefixes,
        })
    }

    async fn scan(&self) -> Result<Shards> {
        let mut set = ShardSet::default();
        let mut cursor = b"0".to_vec();
        loop {
            let mut command = ::redis::cmd("SCAN");
            command.arg(&cursor).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(SCAN_COUNT);
            let (next, keys) = page(&self.server, &command, &self.pattern, "key").await?;
            for key in keys {
                if self.own_prefixes.iter().any(|own| key.starts_with(own.as_bytes())) {
                    continue;
                }
                let rest = key.strip_prefix(self.before.as_bytes());
                if let Some(shard) = rest.and_then(|rest| rest.strip_suffix(self.after.as_bytes()))
                {
                    set.add(shard, || format!("in the key '{}'", begin(&key)))?;
                }
            }
            if next == b"0" {
                // Sorting a million names would delay the other tasks of this thread.
                return blocking::run(|| set.finish()).await?;
            }
            cursor = next;
        }
    }
}

fn begin(key: &[u8]) -> std::slice::EscapeAscii<'_> {
    key[..key.len().min(60)].escape_ascii()
}

#[async_trait]
impl Source for RedisKeys {
    async fn read(&self) -> Result<Shards> {
        self.scan().await.map_err(|error| cannot_read(&self.shown(), &error))
    }

    fn hints(&self) -> BoxStream<'static, ()> {
        stream::pending().boxed()
    }

    fn shown(&self) -> String {
        format!("the Redis keys '{}'", self.pattern.escape_debug())
    }
}
