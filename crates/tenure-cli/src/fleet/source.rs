//! The options that select the source of the shards (SOURCE in the docs).

mod command;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args as ClapArgs;
use tenure::fleet::source::{self, Source};
use tenure::{Error, Name, Result};

#[derive(Debug, ClapArgs)]
pub(crate) struct SourceArgs {
    /// The shards: a,b,c
    #[arg(long, value_name = "LIST", env = "TENURE_SHARDS", value_delimiter = ',')]
    pub(crate) shards: Option<Vec<String>>,

    /// One shard a line; watched
    #[arg(long, value_name = "FILE", env = "TENURE_SHARDS_FILE")]
    pub(crate) shards_file: Option<PathBuf>,

    /// A shell command that prints one shard a line
    #[arg(long, value_name = "CMD", env = "TENURE_SHARDS_COMMAND")]
    pub(crate) shards_command: Option<String>,

    /// The members of this set, at a store on Redis
    #[arg(long, value_name = "KEY", env = "TENURE_SHARDS_REDIS_SET")]
    pub(crate) shards_redis_set: Option<String>,

    /// What * stands for in the keys, at a store on Redis [default there: the set NAME:shards]
    #[arg(long, value_name = "PATTERN", env = "TENURE_SHARDS_REDIS_KEYS")]
    pub(crate) shards_redis_keys: Option<String>,
}

impl SourceArgs {
    /// The selected source. With a store on Redis, the default is the set `NAME:shards`.
    pub(crate) fn source(&self, fleet: &Name, store_url: &str) -> Result<Arc<dyn Source>> {
        let given = [
            self.shards.is_some(),
            self.shards_file.is_some(),
            self.shards_command.is_some(),
            self.shards_redis_set.is_some(),
            self.shards_redis_keys.is_some(),
        ];
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(Error::invalid(
                "--shards, --shards-file, --shards-command, --shards-redis-set and --shards-redis-keys say where \
                 the shards come from: give one of them",
            ));
        }
        if let Some(shards) = &self.shards {
            return Ok(source::list(shards));
        }
        if let Some(file) = &self.shards_file {
            return Ok(source::file(file));
        }
        if let Some(command) = &self.shards_command {
            return Ok(Arc::new(command::CommandSource::new(command)?));
        }
        self.redis_source(fleet, store_url)
    }

    #[cfg(feature = "redis")]
    fn redis_source(&self, fleet: &Name, store_url: &str) -> Result<Arc<dyn Source>> {
        if !source::redis::supports(store_url) {
            return Err(self.no_source_error());
        }
        match (&self.shards_redis_set, &self.shards_redis_keys) {
            (Some(set), _) => source::redis_set(store_url, set),
            (_, Some(pattern)) => source::redis_keys(store_url, pattern, fleet),
            (None, None) => source::redis(store_url, fleet),
        }
    }

    #[cfg(not(feature = "redis"))]
    fn redis_source(&self, _: &Name, _: &str) -> Result<Arc<dyn Source>> {
        Err(self.no_source_error())
    }

    fn no_source_error(&self) -> Error {
        if self.shards_redis_set.is_some() || self.shards_redis_keys.is_some() {
            return Error::invalid(
                "--shards-redis-set and --shards-redis-keys look into the store, and that is not on Redis: give \
                 --store redis://HOST, or another source",
            );
        }
        Error::invalid(
            "no shards: give --shards a,b,c, --shards-file FILE or --shards-command CMD (only a store on Redis has a \
             place for them of its own, the set NAME:shards)",
        )
    }
}
