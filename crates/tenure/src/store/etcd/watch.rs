//! The watch: one stream of etcd's events for all keys of a scope.
//!
//! A subscription begins with [`Change::Look`], and so does every one that replaces it: after a lost connection, a compaction,
//! or a change of the member. So no event has to be repeated, and the revision at which a watch begins is the current one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};

use super::EtcdTerm;
use super::client::EtcdClient;
use super::message::{
    EtcdBytes, EtcdEvent, Int, StreamItem, WatchCreateRequest, WatchRequest, WatchResponse,
    prefix_range,
};
use super::settings::EtcdSettings;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lease::Name;
use crate::store::cas::common_prefix;
use crate::store::codec::{self, Decoded};
use crate::store::http::HttpAnswer;
use crate::store::{Change, Scope};

/// The pause after a subscription that failed.
const PAUSE: Duration = Duration::from_millis(500);

/// More names are watched by their common prefix.
const MAX_NAMES: usize = 32;

/// No message of a watch is longer.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

struct EtcdWatch {
    client: EtcdClient,
    clock: Clock,
    scope: Scope,
    subscription: Option<Subscribed>,
    queue: VecDeque<Change>,
}

/// A stream of messages, one line each.
struct Subscribed {
    answer: HttpAnswer,
    buffer: Vec<u8>,
}

pub(super) fn watch(
    settings: Arc<EtcdSettings>,
    clock: Clock,
    scope: Scope,
) -> BoxStream<'static, Change> {
    let client = EtcdClient::new(settings);
    let watch = EtcdWatch { client, clock, scope, subscription: None, queue: VecDeque::new() };
    stream::unfold(watch, async |mut watch| {
        let change = watch.next().await;
        Some((change, watch))
    })
    .boxed()
}

impl EtcdWatch {
    async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.queue.pop_front() {
                return change;
            }
            if let Err(error) = self.receive().await {
                tracing::debug!(%error, "the watch of etcd is interrupted");
                self.subscription = None;
                self.clock.sleep(PAUSE).await;
            }
        }
    }

    /// Waits for one message, and queues its changes.
    async fn receive(&mut self) -> Result<()> {
        let subscription = match &mut self.subscription {
            Some(subscription) => subscription,
            none => {
                let requests = requests(&self.client, &self.scope);
                // The gateway reads one request after the other from the body.
                let body = requests.iter().filter_map(|request| serde_json::to_vec(request).ok());
                let answer = self.client.open("watch", body.flatten().collect()).await?;
                none.insert(Subscribed { answer, buffer: Vec::new() })
            }
        };
        let line = subscription.line().await?;
        let item: StreamItem<WatchResponse> = serde_json::from_slice(&line)
            .map_err(|_| Error::unavailable("an event of etcd cannot be read"))?;
        if let Some(error) = &item.error {
            return Err(self.client.gateway_error(error).into());
        }
        let Some(message) = item.result else { return Ok(()) };
        if message.canceled {
            let reason = message.cancel_reason;
            return Err(Error::unavailable(format!("etcd has cancelled the watch: {reason}")));
        }
        if message.created {
            self.queue.push_back(Change::Look);
        }
        let settings = &self.client.settings;
        let changes = changes(settings, &message.events);
        self.queue.extend(changes.into_iter().filter(|change| change.concerns(&self.scope)));
        Ok(())
    }
}

impl Subscribed {
    async fn line(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(end + 1);
                return Ok(std::mem::replace(&mut self.buffer, rest));
            }
            let Some(chunk) = self.answer.chunk().await? else {
                return Err(Error::unavailable("etcd has ended the watch"));
            };
            if self.buffer.len() + chunk.len() > MAX_MESSAGE_BYTES {
                return Err(Error::unavailable("an event of etcd is too long"));
            }
            self.buffer.extend_from_slice(&chunk);
        }
    }
}

/// The requests of a subscription.
fn requests(client: &EtcdClient, scope: &Scope) -> Vec<WatchRequest> {
    let prefix = &client.settings.prefix;
    let range = |(key, range_end): (EtcdBytes, EtcdBytes)| WatchRequest {
        create_request: WatchCreateRequest {
            key,
            range_end,
            start_revision: Int(0),
            progress_notify: false,
        },
    };
    match scope {
        Scope::Prefix(begin) => vec![range(prefix_range(&format!("{prefix}{begin}")))],
        Scope::Names(names) if names.len() <= MAX_NAMES => {
            // `$` follows `#`: the two keys of the name, and no key of another name.
            let both = |name: &Name| {
                let key = client.settings.visible_key(name);
                let end = format!("{key}$");
                range((key.as_str().into(), end.as_str().into()))
            };
            names.iter().map(both).collect()
        }
        Scope::Names(names) => {
            let keys: Vec<String> =
                names.iter().map(|name| client.settings.visible_key(name)).collect();
            vec![range(prefix_range(common_prefix(&keys)))]
        }
    }
}

/// What the events of one message mean. All events of one write are in one message.
fn changes(settings: &EtcdSettings, events: &[EtcdEvent]) -> Vec<Change> {
    let mut found: Vec<NameEvents<'_>> = Vec::new();
    for event in events {
        let Some((name, is_record)) = settings.name_of(&event.kv.key.0) else { continue };
        let revision = event.kv.mod_revision;
        let known =
            found.iter_mut().position(|known| known.name == name && known.revision == revision);
        let at = known.unwrap_or_else(|| {
            found.push(NameEvents { name, revision, visible: None, record: None });
            found.len() - 1
        });
        let slot = if is_record { &mut found[at].record } else { &mut found[at].visible };
        *slot = Some(event);
    }
    found.into_iter().filter_map(NameEvents::change).collect()
}

/// The events of one write to the keys of one name.
struct NameEvents<'a> {
    name: Name,
    revision: Int,
    visible: Option<&'a EtcdEvent>,
    record: Option<&'a EtcdEvent>,
}

impl NameEvents<'_> {
    fn change(self) -> Option<Change> {
        let name = self.name;
        let freed = |next| Some(Change::Freed { name: name.clone(), next });
        match (self.visible, self.record) {
            // A checkpoint.
            (None, Some(record)) if !record.is_delete() => None,
            // etcd has ended the lease, or another program has deleted the key.
            (Some(visible), None) if visible.is_delete() => freed(None),
            (_, Some(record)) if record.is_delete() => freed(None),
            (Some(visible), Some(record)) => {
                let decoded: Decoded<EtcdTerm> =
                    match codec::decode_named(&name, &record.kv.value.0) {
                        Ok(decoded) => decoded,
                        Err(_) => return Some(Change::Look),
                    };
                match decoded.record.term {
                    None => freed(decoded.record.next),
                    Some(term) if term.nonce.is_some() && !visible.is_delete() => {
                        let (token, holder) = (decoded.record.token, Some(term.candidate));
                        Some(Change::Granted { name, token, holder })
                    }
                    Some(_) => Some(Change::Look),
                }
            }
            _ => Some(Change::Look),
        }
    }
}

impl EtcdEvent {
    fn is_delete(&self) -> bool {
        self.kind.as_deref() == Some("DELETE")
    }
}
