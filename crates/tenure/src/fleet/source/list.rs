//! Shards that were given once.

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};

use super::shard_set::ShardSet;
use super::{Shards, Source};
use crate::error::Result;

#[derive(Debug)]
pub(super) struct List(Result<Shards>);

impl List {
    pub(super) fn new(names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut gather = ShardSet::default();
        for (number, name) in names.into_iter().enumerate() {
            let place = || format!("number {} of the list", number + 1);
            if let Err(error) = gather.take_text(name.as_ref(), place) {
                return List(Err(error));
            }
        }
        List(gather.finish())
    }
}

#[async_trait]
impl Source for List {
    async fn read(&self) -> Result<Shards> {
        self.0.clone()
    }

    fn hints(&self) -> BoxStream<'static, ()> {
        stream::pending().boxed()
    }

    fn shown(&self) -> String {
        "the list given".to_owned()
    }
}
