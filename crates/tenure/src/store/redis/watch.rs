//! Watches leases through pub/sub.
//!
//! The first item arrives when the server has confirmed the subscription, and one more after every reconnection: a caller that
//! observes after it has missed nothing. Expiry is not published; the waiter has a timer for it.

use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt};
use redis::Msg;

use super::pubsub::{Channels, PubsubEvent, Subscription};
use super::settings::RedisSettings;
use crate::clock::Clock;
use crate::lease::{CandidateId, Name, Token};
use crate::store::{Change, Scope};

struct RedisWatch {
    subscription: Subscription,
    scope: Scope,
    /// What precedes the name of a lease in its channel.
    prefix: String,
}

pub(super) fn watch(
    settings: Arc<RedisSettings>,
    clock: Clock,
    scope: Scope,
) -> BoxStream<'static, Change> {
    let (wake, key_prefix) = (settings.keys.wake(settings.database), settings.keys.as_str());
    let prefix = format!("{wake}{key_prefix}");
    // An ACL compares patterns literally: `&tenure:wake:*` allows that pattern and no narrower one. With a key prefix, the ACL
    // may have only that prefix.
    let mut wide = vec![format!("{wake}*")];
    if !key_prefix.is_empty() {
        wide.push(format!("{key_prefix}*"));
    }
    let channels = channels(&prefix, &scope, wide);
    let subscription = Subscription::new(settings, clock, channels);
    stream::unfold(RedisWatch { subscription, scope, prefix }, async |mut watch| {
        let change = watch.next().await;
        Some((change, watch))
    })
    .boxed()
}

impl RedisWatch {
    async fn next(&mut self) -> Change {
        loop {
            match self.subscription.next().await {
                PubsubEvent::Subscribed => return Change::Look,
                PubsubEvent::Message(message) => {
                    if let Some(change) = change(&self.prefix, &self.scope, &message) {
                        return change;
                    }
                }
                PubsubEvent::Failed(error) => tracing::debug!(%error, "cannot listen"),
            }
        }
    }
}

fn channels(prefix: &str, scope: &Scope, wide: Vec<String>) -> Channels {
    let channel = |end: &str| format!("{prefix}{end}");
    match scope {
        Scope::Prefix(begin) => Channels::Like { narrow: escaped(&channel(begin)) + "*", wide },
        Scope::Names(names) => {
            Channels::Named(names.iter().map(|name| channel(name.as_str())).collect())
        }
    }
}

/// The change that a message reports, if it concerns the scope. A message that cannot be parsed yields [`Change::Look`].
fn change(prefix: &str, scope: &Scope, message: &Msg) -> Option<Change> {
    let name = message.get_channel_name().strip_prefix(prefix).map(Name::stored)?.ok()?;
    let payload = message.get_payload_bytes();
    scope.contains(&name).then(|| parse(name, payload).unwrap_or(Change::Look))
}

fn parse(name: Name, payload: &[u8]) -> Option<Change> {
    match std::str::from_utf8(payload).ok()?.split_once(' ')? {
        ("granted", term) => {
            // Earlier versions sent only the token.
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

/// A pattern that matches exactly this text.
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
