//! `consul://`: leases in Consul, through the HTTP API of an agent.
//!
//! A lease is one key, `PREFIX` + `NAME`. Its value is the record, and its session is the session of the holder: `consul kv get
//! -detailed tenure/NAME` shows both. Consul takes the key from the session when the holder does not renew it. Every write is a
//! transaction that compares the index of the key's last change. The end of a session changes that index too, so a challenger
//! that read before the holder renewed its session never replaces it: it read a key that a session held, and no claim locks
//! such a key.
//!
//! # Time
//! A renewal is one renewal of the [session](sessions) and then one consistent read of the keys of all names. Consul ends a
//! session that is not renewed after one to two TTLs, and a key is then locked for no session during the lock-delay.
//!
//! A server that was the leader, and does not know that it was replaced, may answer a renewal. That does no harm: it answers for
//! at most its leader lease (0.5 s, or 2.5 s with the default `raft_multiplier`) after its last contact with a majority, and the
//! new leader, elected after that contact, restarts the timers of all sessions with two TTLs. A TTL is at least 10 s, so the
//! session lives longer than the renewed term. The consistent read fails at such a server anyway.
//!
//! A session can end before its TTL: destroyed by hand, or its node was deregistered. Then only the lock-delay keeps the next
//! candidate away until the holder's deadline. It is the TTL by default, and 60 s at most. The leader keeps it in memory only.

mod client;
mod examine;
mod message;
mod sessions;
mod settings;
mod watch;

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use reqwest::StatusCode;
use serde::{Deserialize, Serialize};

use self::client::ConsulClient;
use self::message::{ConsulSessionId, KeyValue, KvOperation, TxnRefusal};
use self::sessions::{ConsulSession, ConsulSessions, SESSION_NAME_PREFIX, SessionKey};
use self::settings::ConsulSettings;
use super::batches::in_batches;
use super::cas::{
    Backend, CasStore, Condition, Document, Entry, Expiry, Reading, Swap, Swapped, TermTime,
    Touched, common_prefix,
};
use super::codec::{self, Decoded};
use super::endpoint::StoreUrl;
use super::record::whole_micros;
use super::{Change, Grade, Limits, Report, Scope};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lease::{Hold, Name};

/// Consul's own minimum, `session_ttl_min`.
const MIN_TTL: Duration = Duration::from_secs(10);

/// The number of operations that Consul takes in one transaction.
const MAX_TXN_OPERATIONS: usize = 64;

/// The number of swaps in one transaction: even the largest records stay below Consul's limit of 512 KiB.
const MAX_TXN_SWAPS: usize = 15;

/// The number of requests of one call that are sent at once.
const MAX_IN_FLIGHT: usize = 8;

/// A renewal of the session that is older than this part of the TTL is repeated before a term begins: a term's time counts
/// from it.
const RENEWAL_PARTS: u32 = 8;

/// When to try again during a lock-delay. Consul does not say how long it lasts.
const LOCK_DELAY_RETRY: Duration = Duration::from_secs(1);

/// The longest time that a foreign session without a TTL is assumed to exclude candidates before they look again.
const FOREIGN_LEFT: Duration = Duration::from_secs(86_400);

/// The part of a foreign key's value that is shown.
const SHOWN_ID_BYTES: usize = 256;

/// A key at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConsulVersion {
    index: u64,
    /// The session that holds the key.
    session: Option<ConsulSessionId>,
}

/// What is stored with a term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ConsulTerm {
    session: String,
}

/// The calls of Consul.
#[derive(Debug)]
pub(super) struct ConsulBackend {
    client: Arc<ConsulClient>,
    clock: Clock,
    sessions: Arc<ConsulSessions>,
    /// Whether the common prefix of the renewed names has many other keys.
    is_crowded: AtomicBool,
}

/// Opens the store that a URL names. It connects with the first call.
pub(super) fn open(url: &StoreUrl<'_>) -> Result<CasStore<ConsulBackend>> {
    let settings = Arc::new(ConsulSettings::from_url(url)?);
    let clock = Clock::boot();
    Ok(CasStore::new(ConsulBackend::new(settings, clock.clone(), Arc::default()), clock))
}

impl ConsulBackend {
    fn new(settings: Arc<ConsulSettings>, clock: Clock, sessions: Arc<ConsulSessions>) -> Self {
        let client = Arc::new(ConsulClient::new(settings));
        ConsulBackend { client, clock, sessions, is_crowded: AtomicBool::new(false) }
    }

    fn settings(&self) -> &ConsulSettings {
        &self.client.settings
    }

    async fn read_entries(
        &self,
        names: &[Name],
    ) -> Result<Vec<Result<Option<Entry<ConsulVersion>>>>> {
        let keys: Vec<String> = names.iter().map(|name| self.settings().key(name)).collect();
        let found = self.client.read_keys(&keys).await?;
        let mut entries = Vec::with_capacity(names.len());
        for (name, found) in names.iter().zip(found) {
            entries.push(match found {
                None => Ok(None),
                Some(value) => self.entry(name, value).await.map(Some),
            });
        }
        Ok(entries)
    }

    /// What a key means.
    async fn entry(&self, name: &Name, value: KeyValue) -> Result<Entry<ConsulVersion>> {
        let decoded: Result<Decoded<ConsulTerm>> = codec::decode_named(name, &value.value.0);
        let (decoded, session) = match (decoded, value.session) {
            (Ok(decoded), session) => (decoded, session),
            (Err(corrupt), None) => return Err(corrupt),
            (Err(corrupt), Some(session)) => {
                return self.foreign_entry(&session, &value.value.0).await?.ok_or(corrupt);
            }
        };
        let own = decoded.extra.map(|term| term.session);
        let left = match (&decoded.record.term, &session) {
            (_, None) => Duration::ZERO,
            (Some(term), Some(session)) if own.as_ref() == Some(session) => term.ttl,
            (_, Some(session)) => {
                let id = format!("session {session}");
                let foreign = self.foreign_entry(session, id.as_bytes()).await?;
                return foreign.ok_or_else(|| {
                    Error::corrupt(format!(
                        "the lease '{name}' is locked with a session that its record does not name. It is left as it is; \
                         delete the key if no candidate leads by it"
                    ))
                });
            }
        };
        let version = ConsulVersion { index: value.modify_index, session };
        Ok(Entry::Document(Document { record: decoded.record, version, left }))
    }

    /// The entry for a key that is locked and has no record: another program holds it. `None` if the session is Tenure's.
    async fn foreign_entry(
        &self,
        session: &ConsulSessionId,
        value: &[u8],
    ) -> Result<Option<Entry<ConsulVersion>>> {
        let Some(info) = sessions::info(&self.client, session).await? else {
            return Err(Error::unavailable("a session of Consul ended during a read: try again"));
        };
        if info.name.starts_with(SESSION_NAME_PREFIX) {
            return Ok(None);
        }
        let seconds = info.ttl.strip_suffix('s').and_then(|seconds| seconds.parse().ok());
        let left = seconds.map_or(FOREIGN_LEFT, Duration::from_secs);
        let shown = &value[..value.len().min(SHOWN_ID_BYTES)];
        let id = String::from_utf8_lossy(shown).into_owned();
        Ok(Some(Entry::Foreign { id, left }))
    }

    /// The session of each swap that begins or extends a term, renewed late enough for it.
    async fn attach(&self, swaps: &[Swap<ConsulVersion>]) -> Vec<Result<Option<ConsulSession>>> {
        let mut groups: HashMap<SessionKey, (Vec<Name>, Duration)> = HashMap::new();
        for swap in swaps {
            let Some(key) = session_key(swap) else { continue };
            // The answer to a renewal has no time of its own: its session must be renewed after its request.
            let max_age = match swap.time {
                TermTime::Begins => key.ttl / RENEWAL_PARTS,
                _ => Duration::ZERO,
            };
            let (names, age) = groups.entry(key).or_insert((Vec::new(), max_age));
            names.push(swap.name.clone());
            *age = max_age.min(*age);
        }
        let mut attached = HashMap::new();
        for (key, (names, max_age)) in groups {
            let (client, clock) = (&self.client, &self.clock);
            let session = self.sessions.attach(client, clock, &key, &names, max_age).await;
            attached.insert(key, session);
        }
        swaps
            .iter()
            .map(|swap| session_key(swap).and_then(|key| attached.get(&key).cloned()).transpose())
            .collect()
    }

    /// Writes in one transaction what can be written. Consul names every operation that cannot: the others are sent again.
    async fn swap_batch(
        &self,
        swaps: &[(&Swap<ConsulVersion>, Result<Option<ConsulSession>>)],
    ) -> Result<Vec<Result<Swapped<ConsulVersion>>>> {
        let mut swapped: Vec<_> = swaps.iter().map(|_| Ok(Swapped::Conflict)).collect();
        let mut planned = Vec::new();
        for (at, (swap, session)) in swaps.iter().enumerate() {
            match session.clone().and_then(|session| self.plan(swap, session)) {
                Ok(Some(plan)) => planned.push((at, plan)),
                Ok(None) => {}
                Err(error) => swapped[at] = Err(error),
            }
        }
        while !planned.is_empty() {
            let operations = planned.iter().flat_map(|(_, plan)| plan.operations.clone());
            let answer = match self.client.txn(operations, false).await {
                Ok(answer) => answer,
                Err(error) => {
                    planned.iter().for_each(|(at, _)| swapped[*at] = Err(error.clone()));
                    break;
                }
            };
            let Some(errors) = answer.errors else {
                let values: Vec<KeyValue> = answer
                    .results
                    .unwrap_or_default()
                    .into_iter()
                    .map(|result| result.kv)
                    .collect();
                for (at, plan) in planned.drain(..) {
                    swapped[at] = self.written(swaps[at].0, plan, &values);
                }
                break;
            };
            let (count, mut begins) = (planned.len(), 0);
            planned.retain(|(at, plan)| {
                let own = begins..begins + plan.operations.len();
                begins = own.end;
                let refusals = errors.iter().filter(|error| own.contains(&error.op_index));
                let refusals: Vec<TxnRefusal> = refusals.map(|error| error.refusal()).collect();
                if refusals.contains(&TxnRefusal::NoSession)
                    && let Some(session) = &plan.session
                {
                    self.sessions.forget(&session.id);
                }
                // Consul checks the lock-delay first: the key may have changed too.
                let is_delayed = refusals.contains(&TxnRefusal::LockDelay);
                if is_delayed && !refusals.contains(&TxnRefusal::NotAsExpected) {
                    swapped[*at] = Ok(Swapped::Delayed { left: LOCK_DELAY_RETRY });
                }
                refusals.is_empty()
            });
            if planned.len() == count {
                let error = Error::unavailable("Consul refuses a transaction and does not say why");
                planned.iter().for_each(|(at, _)| swapped[*at] = Err(error.clone()));
                break;
            }
        }
        Ok(swapped)
    }

    /// The operations of a swap; `None` if its condition is not met.
    fn plan(
        &self,
        swap: &Swap<ConsulVersion>,
        session: Option<ConsulSession>,
    ) -> Result<Option<PlannedWrite>> {
        let (index, holder) = match &swap.expected {
            None => (0, None),
            Some(version) => (version.index, version.session.as_ref()),
        };
        // The index of the key changes when its session ends, so that what was read is still true when the index is the same.
        let is_met = match swap.condition {
            Condition::None => true,
            Condition::TermIsLive => holder.is_some(),
            Condition::TermIsOver => holder.is_none(),
        };
        if !is_met {
            return Ok(None);
        }
        let key = self.settings().key(&swap.name);
        if swap.record.is_forgettable() && index != 0 {
            let operations = vec![KvOperation::delete(&key, index)];
            return Ok(Some(PlannedWrite { key, operations, session: None }));
        }
        let term_session = session.as_ref().map(|session| &session.id).or(holder);
        let extra = swap.record.term.as_ref().zip(term_session);
        let extra = extra.map(|(_, session)| ConsulTerm { session: session.clone() });
        let value = codec::encode_with(&swap.name, &swap.record, extra).map_err(|reason| {
            Error::invalid(format!("the record of '{}' cannot be written: {reason}", swap.name))
        })?;
        let operations = match (&session, holder) {
            (Some(session), holder) => {
                let mut operations = vec![KvOperation::check(&key, index)];
                if let Some(holder) = holder.filter(|holder| **holder != session.id) {
                    operations.push(KvOperation::unlock(&key, holder, value.clone()));
                }
                operations.push(KvOperation::lock(&key, &session.id, value));
                operations
            }
            (None, Some(holder)) if swap.time == TermTime::None => {
                vec![KvOperation::check(&key, index), KvOperation::unlock(&key, holder, value)]
            }
            // The session stays.
            (None, _) => vec![KvOperation::replace(&key, index, value)],
        };
        Ok(Some(PlannedWrite { key, operations, session }))
    }

    /// The result of a swap that was written; `values` are the keys after each operation.
    fn written(
        &self,
        swap: &Swap<ConsulVersion>,
        plan: PlannedWrite,
        values: &[KeyValue],
    ) -> Result<Swapped<ConsulVersion>> {
        match (swap.time, &plan.session) {
            (TermTime::None, _) => self.sessions.detach(&self.client, &swap.name, None),
            (TermTime::Extended, Some(session)) => {
                self.sessions.detach(&self.client, &swap.name, Some(&session.id));
            }
            _ => {}
        }
        let last = values.iter().rev().find(|value| value.key == plan.key);
        let version = match last {
            Some(last) => ConsulVersion { index: last.modify_index, session: last.session.clone() },
            // It was deleted.
            None => ConsulVersion { index: 0, session: None },
        };
        let counts_from = plan.session.map(|session| session.kept_at);
        Ok(Swapped::Done { version, counts_from })
    }

    async fn touch_all(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Touched>>> {
        let ttl = whole_micros(ttl);
        let mut kept: HashMap<SessionKey, Option<ConsulSession>> = HashMap::new();
        for hold in holds {
            for ephemeral in [false, true] {
                let key = SessionKey { candidate: hold.candidate.clone(), ttl, ephemeral };
                if let MapEntry::Vacant(slot) = kept.entry(key) {
                    let key = slot.key();
                    let session = self.sessions.keep_alive(&self.client, &self.clock, key).await?;
                    slot.insert(session);
                }
            }
        }
        let is_kept = |hold: &Hold, id: &ConsulSessionId| {
            [false, true].into_iter().any(|ephemeral| {
                let key = SessionKey { candidate: hold.candidate.clone(), ttl, ephemeral };
                kept.get(&key).is_some_and(|kept| kept.as_ref().is_some_and(|kept| kept.id == *id))
            })
        };
        if kept.values().all(Option::is_none) {
            return Ok(holds.iter().map(|_| Ok(Touched::Unknown)).collect());
        }
        let found = self.touched_keys(holds).await?;
        let touched = holds.iter().map(|hold| {
            let renewed = found.get(&self.settings().key(&hold.name)).is_some_and(|value| {
                let decoded = codec::decode_named::<ConsulTerm>(&hold.name, &value.value.0);
                let is_term = |decoded: Decoded<ConsulTerm>| {
                    let same_ttl = decoded.record.term.as_ref().map(|term| term.ttl) == Some(ttl);
                    let own = decoded.extra.map(|term| term.session);
                    same_ttl
                        && decoded.record.is_term_of(hold)
                        && own.as_deref() == value.session.as_deref()
                };
                value.session.as_ref().is_some_and(|session| is_kept(hold, session))
                    && decoded.is_ok_and(is_term)
            });
            Ok(if renewed { Touched::Renewed } else { Touched::Unknown })
        });
        Ok(touched.collect())
    }

    /// The keys of these holds. One request if they fit into a transaction, or have a common prefix with few other keys.
    async fn touched_keys(&self, holds: &[Hold]) -> Result<HashMap<String, KeyValue>> {
        let keys: Vec<String> = holds.iter().map(|hold| self.settings().key(&hold.name)).collect();
        let by_key = |values: Vec<KeyValue>| {
            values.into_iter().map(|value| (value.key.clone(), value)).collect()
        };
        let prefix = common_prefix(&keys);
        let is_many = keys.len() > MAX_TXN_OPERATIONS;
        if is_many && !prefix.is_empty() && !self.is_crowded.load(Ordering::Relaxed) {
            let answer = self.client.txn([KvOperation::get_tree(prefix)], true).await?;
            let values: Vec<KeyValue> =
                answer.results.unwrap_or_default().into_iter().map(|result| result.kv).collect();
            if values.len() > 4 * keys.len() {
                self.is_crowded.store(true, Ordering::Relaxed);
            }
            return Ok(by_key(values));
        }
        let read = async |keys: &[String]| {
            let found = self.client.read_keys(keys).await?;
            Ok(found.into_iter().map(Ok).collect())
        };
        let found = in_batches(&keys, MAX_TXN_OPERATIONS, MAX_IN_FLIGHT, read).await?;
        let found = found.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(by_key(found.into_iter().flatten().collect()))
    }
}

/// What a swap sends.
struct PlannedWrite {
    key: String,
    operations: Vec<KvOperation>,
    /// The session that gets the key.
    session: Option<ConsulSession>,
}

/// The session of the term that a swap begins or extends.
fn session_key(swap: &Swap<ConsulVersion>) -> Option<SessionKey> {
    match swap.time {
        TermTime::Begins | TermTime::Extended => {
            let term = swap.record.term.as_ref()?;
            let (candidate, ttl) = (term.candidate.clone(), term.ttl);
            Some(SessionKey { candidate, ttl, ephemeral: swap.record.ephemeral })
        }
        TermTime::Unchanged | TermTime::None => None,
    }
}

#[async_trait]
impl Backend for ConsulBackend {
    type Version = ConsulVersion;

    const EXPIRY: Expiry = Expiry::ServerLease;

    fn limits(&self) -> Limits {
        let covers = self.settings().covered_ttl() >= MIN_TTL;
        let grade = if covers { Grade::A } else { Grade::C };
        Limits { min_ttl: MIN_TTL, ..Limits::new(grade) }
    }

    fn url(&self) -> String {
        self.settings().target.url.clone()
    }

    fn detached(&self) -> Self {
        let (settings, sessions) = (Arc::clone(&self.client.settings), Arc::clone(&self.sessions));
        ConsulBackend::new(settings, self.clock.clone(), sessions)
    }

    async fn read(&self, names: &[Name]) -> Result<Reading<ConsulVersion>> {
        let read = |names| self.read_entries(names);
        let entries = in_batches(names, MAX_TXN_OPERATIONS, MAX_IN_FLIGHT, read).await?;
        Ok(Reading { store_time: None, entries })
    }

    async fn swap(
        &self,
        swaps: &[Swap<ConsulVersion>],
    ) -> Result<Vec<Result<Swapped<ConsulVersion>>>> {
        let sessions = self.attach(swaps).await;
        let swaps: Vec<_> = swaps.iter().zip(sessions).collect();
        let swap = |swaps| self.swap_batch(swaps);
        in_batches(&swaps, MAX_TXN_SWAPS, MAX_IN_FLIGHT, swap).await
    }

    async fn touch(&self, holds: &[Hold], ttl: Duration) -> Option<Result<Vec<Result<Touched>>>> {
        Some(self.touch_all(holds, ttl).await)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let all = self.settings().prefix.clone() + prefix;
        let (path, _) = ConsulSettings::key_path(&all);
        let answer = self.client.get(&format!("{path}?keys&consistent")).await?;
        let keys: Vec<String> = match answer.status {
            StatusCode::NOT_FOUND if answer.index.is_some() => Vec::new(),
            _ => self.client.parsed(&answer)?,
        };
        let keys = keys.iter().filter(|key| key.starts_with(&all));
        Ok(keys.filter_map(|key| self.settings().name_of(key)).collect())
    }

    fn changes(&self, scope: &Scope) -> BoxStream<'static, Change> {
        watch::watch(Arc::clone(&self.client.settings), self.clock.clone(), scope)
    }

    async fn examine(&self) -> Result<Report> {
        examine::examine(&self.client, &self.clock).await
    }
}
