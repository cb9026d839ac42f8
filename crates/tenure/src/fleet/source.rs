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
//! assert_eq!(read.shards().len(), 2); // duplicates count once
//! assert_eq!(read.refused().count(), 1); // an invalid name does not affect the others
//! # Ok(()) }
//! ```
//!
//! A source of your own implements [`Source`] and returns [`Shards::new`], or what a [`LineParser`] has read.

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
use shard_set::ShardSet;
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

/// The result of one read of a source: all shards and the paused ones, each list sorted and without duplicates.
///
/// ```
/// use tenure::fleet::source::Shards;
///
/// let read = Shards::new(["b", "a", "", "b"])?.with_paused(["b"])?;
/// assert_eq!(read.shards().iter().map(|shard| shard.as_str()).collect::<Vec<_>>(), ["a", "b"]);
/// assert!(read.contains("a") && read.is_paused("b"));
/// assert_eq!(read.refused().sentences, ["number 3 of the list: the name of a shard must not be empty"]);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shards {
    shards: Vec<Shard>,
    paused: Vec<Shard>,
    refused: RefusedNames,
}

impl Shards {
    /// The shards with these names, which may come in any order and repeat. A name that cannot be a shard is
    /// [refused](Shards::refused) and does not affect the others.
    ///
    /// # Errors
    /// Invalid: there are more than [`MAX_SHARDS`] shards.
    pub fn new(names: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Shards> {
        ShardSet::of_names(names, "the list")?.finish()
    }

    /// Replaces the shards that the source marks as paused. They need not be among its shards. A name that cannot be a shard is
    /// [refused](Shards::refused).
    ///
    /// # Errors
    /// Invalid: there are more than [`MAX_SHARDS`] paused shards.
    pub fn with_paused(
        mut self,
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Shards> {
        let paused = ShardSet::of_names(names, "the paused shards")?.finish()?;
        self.paused = paused.shards;
        self.refused.append(paused.refused);
        Ok(self)
    }

    /// All shards, sorted, without duplicates.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The shards that the source marks as paused, sorted, without duplicates. They need not be among the shards.
    pub fn paused(&self) -> &[Shard] {
        &self.paused
    }

    /// The names that cannot be a shard.
    pub fn refused(&self) -> &RefusedNames {
        &self.refused
    }

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
    Arc::new(list::ListSource(Shards::new(shards)))
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
