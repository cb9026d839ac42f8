//! A pub/sub subscription on its own connection, which reconnects by itself.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSubSink, PubSubStream};
use redis::{Msg, RedisResult};

use super::connect::CONNECT_TIMEOUT;
use super::connection::Connector;
use super::settings::RedisSettings;
use crate::clock::Clock;
use crate::error::{Error, Result};

/// The maximum number of channels in one SUBSCRIBE.
const SUBSCRIBE_BATCH: usize = 1_000;
/// How often to send a PING: a subscriber receives nothing on a half-open connection, and would not notice.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const MIN_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// The channels of a subscription.
pub(super) enum Channels {
    /// These channels.
    Named(Vec<String>),
    /// All channels that match `narrow`, or the first pattern of `wide` that the user may subscribe to.
    Like { narrow: String, wide: Vec<String> },
}

/// An event of a subscription.
pub(super) enum PubsubEvent {
    /// The subscription is active from now on. Earlier messages may be missed.
    Subscribed,
    Message(Msg),
    /// The subscription failed; it will be retried.
    Failed(Error),
}

pub(super) struct Subscription {
    connector: Connector,
    clock: Clock,
    channels: Channels,
    connection: Option<(PubSubSink, PubSubStream)>,
    backoff: Duration,
}

impl Subscription {
    pub(super) fn new(settings: Arc<RedisSettings>, clock: Clock, channels: Channels) -> Self {
        let connector = Connector::new(settings);
        Subscription { connector, clock, channels, connection: None, backoff: Duration::ZERO }
    }

    /// The next event. Cancel-safe: the future may be dropped and the method called again.
    pub(super) async fn next(&mut self) -> PubsubEvent {
        loop {
            if self.connection.is_none() {
                self.clock.sleep(self.backoff).await;
                self.backoff = (self.backoff * 2).clamp(MIN_BACKOFF, MAX_BACKOFF);
                return match self.connect().await {
                    Ok(connection) => {
                        self.connection = Some(connection);
                        PubsubEvent::Subscribed
                    }
                    Err(error) => PubsubEvent::Failed(error),
                };
            }
            if let Some(message) = self.message().await {
                self.backoff = Duration::ZERO;
                return PubsubEvent::Message(message);
            }
        }
    }

    /// The next message; `None` if there was none for a while, or the connection is gone.
    async fn message(&mut self) -> Option<Msg> {
        let (sink, messages) = self.connection.as_mut()?;
        tokio::select! {
            message = messages.next() => {
                if message.is_none() {
                    self.connection = None;
                }
                return message;
            }
            () = self.clock.sleep(PING_INTERVAL) => {}
        }
        let answer = tokio::time::timeout(CONNECT_TIMEOUT, sink.ping::<redis::Value>()).await;
        if matches!(answer, Ok(Ok(_))) {
            self.backoff = Duration::ZERO;
        } else {
            self.connection = None;
        }
        None
    }

    async fn connect(&self) -> Result<(PubSubSink, PubSubStream)> {
        let (mut sink, messages) = self.connector.pubsub().await?.split();
        let settings = &self.connector.settings;
        match tokio::time::timeout(CONNECT_TIMEOUT, self.subscribe(&mut sink)).await {
            Ok(Ok(())) => Ok((sink, messages)),
            Ok(Err(error)) => Err(settings.call_error(&error, None).error),
            Err(_) => Err(settings.no_answer("subscribing", CONNECT_TIMEOUT)),
        }
    }

    async fn subscribe(&self, sink: &mut PubSubSink) -> RedisResult<()> {
        match &self.channels {
            Channels::Like { narrow, wide } => {
                let mut answer = sink.psubscribe(narrow).await;
                for pattern in wide {
                    match &answer {
                        Err(error) if error.code() == Some("NOPERM") => {
                            answer = sink.psubscribe(pattern).await;
                        }
                        _ => break,
                    }
                }
                answer
            }
            Channels::Named(channels) => {
                for channels in channels.chunks(SUBSCRIBE_BATCH) {
                    sink.subscribe(channels.to_vec()).await?;
                }
                Ok(())
            }
        }
    }
}
