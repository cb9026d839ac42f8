//! One connection that listens, made again by itself when it breaks.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSubSink, PubSubStream};
use redis::{Msg, RedisResult};

use super::connect::CONNECT_LIMIT;
use super::connection::Connector;
use super::settings::RedisSettings;
use crate::clock::Clock;
use crate::error::{Error, Result};

/// Channels named in one SUBSCRIBE.
const CHANNELS: usize = 1_000;
/// A listener hears nothing from a connection that is half open: it asks this often.
const PING_EVERY: Duration = Duration::from_secs(10);
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What is listened to.
pub(super) enum Channels {
    /// These.
    Named(Vec<String>),
    /// All that match `narrow`, or `wide` where only that is allowed.
    Like { narrow: String, wide: String },
}

/// What was heard.
pub(super) enum PubsubEvent {
    /// The server listens from now on. What was said before may be missed.
    Listening,
    Message(Msg),
    /// It could not be listened to just now; it is tried again.
    Nothing(Error),
}

pub(super) struct Subscription {
    connector: Connector,
    clock: Clock,
    channels: Channels,
    line: Option<(PubSubSink, PubSubStream)>,
    pause: Duration,
}

impl Subscription {
    pub(super) fn new(settings: Arc<RedisSettings>, clock: Clock, channels: Channels) -> Self {
        let connector = Connector::new(settings);
        Subscription { connector, clock, channels, line: None, pause: Duration::ZERO }
    }

    /// The next thing that is heard. May be dropped and called again.
    pub(super) async fn next(&mut self) -> PubsubEvent {
        loop {
            if self.line.is_none() {
                self.clock.sleep(self.pause).await;
                self.pause = (self.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
                return match self.listen().await {
                    Ok(line) => {
                        self.line = Some(line);
                        PubsubEvent::Listening
                    }
                    Err(error) => PubsubEvent::Nothing(error),
                };
            }
            if let Some(message) = self.message().await {
                self.pause = Duration::ZERO;
                return PubsubEvent::Message(message);
            }
        }
    }

    /// The next message; `None` if there was none for a while, or the connection is gone.
    async fn message(&mut self) -> Option<Msg> {
        let (sink, messages) = self.line.as_mut()?;
        tokio::select! {
            message = messages.next() => {
                if message.is_none() {
                    self.line = None;
                }
                return message;
            }
            () = self.clock.sleep(PING_EVERY) => {}
        }
        let answer = tokio::time::timeout(CONNECT_LIMIT, sink.ping::<redis::Value>()).await;
        if matches!(answer, Ok(Ok(_))) {
            self.pause = Duration::ZERO;
        } else {
            self.line = None;
        }
        None
    }

    async fn listen(&self) -> Result<(PubSubSink, PubSubStream)> {
        let (mut sink, messages) = self.connector.pubsub().await?.split();
        let settings = &self.connector.settings;
        match tokio::time::timeout(CONNECT_LIMIT, self.subscribe(&mut sink)).await {
            Ok(Ok(())) => Ok((sink, messages)),
            Ok(Err(error)) => Err(settings.trouble(&error, None).error),
            Err(_) => Err(settings.silent("subscribing", CONNECT_LIMIT)),
        }
    }

    async fn subscribe(&self, sink: &mut PubSubSink) -> RedisResult<()> {
        match &self.channels {
            Channels::Like { narrow, wide } => match sink.psubscribe(narrow).await {
                Err(error) if error.code() == Some("NOPERM") => sink.psubscribe(wide).await,
                other => other,
            },
            Channels::Named(channels) => {
                for channels in channels.chunks(CHANNELS) {
                    sink.subscribe(channels.to_vec()).await?;
                }
                Ok(())
            }
        }
    }
}
