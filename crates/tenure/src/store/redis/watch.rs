//! Being told of leases.
//!
//! The first item comes when the server has confirmed that it listens, and so does one after every
//! reconnection: whoever looks after it has missed nothing. What runs out by itself is not
//! announced; the waiter has a timer for it.

use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt};
use redis::Msg;

use super::pubsub::{Channels, PubsubEvent, Subscription};
use super::settings::RedisSettings;
use crate::clock::Clock;
use crate::lease::{CandidateId, Name, Token};
use crate::store::{Change, Scope};

/// Before the name in a channel's name. Channels are not in a database, so one that is not the
/// first is named.
pub(super) fn channel_prefix(settings: &RedisSettings) -> String {
    match settings.database {
        0 => "tenure:wake:".to_owned(),
        other => format!("tenure:wake@{other}:"),
    }
}

struct RedisWatch {
    ear: Subscription,
    scope: Scope,
    prefix: String,
}

pub(super) fn watch(
    settings: Arc<RedisSettings>,
    clock: Clock,
    scope: Scope,
) -> BoxStream<'static, Change> {
    let prefix = channel_prefix(&settings);
    let ear = Subscription::new(settings, clock, channels(&prefix, &scope));
    stream::unfold(RedisWatch { ear, scope, prefix }, async |mut watch| {
        let change = watch.next().await;
        Some((change, watch))
    })
    .boxed()
}

impl RedisWatch {
    async fn next(&mut self) -> Change {
        loop {
            match self.ear.next().await {
                PubsubEvent::Listening => return Change::Look,
                PubsubEvent::Message(message) => {
                    if let Some(change) = change(&self.prefix, &self.scope, &message) {
                        return change;
                    }
                }
                PubsubEvent::Nothing(error) => tracing::debug!(%error, "cannot listen"),
            }
        }
    }
}

fn channels(prefix: &str, scope: &Scope) -> Channels {
    let channel = |end: &str| format!("{prefix}{end}");
    match scope {
        Scope::Prefix(begin) => {
            // A user's patterns are compared by the letter: `&tenure:wake:*` allows that one and
            // none within it.
            let (narrow, wide) = (escaped(&channel(begin)) + "*", channel("*"));
            Channels::Like { narrow, wide }
        }
        Scope::Names(names) => {
            Channels::Named(names.iter().map(|name| channel(name.as_str())).collect())
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
