//! A fixed list of shards.

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};

use super::shard_set::ShardSet;
use super::{Shards, Source};
use crate::error::Result;

#[derive(Debug)]
pub(super) struct ListSource(Result<Shards>);

impl ListSource {
    pub(super) fn new(names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut set = ShardSet::default();
        for (number, name) in names.into_iter().enumerate() {
            let location = || format!("number {} of the list", number + 1);
            if let Err(error) = set.add_text(name.as_ref(), location) {
                return ListSource(Err(error));
            }
        }
        ListSource(set.finish())
    }
}

#[async_trait]
impl Source for ListSource {
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
