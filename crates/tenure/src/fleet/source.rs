//! The sources of shards: a list, a file, a command, Redis sets or Redis keys.
//!
//! The coordinator reads a [`Source`] at an interval, and earlier when the source [hints](Source::hints) at a change. A read
//! returns all current shards, or an error; [`LastGood`] keeps the last good list when a read fails.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
//! use tenure::fleet::source::{self, Source};
//!
//! let source = source::list(["a", "b", "a", ""]);
//! let read = source.read().await?;
//! assert_eq!(read.shards.len(), 2); // duplicates count once
//! assert_eq!(read.refused.count(), 1); // an invalid name does not affect the others
//! # Ok(()) }
//! ```

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::Shard;
use crate::error::Result;
#[cfg(feature = "redis")]
use crate::lease::Name;

mod file;
mod last_good;
mod line_parser;
mod list;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
mod redis_keys;
mod shard_set;

pub use last_good::{LastGood, ListChange, SourceMessage};
pub use line_parser::LineParser;
pub use shard_set::{MAX_SHARDS, RefusedNames};

/// A source of shards.
#[async_trait]
pub trait Source: fmt::Debug + Send + Sync {
    /// Reads all shards. Takes bounded time: a read that takes longer fails with [`Unavailable`](crate::Kind::Unavailable).
    ///
    /// An empty list is a valid result.
    async fn read(&self) -> Result<Shards>;

    /// Yields whenever the shards may have changed, as long as the stream is polled. The first item comes when the watch
    /// starts, so that no change between the last read and the watch is missed.
    ///
    /// A hint, never the truth: hints may repeat, be lost, or never come. Then the interval decides.
    fn hints(&self) -> BoxStream<'static, ()>;

    /// A description for messages: `the file '/etc/shards'`, `the Redis set 'poll:shards'`.
    fn shown(&self) -> String;
}

/// The result of one read of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shards {
    /// All shards, sorted, without duplicates: [`contains`](Shards::contains) finds one.
    pub shards: Vec<Shard>,
    /// The shards that the source marks as paused, sorted, without duplicates. They need not be in `shards`.
    pub paused: Vec<Shard>,
    /// The names that cannot be a shard.
    pub refused: RefusedNames,
}

impl Shards {
    /// Whether the list contains the shard with this name.
    pub fn contains(&self, shard: &str) -> bool {
        self.shards.binary_search_by(|it| it.as_str().cmp(shard)).is_ok()
    }

    /// Whether the source marks this shard as paused.
    pub fn is_paused(&self, shard: &str) -> bool {
        self.paused.binary_search_by(|it| it.as_str().cmp(shard)).is_ok()
    }
}

/// A fixed list of shards.
pub fn list(shards: impl IntoIterator<Item = impl AsRef<str>>) -> Arc<dyn Source> {
    Arc::new(list::ListSource::new(shards))
}

/// The lines of a file.
///
/// Leading and trailing space is removed; empty lines and lines that begin with `#` are skipped. To change the file, write a
/// new file and rename it over the old one: the source notices that at once, and never reads half of a list.
pub fn file(path: impl Into<PathBuf>) -> Arc<dyn Source> {
    Arc::new(file::FileSource::new(path.into()))
}

/// The members of a set on the Redis server of this URL, which takes the same options as the URL of a store. See [`mod@redis`].
#[cfg(feature = "redis")]
pub fn redis_set(url: &str, key: &str) -> Result<Arc<dyn Source>> {
    Ok(Arc::new(redis::RedisSets::new(url, key, None)?))
}

/// The text that the `*` of a pattern matches in the keys, of any type, on the Redis server of this URL.
///
/// The keys that the fleet itself writes are skipped, even if they match. Each read scans all keys of the database, page by
/// page, and there are no hints when keys change: for a large database use a [set](redis_set).
#[cfg(feature = "redis")]
pub fn redis_keys(url: &str, pattern: &str, fleet: &Name) -> Result<Arc<dyn Source>> {
    Ok(Arc::new(redis_keys::RedisKeys::new(url, pattern, fleet)?))
}

/// The default source of a fleet on Redis: the set `FLEET:shards`, and the paused shards in the set `FLEET:paused`. See
/// [`mod@redis`].
#[cfg(feature = "redis")]
pub fn redis(url: &str, fleet: &Name) -> Result<Arc<dyn Source>> {
    let (shards, paused) = (redis::shards_key(fleet), redis::paused_key(fleet));
    Ok(Arc::new(redis::RedisSets::new(url, &shards, Some(paused))?))
}
