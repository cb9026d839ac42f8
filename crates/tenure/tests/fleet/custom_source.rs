//! A source of shards that an application has written itself.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tenure::fleet::FleetNotice;
use tenure::fleet::source::{Shards, Source};
use tenure::{Fleet, Result};

use crate::workers::wait_until;

/// Returns the names as they were given.
#[derive(Debug)]
struct CustomSource(&'static [&'static str]);

#[async_trait]
impl Source for CustomSource {
    async fn read(&self) -> Result<Shards> {
        Shards::new(self.0)
    }

    fn hints(&self) -> BoxStream<'static, ()> {
        stream::pending().boxed()
    }

    fn shown(&self) -> String {
        "the source of this test".to_owned()
    }
}

/// A member with this source, which owns these shards.
async fn owns(fleet: &str, source: &'static [&'static str], shards: &[&str]) -> Fleet {
    let store = tenure::open("memory:").await.unwrap();
    let builder = Fleet::builder(fleet).ttl(Duration::from_secs(2));
    let fleet = builder.shards(Arc::new(CustomSource(source))).join(store).await.unwrap();
    wait_until("it owns all of its shards", || {
        assert!(!fleet.has_ended());
        fleet.owned().iter().map(|(shard, _)| shard.as_str()).eq(shards.iter().copied())
    })
    .await;
    fleet
}

/// Sorted lists are searched by halves: an unsorted one lost shards, and with debug assertions it ended the fleet.
#[tokio::test]
async fn a_custom_source_may_return_its_shards_in_any_order() {
    let shards = ["a", "b", "c", "d", "e", "f"];
    let fleet = owns("fleet:unsorted", &["f", "b", "d", "a", "e", "c"], &shards).await;
    fleet.leave().await;
}

#[tokio::test]
async fn duplicates_count_once_and_invalid_names_are_reported_without_affecting_the_others() {
    let names = &["b", "", "a", "b", "a"];
    let fleet = owns("fleet:invalid-names", names, &["a", "b"]).await;
    assert_eq!(fleet.shards().shards().len(), 2);
    assert_eq!(fleet.shards().refused().count(), 1);
    let sentence = "number 2 of the list: the name of a shard must not be empty";
    assert_eq!(fleet.shards().refused().sentences, [sentence]);
    fleet.leave().await;
}

#[tokio::test]
async fn observers_receive_a_notice_about_invalid_names() {
    let store = tenure::open("memory:").await.unwrap();
    let builder = Fleet::builder("fleet:reported-names").ttl(Duration::from_secs(2));
    let source = Arc::new(CustomSource(&["", "a"]));
    // `join` would return after the first read.
    let fleet = builder.shards(source).launch(store).unwrap();
    let messages = fleet.events().filter_map(async |notice| match notice {
        FleetNotice::Source(text) => Some(text),
        _ => None,
    });
    let text = std::pin::pin!(messages).next().await.unwrap();
    assert!(text.contains("has 1 that cannot be shards: number 1 of the list"), "{text}");
    fleet.leave().await;
}
