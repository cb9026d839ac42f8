//! Notifications by a watch of the API server.
//!
//! A watch begins with a list, and continues from the list's resourceVersion, so no change is missed in between. When a request
//! ends or its connection is lost, the next one continues where it stopped. If the server no longer has those changes (410
//! Gone), the watch begins again, with [`Change::Look`].

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::WatchEvent;

use super::client::{ApiClient, WATCH_SECONDS};
use super::lease_object;
use crate::clock::{Clock, Moment};
use crate::lease::Name;
use crate::store::cas::{Document, Entry, ForeignDocument};
use crate::store::poll::{Mark, MarkState, changes as changes_between};
use crate::store::{Change, Scope};

/// The pause after an error, doubled with each of them.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A watch request that ends earlier has failed: its next one would end at once, too.
const SHORTEST_WATCH: Duration = Duration::from_secs(5);

/// The longest silence of a watch request, which the server ends before.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 15);

type Events = BoxStream<'static, kube::Result<WatchEvent<Lease>>>;

pub(super) fn changes(client: ApiClient, clock: Clock, scope: Scope) -> BoxStream<'static, Change> {
    let names = match &scope {
        Scope::Names(names) => {
            names.iter().map(|name| (lease_object::object_name(name), name.clone())).collect()
        }
        Scope::Prefix(_) => HashMap::new(),
    };
    let watch = Watch {
        client,
        clock,
        scope,
        names,
        backoff: Duration::ZERO,
        pauses: false,
        started: Moment::PAST,
        position: None,
        events: None,
        marks: HashMap::new(),
        queue: VecDeque::new(),
    };
    stream::unfold(watch, async |mut watch| {
        let change = watch.next().await;
        Some((change, watch))
    })
    .boxed()
}

struct Watch {
    client: ApiClient,
    clock: Clock,
    scope: Scope,
    /// The names of the scope by the names of their objects.
    names: HashMap<String, Name>,
    /// The last pause after an error; zero after a change.
    backoff: Duration,
    /// Whether to pause before the next request.
    pauses: bool,
    /// When the watch request was sent.
    started: Moment,
    /// The resourceVersion up to which everything was reported; `None`: list first.
    position: Option<String>,
    events: Option<Events>,
    /// What was last seen of each lease.
    marks: HashMap<Name, Mark>,
    queue: VecDeque<Change>,
}

impl Watch {
    async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.queue.pop_front() {
                return change;
            }
            if self.events.is_none() {
                self.start().await;
                continue;
            }
            self.receive().await;
        }
    }

    /// Lists if there is no position, and starts the next watch request otherwise.
    async fn start(&mut self) {
        let after_error = std::mem::take(&mut self.pauses);
        if after_error {
            self.clock.sleep(self.backoff).await;
        }
        let Some(position) = self.position.clone() else {
            match self.client.list(&self.scope).await {
                Ok((objects, position)) => {
                    self.marks = objects.iter().filter_map(|object| self.mark(object)).collect();
                    self.position = Some(position);
                    self.queue.push_back(Change::Look);
                }
                Err(error) => self.back_off(&error),
            }
            return;
        };
        self.started = self.clock.now();
        match self.client.watch(&self.scope, &position).await {
            Ok(events) => {
                self.events = Some(events);
                if after_error {
                    self.queue.push_back(Change::Look);
                }
            }
            Err(error) => self.back_off(&error),
        }
    }

    async fn receive(&mut self) {
        let Some(events) = &mut self.events else { return };
        match tokio::time::timeout(SILENCE, events.next()).await {
            Ok(Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)))) => {
                return self.changed(&object, false);
            }
            Ok(Some(Ok(WatchEvent::Deleted(object)))) => return self.changed(&object, true),
            Ok(Some(Ok(WatchEvent::Bookmark(bookmark)))) => {
                self.position = Some(bookmark.metadata.resource_version);
                return;
            }
            // The server does not know the position any more (410), or refuses: from the beginning.
            Ok(Some(Ok(WatchEvent::Error(status)))) => {
                self.position = None;
                self.back_off(&status);
            }
            Ok(Some(Err(error @ (kube::Error::Api(_) | kube::Error::SerdeError(_))))) => {
                self.position = None;
                self.back_off(&error);
            }
            // The connection was lost.
            Ok(Some(Err(error))) => self.back_off(&error),
            Err(_) => self.back_off(&"no answer"),
            // The end of the request, unless it comes too early.
            Ok(None) if self.clock.now().since(self.started) >= SHORTEST_WATCH => {}
            Ok(None) => self.back_off(&"it ended at once"),
        }
        self.events = None;
    }

    fn changed(&mut self, object: &Lease, deleted: bool) {
        self.backoff = Duration::ZERO;
        if let Some(version) = &object.metadata.resource_version {
            self.position = Some(version.clone());
        }
        let Some((name, mark)) = self.mark(object) else { return };
        let after = if deleted { None } else { Some(mark) };
        let before = match &after {
            Some(mark) => self.marks.insert(name, mark.clone()),
            None => self.marks.remove(&name),
        };
        self.queue.extend(changes_between(before.as_slice(), after.as_slice()));
    }

    fn back_off(&mut self, error: &dyn fmt::Display) {
        tracing::debug!(%error, "the watch was interrupted");
        self.backoff = (self.backoff * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.pauses = true;
    }

    /// The lease of an object, if it is in the scope.
    fn mark(&self, object: &Lease) -> Option<(Name, Mark)> {
        let name = match &self.scope {
            Scope::Names(_) => self.names.get(object.metadata.name.as_deref()?)?.clone(),
            Scope::Prefix(prefix) => lease_object::name_of(object)
                .filter(|name| name.as_str().starts_with(prefix.as_str()))?,
        };
        let mut hasher = DefaultHasher::new();
        let state = match lease_object::entry(&name, object.clone()) {
            Ok(Entry::Document(Document { record, .. })) => {
                record.origin.get().hash(&mut hasher);
                match record.term {
                    None => MarkState::Free { token: Some(record.token), next: record.next },
                    Some(term) => {
                        (term.note.as_str(), term.since_micros).hash(&mut hasher);
                        let reason = record.leads_from.map(|from| from.reason.as_str());
                        reason.hash(&mut hasher);
                        match term.nonce {
                            Some(_) => MarkState::Held {
                                token: record.token,
                                holder: Some(term.candidate),
                            },
                            None => MarkState::Blocked,
                        }
                    }
                }
            }
            Ok(Entry::ForeignDocument(ForeignDocument { holder: None, record, .. })) => {
                let token = record.map(|record| record.token);
                MarkState::Free { token, next: None }
            }
            Ok(Entry::ForeignDocument(ForeignDocument { holder: Some(holder), .. })) => {
                holder.id.hash(&mut hasher);
                MarkState::Blocked
            }
            // Not usable: a change of it is a reason to look.
            Ok(Entry::Foreign { .. }) | Err(_) => {
                object.metadata.resource_version.hash(&mut hasher);
                MarkState::Blocked
            }
        };
        let mark = Mark { name: name.clone(), state, fingerprint: hasher.finish() };
        Some((name, mark))
    }
}
