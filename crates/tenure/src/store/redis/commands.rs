//! A Redis server that is used for data other than leases: the sources of a fleet read their lists through it. Connections and
//! errors work as in [`RedisStore`](super::RedisStore).

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use redis::{Cmd, Value};

use super::connection::Connector;
use super::pubsub::{Channels, PubsubEvent, Subscription};
use super::settings::RedisSettings;
use crate::clock::{Clock, Moment};
use crate::error::{Error, Kind, Result};
use crate::store::endpoint::StoreUrl;
use crate::store::redact_url;

/// The minimum time between two hints: many changes in a short time make one hint.
const HINT_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait before subscribing again if the user lacks the permission.
const DENIED_RETRY_INTERVAL: Duration = Duration::from_secs(60);

const SCHEMES: [&str; 2] = ["redis", "rediss"];

/// A Redis server. It connects when it is first used.
#[derive(Debug)]
pub(crate) struct RedisServer {
    connector: Connector,
    clock: Clock,
}

impl RedisServer {
    /// Whether the URL names a Redis server. Its options are not checked.
    pub(crate) fn serves(url: &str) -> bool {
        StoreUrl::parse(url)
            .is_ok_and(|url| SCHEMES.contains(&url.scheme) && url.rest.starts_with("//"))
    }

    pub(crate) fn from_url(url: &str) -> Result<Self> {
        let parts = StoreUrl::parse(url)?;
        if !SCHEMES.contains(&parts.scheme) {
            return Err(Error::invalid(format!(
                "'{}' is not a Redis server: write redis://HOST:PORT/0",
                redact_url(url).escape_debug()
            )));
        }
        let settings = RedisSettings::from_url(&parts)?;
        if !settings.keys.is_empty() {
            return Err(Error::invalid(
                "the lists of a fleet cannot be read through a URL with key_prefix: name another source of shards",
            ));
        }
        Ok(RedisServer { connector: Connector::new(Arc::new(settings)), clock: Clock::boot() })
    }

    /// Sends a command about `key`, which must have the type `kind`.
    pub(crate) async fn send(&self, command: &Cmd, key: &str, kind: &str) -> Result<Value> {
        let link = self.connector.link().await?;
        link.send(command.clone()).await.map_err(|call_error| match call_error.wrong_type {
            true => Error::corrupt(format!(
                "'{}' at {} is not a {kind}: name another key, or delete that one",
                key.escape_debug(),
                self.connector.settings
            )),
            false => call_error.error,
        })
    }

    /// Yields an item when one of `keys` may have changed, if the server publishes keyspace notifications.
    pub(crate) fn hints(&self, keys: &[&str]) -> BoxStream<'static, ()> {
        let settings = Arc::clone(&self.connector.settings);
        let database = settings.database;
        let channel = |key: &&str| format!("__keyspace@{database}__:{key}");
        let channels = Channels::Named(keys.iter().map(channel).collect());
        let clock = self.clock.clone();
        let subscription = Subscription::new(settings, clock.clone(), channels);
        stream::unfold(Hints { subscription, clock, last: None }, async |mut hints| {
            hints.next().await;
            Some(((), hints))
        })
        .boxed()
    }
}

struct Hints {
    subscription: Subscription,
    clock: Clock,
    last: Option<Moment>,
}

impl Hints {
    async fn next(&mut self) {
        loop {
            match self.subscription.next().await {
                PubsubEvent::Subscribed | PubsubEvent::Message(_) => break,
                PubsubEvent::Failed(error) => {
                    tracing::debug!(%error, "cannot listen");
                    if error.kind() == Kind::Denied {
                        self.clock.sleep(DENIED_RETRY_INTERVAL).await;
                    }
                }
            }
        }
        if let Some(last) = self.last {
            self.clock.sleep_until(last + HINT_INTERVAL).await;
        }
        // A caller that reads now also gets the changes behind these messages.
        while let Some(PubsubEvent::Message(_)) = self.subscription.next().now_or_never() {}
        self.last = Some(self.clock.now());
    }
}
