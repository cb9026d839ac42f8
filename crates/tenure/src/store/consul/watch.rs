//! The watch: Consul's blocking queries, one for each name, or one for the common prefix of many names.
//!
//! A query names the index of the last answer, and is answered when that has changed, or after some minutes. What has changed is
//! found by a comparison with the last answer. A watch begins with [`Change::Look`], and so does every one that replaces it after
//! an error. The rules for the index are Consul's: an index of zero counts as one, and an index that goes back begins again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use reqwest::StatusCode;

use super::ConsulTerm;
use super::client::ConsulClient;
use super::message::{ConsulSessionId, KeyValue};
use super::settings::ConsulSettings;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lease::{CandidateId, Name, Token};
use crate::store::cas::common_prefix;
use crate::store::codec;
use crate::store::{Change, Scope};

/// The pause after a query that failed.
const PAUSE: Duration = Duration::from_millis(500);

/// How long Consul may leave a query unanswered. It adds up to a sixteenth of it.
const WAIT: Duration = Duration::from_secs(300);

/// Later than any answer to a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(330);

/// The pause between two queries of a prefix: every answer has all of its keys.
const PREFIX_PAUSE: Duration = Duration::from_millis(50);

/// More names are watched by their common prefix.
const MAX_NAMES: usize = 8;

/// One query.
struct ConsulWatch {
    client: Arc<ConsulClient>,
    clock: Clock,
    scope: Scope,
    /// What the query asks for, without its index.
    path: String,
    is_prefix: bool,
    /// Zero: the next query is answered at once.
    index: u64,
    /// The last answer; `None` before the first one.
    last: Option<HashMap<Name, KeyState>>,
    queue: VecDeque<Change>,
}

/// What matters of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyState {
    Held {
        token: Token,
        holder: CandidateId,
    },
    Free {
        token: Token,
        next: Option<CandidateId>,
    },
    /// A revoked term, another program's key, or no record.
    Other {
        index: u64,
        session: Option<ConsulSessionId>,
    },
}

pub(super) fn watch(
    settings: Arc<ConsulSettings>,
    clock: Clock,
    scope: &Scope,
) -> BoxStream<'static, Change> {
    let client = Arc::new(ConsulClient::new(Arc::clone(&settings)));
    let query = |key: &str, scope: Scope, by_name: bool| {
        let (path, is_exact) = ConsulSettings::key_path(key);
        let is_prefix = !by_name || !is_exact;
        let path = if is_prefix { format!("{path}?recurse&") } else { format!("{path}?") };
        let (client, clock) = (Arc::clone(&client), clock.clone());
        let (last, queue) = (None, VecDeque::new());
        ConsulWatch { client, clock, scope, path, is_prefix, index: 0, last, queue }.stream()
    };
    match scope {
        Scope::Prefix(prefix) => {
            query(&format!("{}{prefix}", settings.prefix), scope.clone(), false)
        }
        Scope::Names(names) if names.len() <= MAX_NAMES => {
            let by_name = |name: &Name| query(&settings.key(name), Scope::name(name), true);
            stream::select_all(names.iter().map(by_name)).chain(stream::pending()).boxed()
        }
        Scope::Names(names) => {
            let keys: Vec<String> = names.iter().map(|name| settings.key(name)).collect();
            query(common_prefix(&keys), scope.clone(), false)
        }
    }
}

impl ConsulWatch {
    fn stream(self) -> BoxStream<'static, Change> {
        stream::unfold(self, async |mut watch| {
            let change = watch.next().await;
            Some((change, watch))
        })
        .boxed()
    }

    async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.queue.pop_front() {
                return change;
            }
            if let Err(error) = self.receive().await {
                tracing::debug!(%error, "the watch of Consul is interrupted");
                (self.index, self.last) = (0, None);
                self.clock.sleep(PAUSE).await;
            }
        }
    }

    /// Waits for one answer, and queues its changes.
    async fn receive(&mut self) -> Result<()> {
        let path = match self.index {
            0 => self.path.trim_end_matches(['?', '&']).to_owned(),
            index => format!("{}index={index}&wait={}s", self.path, WAIT.as_secs()),
        };
        let answer = tokio::select! {
            answer = self.client.get(&path) => answer?,
            () = self.clock.sleep(QUERY_TIMEOUT) => {
                return Err(Error::unavailable("Consul does not answer a blocking query"));
            }
        };
        let Some(index) = answer.index else { return Err(self.client.unexpected(&answer)) };
        let values: Vec<KeyValue> = match answer.status {
            StatusCode::NOT_FOUND => Vec::new(),
            _ => self.client.parsed(&answer)?,
        };
        self.index = if index < self.index { 0 } else { index.max(1) };
        let found: HashMap<Name, KeyState> = values
            .iter()
            .filter_map(|value| {
                let name = self.client.settings.name_of(&value.key)?;
                let state = KeyState::of(&name, value);
                Some((name, state))
            })
            .collect();
        match self.last.replace(found.clone()) {
            None => self.queue.push_back(Change::Look),
            Some(last) => {
                let changes = changes(&last, found);
                self.queue.extend(changes.filter(|change| change.concerns(&self.scope)));
                if self.is_prefix {
                    self.clock.sleep(PREFIX_PAUSE).await;
                }
            }
        }
        Ok(())
    }
}

fn changes(
    last: &HashMap<Name, KeyState>,
    found: HashMap<Name, KeyState>,
) -> impl Iterator<Item = Change> {
    let removed = last.keys().filter(|name| !found.contains_key(*name));
    let removed: Vec<_> = removed.map(|name| freed(name.clone(), None)).collect();
    let changed = found.into_iter().filter(|(name, state)| last.get(name) != Some(state));
    removed.into_iter().chain(changed.map(|(name, state)| match state {
        KeyState::Held { token, holder } => Change::Granted { name, token, holder: Some(holder) },
        KeyState::Free { next, .. } => freed(name, next),
        KeyState::Other { .. } => Change::Look,
    }))
}

fn freed(name: Name, next: Option<CandidateId>) -> Change {
    Change::Freed { name, next }
}

impl KeyState {
    fn of(name: &Name, value: &KeyValue) -> Self {
        let session = value.session.clone();
        let other = KeyState::Other { index: value.modify_index, session: session.clone() };
        let Ok(decoded) = codec::decode_named::<ConsulTerm>(name, &value.value.0) else {
            return other;
        };
        let token = decoded.record.token;
        match (decoded.record.term, session) {
            (None, None) => KeyState::Free { token, next: decoded.record.next },
            // Its session has ended.
            (Some(_), None) => KeyState::Free { token, next: None },
            (Some(term), Some(_)) if term.nonce.is_some() => {
                KeyState::Held { token, holder: term.candidate }
            }
            _ => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn changes_are_found_by_comparison() {
        let token = |number| Token::new(number).unwrap();
        let id = || CandidateId::new("a").unwrap();
        let held = |number| KeyState::Held { token: token(number), holder: id() };
        let free = KeyState::Free { token: token(1), next: Some(id()) };
        let other = |index| KeyState::Other { index, session: None };
        let state = |entries: &[(&str, &KeyState)]| -> HashMap<Name, KeyState> {
            entries.iter().map(|(text, state)| (name(text), (*state).clone())).collect()
        };
        let last = state(&[("same", &held(1)), ("freed", &held(1)), ("gone", &free)]);
        let now = state(&[("same", &held(1)), ("freed", &free), ("new", &held(2))]);
        let mut found: Vec<String> = changes(&last, now).map(|c| format!("{c:?}")).collect();
        found.sort_unstable();
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("freed") && found[0].contains("Some"), "{found:?}");
        assert!(found[1].contains("gone"), "{found:?}");
        assert!(found[2].contains("new") && found[2].starts_with("Granted"), "{found:?}");
        let (last, now) = (state(&[("x", &other(1))]), state(&[("x", &other(2))]));
        assert_eq!(changes(&last, now).collect::<Vec<_>>(), [Change::Look]);
    }
}
