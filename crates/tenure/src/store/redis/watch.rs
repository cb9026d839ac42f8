//! Being told: one connection that listens, made again by itself when it breaks.
//!
//! The first item comes when the server has confirmed that it listens, and so does one after every
//! reconnection: whoever looks after it has missed nothing. What runs out by itself is not
//! announced; the waiter has a timer for it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use redis::aio::{PubSubSink, PubSubStream};
use redis::{Msg, RedisResult};

use super::connection::{CONNECT_LIMIT, Connector};
use super::settings::Settings;
use crate::clock::Clock;
use crate::error::Result;
use crate::lease::{CandidateId, Name, Token};
use crate::store::{Change, Scope};

/// Channels named in one SUBSCRIBE.
const CHANNELS: usize = 1_000;
/// A listener hears nothing from a connection that is half open: it asks this often.
const PING_EVERY: Duration = Duration::from_secs(10);
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Before the name in a channel's name. Channels are not in a database, so one that is not the
/// first is named.
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
                if let Some(change) = change(&self.prefix, &self.scope, &message) {
                    return change;
                }
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
        let settings = &self.connector.settings;
        match tokio::time::timeout(CONNECT_LIMIT, self.subscribe(&mut sink)).await {
            Ok(Ok(())) => Ok((sink, messages)),
            Ok(Err(error)) => Err(settings.trouble(&error, None).error),
            Err(_) => Err(settings.silent("subscribing", CONNECT_LIMIT)),
        }
    }

    async fn subscribe(&self, sink: &mut PubSubSink) -> RedisResult<()> {
        let channel = |end: &str| format!("{}{end}", self.prefix);
        match &self.scope {
            Scope::Prefix(prefix) => {
                let narrow = sink.psubscribe(escaped(&channel(prefix)) + "*").await;
                match narrow {
                    // A user's patterns are compared by the letter: `&tenure:wake:*` allows that
                    // one and none within it.
                    Err(error) if error.code() == Some("NOPERM") => {
                        sink.psubscribe(channel("*")).await
                    }
                    other => other,
                }
            }
            Scope::Names(names) => {
                for names in names.chunks(CHANNELS) {
                    let channels: Vec<String> =
                        names.iter().map(|name| channel(name.as_str())).collect();
                    sink.subscribe(channels).await?;
                }
                Ok(())
            }
        }
    }
}

/// What a message says, if it concerns the scope. Whatever we do not understand is a reason to
/// look.
fn change(prefix: &str, scope: &Scope, message: &Msg) -> Option<Change> {
    let name = message.get_channel_name().strip_prefix(prefix).map(Name::stored)?.ok()?;
    let payload = message.get_payload_bytes();
    scope.contains(&name).then(|| read(name, payload).unwrap_or(Change::Look))
}

fn read(name: Name, payload: &[u8]) -> Option<Change> {
    match std::str::from_utf8(payload).ok()?.split_once(' ')? {
        ("granted", term) => {
            // Versions before this one said the token alone.
            let (token, holder) = match term.split_once(' ') {
                None => (term, None),
                Some((token, holder)) => (token, Some(CandidateId::new(holder).ok()?)),
            };
            Some(Change::Granted { name, token: Token::new(token.parse().ok()?).ok()?, holder })
        }
        ("freed", "") => Some(Change::Freed { name, next: None }),
        ("freed", next) => Some(Change::Freed { name, next: Some(CandidateId::new(next).ok()?) }),
        _ => None,
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
