//! A server of somebody's, for what is not a lease: the way there, and how its troubles are told, are a store's.

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
use crate::store::open::StoreUrl;
use crate::store::shown;

/// Many changes at once are one hint.
const HINT_EVERY: Duration = Duration::from_secs(1);
/// Whoever may not listen asks this often whether it may.
const WHERE_DENIED: Duration = Duration::from_secs(60);

/// A Redis server. Nothing is connected until it is used.
#[derive(Debug)]
pub(crate) struct RedisServer {
    connector: Connector,
    clock: Clock,
}

impl RedisServer {
    pub(crate) fn at(url: &str) -> Result<Self> {
        let parts = StoreUrl::parse(url)?;
        if !["redis", "rediss"].contains(&parts.scheme) {
            return Err(Error::invalid(format!(
                "'{}' is not a Redis server: write redis://HOST:PORT/0",
                shown(url).escape_debug()
            )));
        }
        let connector = Connector::new(Arc::new(RedisSettings::from_url(&parts)?));
        Ok(RedisServer { connector, clock: Clock::boot() })
    }

    /// Sends a command about `key`, of which it takes for granted that it is a `kind`.
    pub(crate) async fn ask(&self, command: &Cmd, key: &str, kind: &str) -> Result<Value> {
        let link = self.connector.link().await?;
        link.send(command.clone()).await.map_err(|trouble| match trouble.wrong_type {
            true => Error::corrupt(format!(
                "'{}' at {} is not a {kind}: name another key, or delete that one",
                key.escape_debug(),
                self.connector.settings
            )),
            false => trouble.error,
        })
    }

    /// Says something when one of `keys` may have changed, if the server tells of that.
    pub(crate) fn hints(&self, keys: &[&str]) -> BoxStream<'static, ()> {
        let settings = Arc::clone(&self.connector.settings);
        let database = settings.database;
        let channel = |key: &&str| format!("__keyspace@{database}__:{key}");
        let channels = Channels::Named(keys.iter().map(channel).collect());
        let clock = self.clock.clone();
        let ear = Subscription::new(settings, clock.clone(), channels);
        stream::unfold(Hints { ear, clock, last: None }, async |mut hints| {
            hints.next().await;
            Some(((), hints))
        })
        .boxed()
    }
}

struct Hints {
    ear: Subscription,
    clock: Clock,
    last: Option<Moment>,
}

impl Hints {
    async fn next(&mut self) {
        loop {
            match self.ear.next().await {
                PubsubEvent::Listening | PubsubEvent::Message(_) => break,
                PubsubEvent::Nothing(error) => {
                    tracing::debug!(%error, "cannot listen");
                    if error.kind() == Kind::Denied {
                        self.clock.sleep(WHERE_DENIED).await;
                    }
                }
            }
        }
        if let Some(last) = self.last {
            self.clock.sleep_until(last + HINT_EVERY).await;
        }
        // Whoever looks now has seen these too.
        while let Some(PubsubEvent::Message(_)) = self.ear.next().now_or_never() {}
        self.last = Some(self.clock.now());
    }
}
