//! Where shards come from.
//!
//! A [`Source`] is read on a period, and earlier when it [hints](Source::hints) that this is worth while. It says what is there
//! now, or that it cannot say; what to make of either is the business of the [`Keeper`], which holds on to the last good list.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
//! use tenure::fleet::source::{self, Source};
//!
//! let source = source::list(["a", "b", "a", ""]);
//! let read = source.read().await?;
//! assert_eq!(read.shards.len(), 2); // what is there twice is there once
//! assert_eq!(read.refused.count(), 1); // what cannot be a shard spoils none of the others
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

mod command;
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
pub use shard_set::{MOST_SHARDS, RefusedNames};

/// Where shards come from.
#[async_trait]
pub trait Source: fmt::Debug + Send + Sync {
    /// Reads all of them now. Takes bounded time: what takes longer is [`Unavailable`](crate::Kind::Unavailable).
    ///
    /// None at all is an answer like any other.
    async fn read(&self) -> Result<Shards>;

    /// Says something whenever reading again is worth while, for as long as it is polled: first when it begins to listen, so
    /// that nothing is missed in between.
    ///
    /// A hint, never the truth: it may repeat itself, leave things out, or say nothing ever, and then the period decides.
    fn hints(&self) -> BoxStream<'static, ()>;

    /// For people: `the file '/etc/shards'`, `the Redis set 'poll:shards'`.
    fn shown(&self) -> String;
}

/// What a source said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shards {
    /// All of them, in order, each once: [`contains`](Shards::contains) looks one up.
    pub shards: Vec<Shard>,
    /// Those the source itself calls paused, in order, each once; also such as are not in `shards`.
    pub paused: Vec<Shard>,
    /// What was there and cannot be a shard.
    pub refused: RefusedNames,
}

impl Shards {
    /// Whether the shard of this name is there.
    pub fn contains(&self, shard: &str) -> bool {
        self.shards.binary_search_by(|it| it.as_str().cmp(shard)).is_ok()
    }

    /// Whether the source calls it paused.
    pub fn is_paused(&self, shard: &str) -> bool {
        self.paused.binary_search_by(|it| it.as_str().cmp(shard)).is_ok()
    }
}

/// These, once and for all.
pub fn list(shards: impl IntoIterator<Item = impl AsRef<str>>) -> Arc<dyn Source> {
    Arc::new(list::List::new(shards))
}

/// The lines of a file.
///
/// Space around them is not theirs; empty lines and such as begin with `#` are passed over. To change the file, write a new one
/// and rename it over the old: that is seen at once, and nobody ever reads half of it.
pub fn file(path: impl Into<PathBuf>) -> Arc<dyn Source> {
    Arc::new(file::FileSource::new(path.into()))
}

/// The lines a shell command prints, read like those of a [file](file()).
///
/// It is run by `/bin/sh -c` in a process group of its own, without input, and has 30 seconds. Unless it ends with 0 nothing it
/// printed counts. What it has left running in its group is killed.
pub fn command(line: &str) -> Result<Arc<dyn Source>> {
    Ok(Arc::new(command::CommandSource::new(line)?))
}

/// The members of a set at the Redis server of this URL, which has all the options of a store's. See [`mod@redis`].
#[cfg(feature = "redis")]
pub fn redis_set(url: &str, key: &str) -> Result<Arc<dyn Source>> {
    Ok(Arc::new(redis::RedisSets::new(url, key, None)?))
}

/// What the `*` of a pattern stands for in the keys, of whatever type, at the Redis server of this URL.
///
/// The keys which the fleet itself writes are not among them, also if they match. All keys of the database are gone through, a
/// piece at a time, and nothing is told when they change: where there are many, a [set](redis_set) is better.
#[cfg(feature = "redis")]
pub fn redis_keys(url: &str, pattern: &str, fleet: &Name) -> Result<Arc<dyn Source>> {
    Ok(Arc::new(redis_keys::Keys::new(url, pattern, fleet)?))
}

/// What a fleet on Redis has without being told: the set `FLEET:shards`, and those paused in the set `FLEET:paused`. See
/// [`mod@redis`].
#[cfg(feature = "redis")]
pub fn redis(url: &str, fleet: &Name) -> Result<Arc<dyn Source>> {
    let (shards, paused) = (redis::shards_key(fleet), redis::paused_key(fleet));
    Ok(Arc::new(redis::RedisSets::new(url, &shards, Some(paused))?))
}
