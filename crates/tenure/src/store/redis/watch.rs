//! Being told: one connection that listens, made again by itself when it breaks.
//!
//! The first item comes when the server has confirmed that it listens, and so does one after every reconnection:
//! whoever looks after it has missed nothing. What runs out by itself is not announced; the waiter has a timer for it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use redis::Msg;
use redis::aio::{PubSubSink, PubSubStream};

use super::connection::{CONNECT_LIMIT, Connector};
use super::settings::Settings;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lease::{CandidateId, Name, Token};
use crate::store::{Change, Scope};

/// Channels named in one SUBSCRIBE.
const CHANNELS: usize = 1_000;
/// A listener hears nothing from a connection that is half open: it asks this often.
const PING_EVERY: Duration = Duration::from_secs(10);
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Before the name in a channel's name. Channels are not in a database, so one that is not the first is named.
pub(super) fn channel_prefix(settings: &Settings) -> String {
    match settings.database {
        0 => "tenure:wake:".to_owned(),
        other => format!("tenure:wake@{other}:"),
    }
}

struct Watch {
    connector: Connector,
    clock: Clock,
    scope: Scope,
    prefix: String,
    ear: Option<(PubSubSink, PubSubStream)>,
    pause: Duration,
}

pub(super) fn watch(
    settings: Arc<Settings>,
    clock: Clock,
    scope: Scope,
) -> BoxStream<'static, Change> {
    let watch = Watch {
        prefix: channel_prefix(&settings),
        connector: Connector::new(settings),
        clock,
        scope,
        ear: None,
        pause: Duration::ZERO,
    };
    stream::unfold(watch, async |mut watch| {
        let change = watch.next().await;
        Some((change, watch))
    })
    .boxed()
}

impl Watch {
    async fn next(&mut self) -> Change {
        loop {
            if self.ear.is_none() {
                self.clock.sleep(self.pause).await;
                self.pause = (self.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
                match self.listen().await {
                    Ok(ear) => {
                        self.ear = Some(ear);
                        return Change::Look;
                    }
                    Err(error) => tracing::debug!(%error, "cannot listen"),
                }
                continue;
            }
            if let Some(message) = self.message().await {
                self.pause = Duration::ZERO;
                return change(&self.prefix, &message);
            }
        }
    }

    /// The next message; `None` if there was none for a while, or the connection is gone.
    async fn message(&mut self) -> Option<Msg> {
        let (sink, messages) = self.ear.as_mut()?;
        tokio::select! {
            message = messages.next() => {
                if message.is_none() {
                    self.ear = None;
                }
                return message;
            }
            () = self.clock.sleep(PING_EVERY) => {}
        }
        let answer = tokio::time::timeout(CONNECT_LIMIT, sink.ping::<redis::Value>()).await;
        if matches!(answer, Ok(Ok(_))) {
            self.pause = Duration::ZERO;
        } else {
            self.ear = None;
        }
        None
    }

    async fn listen(&self) -> Result<(PubSubSink, PubSubStream)> {
        let (mut sink, messages) = self.connector.pubsub().await?.split();
        let subscribing = async {
            match &self.scope {
                Scope::Prefix(prefix) => {
                    sink.psubscribe(format!("{}*", escaped(&format!("{}{prefix}", self.prefix))))
                        .await?;
                }
                Scope::Names(names) => {
                    for names in names.chunks(CHANNELS) {
                        let channels: Vec<String> =
                            names.iter().map(|name| format!("{}{name}", self.prefix)).collect();
                        sink.subscribe(channels).await?;
                    }
                }
            }
            Ok(())
        };
        let settings = &self.connector.settings;
        match tokio::time::timeout(CONNECT_LIMIT, subscribing).await {
            Ok(Ok(())) => Ok((sink, messages)),
            Ok(Err(error)) => Err(settings.trouble(&error, None).error),
            Err(_) => Err(settings.silent("subscribing", CONNECT_LIMIT)),
        }
    }
}

/// What a message says; whatever is not ours is a reason to look.
fn change(prefix: &str, message: &Msg) -> Change {
    read(prefix, message.get_channel_name(), message.get_payload_bytes()).unwrap_or(Change::Look)
}

fn read(prefix: &str, channel: &str, payload: &[u8]) -> Result<Change> {
    let unknown = || Error::corrupt("not a message of ours");
    let name = Name::stored(channel.strip_prefix(prefix).ok_or_else(unknown)?)?;
    let payload = std::str::from_utf8(payload).map_err(|_| unknown())?;
    match payload.split_once(' ').ok_or_else(unknown)? {
        ("granted", token) => {
            let token = Token::new(token.parse().map_err(|_| unknown())?)?;
            Ok(Change::Granted { name, token })
        }
        ("freed", "") => Ok(Change::Freed { name, next: None }),
        ("freed", next) => Ok(Change::Freed { name, next: Some(CandidateId::new(next)?) }),
        _ => Err(unknown()),
    }
}

/// The pattern that matches exactly this text.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if "*?[]^\\-".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}
