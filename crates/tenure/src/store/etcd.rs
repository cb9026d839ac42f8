//! `etcd://`: leases in an etcd cluster, through its HTTP gateway.
//!
//! A lease is two keys. `PREFIX` + `NAME` holds the holder's id and is attached to an etcd lease: `etcdctl get NAME` shows who
//! leads, and the server removes the key when the holder does not keep the etcd lease alive. `NAME#tenure` holds the record
//! (token, checkpoint, note, history) without an etcd lease, so that it outlives the term. Every write is a transaction that
//! compares both keys.
//!
//! The key of a name that is held by another program (another value, no etcd lease or another one) excludes every candidate.
//!
//! A renewal is one keepalive and one linearizable read of the keys of all names. It counts only if both report the same
//! Raft term: see [`sessions`]. TTLs are at least two seconds, and rounded up to whole seconds on the server.

mod client;
mod examine;
mod message;
mod sessions;
mod settings;
mod watch;

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};

use self::client::EtcdClient;
use self::message::{
    Compare, DeleteRequest, EtcdKeyValue, Header, Int, PutRequest, RangeRequest, RangeResponse,
    RequestOp, TxnRequest, TxnResponse,
};
use self::sessions::{EtcdSession, EtcdSessions};
use self::settings::EtcdSettings;
use super::batches::in_batches;
use super::cas::{
    Backend, CasStore, Condition, Document, Entry, Expiry, Reading, Swap, Swapped, TermTime,
    Touched, common_prefix,
};
use super::codec::{self, Decoded};
use super::endpoint::StoreUrl;
use super::{Change, Grade, Limits, Report, Scope, wrong_count};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lease::{CandidateId, Hold, Name, Nonce, Token};

/// The shortest TTL: etcd's own minimum depends on its election timeout, which is one second by default.
const MIN_TTL: Duration = Duration::from_secs(2);

/// The longest time that a foreign key excludes candidates before they read it again.
const FOREIGN_LEFT: Duration = Duration::from_secs(86_400);

/// How long a foreign key whose etcd lease is about to end excludes candidates before they read it again.
const FOREIGN_POLL: Duration = Duration::from_millis(200);

/// The number of operations that etcd takes in one transaction by default.
const MAX_TXN_OPERATIONS: usize = 128;

/// The number of requests of one call that are sent at once.
const MAX_IN_FLIGHT: usize = 16;

/// The keys in one answer to a list.
const PAGE_KEYS: i64 = 2_000;

/// A keepalive that is older than this part of the TTL is repeated before a term begins: a term's time counts from it.
const KEEPALIVE_PARTS: u32 = 8;

/// The part of a foreign key's value that is shown.
const SHOWN_ID_BYTES: usize = 256;

/// The two keys of one name at one moment. Zero: the key does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct EtcdVersion {
    /// The revision of the record.
    record: Int,
    /// The revision of the visible key.
    visible: Int,
    /// The etcd lease of the record's term.
    lease: Int,
}

/// What is stored with a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EtcdTerm {
    /// The etcd lease that the visible key is attached to.
    lease: Int,
}

/// A term of this client, as its last write left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldKey {
    nonce: Nonce,
    token: Token,
    ttl: Duration,
    lease: Int,
    /// The revision of the visible key.
    revision: Int,
}

/// The calls of etcd.
#[derive(Debug)]
pub(super) struct EtcdBackend {
    client: Arc<EtcdClient>,
    clock: Clock,
    sessions: EtcdSessions,
    held: Mutex<HashMap<Name, HeldKey>>,
}

/// Opens the store that a URL names. It connects with the first call.
pub(super) fn open(url: &StoreUrl<'_>) -> Result<CasStore<EtcdBackend>> {
    let settings = Arc::new(EtcdSettings::from_url(url)?);
    let clock = Clock::boot();
    Ok(CasStore::new(EtcdBackend::new(settings, clock.clone()), clock))
}

impl EtcdBackend {
    fn new(settings: Arc<EtcdSettings>, clock: Clock) -> Self {
        let client = Arc::new(EtcdClient::new(settings));
        let sessions = EtcdSessions::new(Arc::clone(&client), clock.clone());
        EtcdBackend { client, clock, sessions, held: Mutex::default() }
    }

    fn settings(&self) -> &EtcdSettings {
        &self.client.settings
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Name, HeldKey>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn range(&self, request: &RangeRequest) -> Result<RangeResponse> {
        Ok(self.client.call("kv/range", request).await?)
    }

    async fn txn(&self, request: &TxnRequest) -> Result<TxnResponse> {
        Ok(self.client.call("kv/txn", request).await?)
    }

    /// Reads keys in one transaction: at most [`MAX_TXN_OPERATIONS`]. `None` for a key that does not exist.
    async fn read_keys(
        &self,
        reads: Vec<RangeRequest>,
    ) -> Result<(Header, Vec<Option<EtcdKeyValue>>)> {
        let count = reads.len();
        let success = reads.into_iter().map(RequestOp::Range).collect();
        let answer = self.txn(&TxnRequest { success, ..TxnRequest::default() }).await?;
        let values: Vec<Option<EtcdKeyValue>> = answer
            .responses
            .into_iter()
            .map(|response| response.response_range?.kvs.pop())
            .collect();
        match values.len() == count {
            true => Ok((answer.header, values)),
            false => Err(Error::unavailable("etcd has answered a part of a transaction only")),
        }
    }

    async fn read_entries(
        &self,
        names: &[Name],
    ) -> Result<Vec<Result<Option<Entry<EtcdVersion>>>>> {
        let keys = names
            .iter()
            .flat_map(|name| [self.settings().visible_key(name), self.settings().record_key(name)]);
        let (_, values) = self.read_keys(keys.map(|key| RangeRequest::key(&key)).collect()).await?;
        let mut entries = Vec::with_capacity(names.len());
        for (name, keys) in names.iter().zip(values.chunks_exact(2)) {
            let [visible, record] = keys else { return Err(wrong_count(2, keys.len())) };
            let mut entry = entry(name, visible.as_ref(), record.as_ref());
            if let (Ok(Some(Entry::Foreign { left, .. })), Some(visible)) = (&mut entry, visible)
                && visible.lease != Int(0)
            {
                let known = self.sessions.time_left(visible.lease).await?;
                *left = known.unwrap_or_default().max(FOREIGN_POLL);
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    /// The session of each swap that begins or extends a term, with a keepalive that is new enough for it.
    async fn attach(&self, swaps: &[Swap<EtcdVersion>]) -> Vec<Result<Option<EtcdSession>>> {
        type Group = (Vec<Name>, Duration);
        let mut groups: HashMap<(&CandidateId, Duration), Group> = HashMap::new();
        for swap in swaps {
            let Some(key @ (_, ttl)) = session_key(swap) else { continue };
            // The answer to a renewal has no time of its own: its keepalive must be later than its request.
            let max_age = match swap.time {
                TermTime::Begins => ttl / KEEPALIVE_PARTS,
                _ => Duration::ZERO,
            };
            let (names, age) = groups.entry(key).or_insert((Vec::new(), max_age));
            names.push(swap.name.clone());
            *age = max_age.min(*age);
        }
        let mut sessions = HashMap::new();
        for (key, (names, max_age)) in groups {
            sessions.insert(key, self.sessions.attach(key, &names, max_age).await);
        }
        swaps
            .iter()
            .map(|swap| session_key(swap).and_then(|key| sessions.get(&key).cloned()).transpose())
            .collect()
    }

    async fn swap_one(
        &self,
        swap: &Swap<EtcdVersion>,
        session: Result<Option<EtcdSession>>,
    ) -> Result<Swapped<EtcdVersion>> {
        let session = session?;
        let expected = swap.expected.unwrap_or_default();
        let (visible, record) =
            (self.settings().visible_key(&swap.name), self.settings().record_key(&swap.name));
        let visible_revision = match swap.condition {
            Condition::TermIsOver => Int(0),
            Condition::TermIsLive if expected.visible == Int(0) => return Ok(Swapped::Conflict),
            Condition::TermIsLive | Condition::None => expected.visible,
        };
        let compare = vec![
            Compare::written_at(&record, expected.record),
            Compare::written_at(&visible, visible_revision),
        ];
        let lease = session.map_or(expected.lease, |session| session.lease);
        let write = EtcdWrite::new(swap, expected, lease, visible_revision);
        let success = write.operations(swap, &visible, &record)?;
        let answer = self.txn(&TxnRequest { compare, success, failure: Vec::new() }).await?;
        if !answer.succeeded {
            return Ok(Swapped::Conflict);
        }
        let revision = answer.header.revision;
        let version = write.version(revision);
        self.note_held(swap, version);
        let counts_from = match session {
            None => None,
            Some(session) if session.raft_term == answer.header.raft_term => Some(session.kept_at),
            // The keepalive may have been answered by a leader that was replaced before.
            Some(_) => Some(self.confirmed(swap, answer.header.raft_term).await?.kept_at),
        };
        Ok(Swapped::Done { version, counts_from })
    }

    /// Keeps the session of a swap alive that was written in this Raft term.
    async fn confirmed(&self, swap: &Swap<EtcdVersion>, raft_term: Int) -> Result<EtcdSession> {
        let kept = match session_key(swap) {
            Some((candidate, ttl)) => self.sessions.keep_alive(candidate, ttl).await?,
            None => None,
        };
        kept.filter(|session| session.raft_term == raft_term).ok_or_else(leader_changed)
    }

    /// Remembers a term of this client for [`Backend::touch`], or forgets one.
    fn note_held(&self, swap: &Swap<EtcdVersion>, version: EtcdVersion) {
        let term = swap.record.term.as_ref();
        match (swap.time, term, term.and_then(|term| term.nonce)) {
            (TermTime::Begins | TermTime::Extended, Some(term), Some(nonce)) => {
                let EtcdVersion { lease, visible: revision, .. } = version;
                let held =
                    HeldKey { nonce, token: swap.record.token, ttl: term.ttl, lease, revision };
                self.held().insert(swap.name.clone(), held);
                self.sessions.attached(&swap.name, lease);
            }
            // A checkpoint leaves the visible key as it is.
            (TermTime::Unchanged, ..) => {}
            _ => {
                self.held().remove(&swap.name);
                self.sessions.detach(&swap.name);
            }
        }
    }

    /// One attempt to renew. `None`: the Raft term changed meanwhile.
    async fn touch_once(
        &self,
        holds: &[Hold],
        ttl: Duration,
    ) -> Result<Option<Vec<Result<Touched>>>> {
        let known: Vec<Option<HeldKey>> = {
            let held = self.held();
            let known = holds.iter().map(|hold| {
                let known = held.get(&hold.name).copied();
                known.filter(|known| {
                    (known.nonce, known.token, known.ttl) == (hold.nonce, hold.token, ttl)
                })
            });
            known.collect()
        };
        let mut kept: HashMap<&CandidateId, Option<EtcdSession>> = HashMap::new();
        for (hold, _) in holds.iter().zip(&known).filter(|(_, known)| known.is_some()) {
            if !kept.contains_key(&hold.candidate) {
                let session = self.sessions.keep_alive(&hold.candidate, ttl).await?;
                kept.insert(&hold.candidate, session);
            }
        }
        let names: Vec<&Name> = holds
            .iter()
            .zip(&known)
            .filter(|(_, known)| known.is_some())
            .map(|(hold, _)| &hold.name)
            .collect();
        let (raft_terms, found) = self.visible_keys(&names).await?;
        if kept
            .values()
            .flatten()
            .any(|session| raft_terms.iter().any(|term| *term != session.raft_term))
        {
            return Ok(None);
        }
        let touched = holds.iter().zip(known).map(|(hold, known)| {
            let session = kept.get(&hold.candidate).copied().flatten();
            let is_renewed = known.zip(session).is_some_and(|(known, session)| {
                let found = found.get(&self.settings().visible_key(&hold.name));
                known.lease == session.lease && found == Some(&(known.revision, session.lease))
            });
            Ok(if is_renewed { Touched::Renewed } else { Touched::Unknown })
        });
        Ok(Some(touched.collect()))
    }

    /// The revision and the etcd lease of each visible key, and the Raft terms of the answers. One request if the names have a
    /// common prefix with few other keys.
    async fn visible_keys(
        &self,
        names: &[&Name],
    ) -> Result<(Vec<Int>, HashMap<String, (Int, Int)>)> {
        let keys: Vec<String> =
            names.iter().map(|name| self.settings().visible_key(name)).collect();
        let mut found = HashMap::new();
        let mut note = |values: Vec<EtcdKeyValue>| {
            for value in values {
                if let Ok(key) = String::from_utf8(value.key.0) {
                    found.insert(key, (value.mod_revision, value.lease));
                }
            }
        };
        if keys.len() > MAX_TXN_OPERATIONS / 2 {
            // A name has two keys. More than twice as many keys as expected: too many others.
            let limit = i64::try_from(4 * keys.len()).unwrap_or(i64::MAX);
            let request = RangeRequest::prefix(common_prefix(&keys)).keys_only();
            let answer = self.range(&RangeRequest { limit: Some(Int(limit)), ..request }).await?;
            if !answer.more {
                note(answer.kvs);
                return Ok((vec![answer.header.raft_term], found));
            }
        }
        let mut raft_terms = Vec::new();
        for keys in keys.chunks(MAX_TXN_OPERATIONS) {
            let reads = keys.iter().map(|key| RangeRequest::key(key).keys_only()).collect();
            let (header, values) = self.read_keys(reads).await?;
            raft_terms.push(header.raft_term);
            note(values.into_iter().flatten().collect());
        }
        Ok((raft_terms, found))
    }
}

/// What a swap writes.
struct EtcdWrite {
    visible: VisibleWrite,
    deletes_record: bool,
    lease: Int,
}

enum VisibleWrite {
    /// The holder's id, attached to the etcd lease.
    Put,
    /// The same again: a holder whose term was revoked notices it.
    Again,
    /// Nothing; the key stays at this revision.
    Keep(Int),
    Delete,
}

impl EtcdWrite {
    fn new(swap: &Swap<EtcdVersion>, expected: EtcdVersion, lease: Int, visible: Int) -> Self {
        let is_revoked = swap.record.term.as_ref().is_some_and(|term| term.nonce.is_none());
        let visible = match swap.time {
            TermTime::Begins | TermTime::Extended => VisibleWrite::Put,
            TermTime::Unchanged if is_revoked && visible != Int(0) => VisibleWrite::Again,
            TermTime::Unchanged => VisibleWrite::Keep(visible),
            TermTime::None if visible == Int(0) => VisibleWrite::Keep(visible),
            TermTime::None => VisibleWrite::Delete,
        };
        let deletes_record = swap.record.is_forgettable() && expected.record != Int(0);
        EtcdWrite { visible, deletes_record, lease }
    }

    fn operations(
        &self,
        swap: &Swap<EtcdVersion>,
        visible: &str,
        record: &str,
    ) -> Result<Vec<RequestOp>> {
        let put = |key: &str, value: Vec<u8>, lease: Option<Int>| PutRequest {
            key: key.into(),
            value: message::EtcdBytes(value),
            lease,
            ignore_value: false,
            ignore_lease: false,
        };
        let term = swap.record.term.as_ref();
        let mut operations = Vec::new();
        match (&self.visible, term) {
            (VisibleWrite::Put, Some(term)) => {
                let id = term.candidate.as_str().as_bytes().to_vec();
                operations.push(RequestOp::Put(put(visible, id, Some(self.lease))));
            }
            (VisibleWrite::Again, _) => {
                let same = put(visible, Vec::new(), None);
                let same = PutRequest { ignore_value: true, ignore_lease: true, ..same };
                operations.push(RequestOp::Put(same));
            }
            (VisibleWrite::Delete, _) => {
                operations.push(RequestOp::Delete(DeleteRequest { key: visible.into() }));
            }
            (VisibleWrite::Put, None) | (VisibleWrite::Keep(_), _) => {}
        }
        if self.deletes_record {
            operations.push(RequestOp::Delete(DeleteRequest { key: record.into() }));
            return Ok(operations);
        }
        let extra = term.map(|_| EtcdTerm { lease: self.lease });
        let value = codec::encode_with(&swap.name, &swap.record, extra).map_err(|reason| {
            Error::invalid(format!("the record of '{}' cannot be written: {reason}", swap.name))
        })?;
        // The record of a participant is not needed after its end, and no process removes it if its holder was killed.
        let ends = (swap.record.ephemeral && term.is_some()).then_some(self.lease);
        operations.push(RequestOp::Put(put(record, value, ends)));
        Ok(operations)
    }

    /// The version after the write at this revision.
    fn version(&self, revision: Int) -> EtcdVersion {
        EtcdVersion {
            record: if self.deletes_record { Int(0) } else { revision },
            visible: match self.visible {
                VisibleWrite::Put | VisibleWrite::Again => revision,
                VisibleWrite::Keep(visible) => visible,
                VisibleWrite::Delete => Int(0),
            },
            lease: self.lease,
        }
    }
}

/// The candidate and TTL of the term that a swap begins or extends.
fn session_key(swap: &Swap<EtcdVersion>) -> Option<(&CandidateId, Duration)> {
    match swap.time {
        TermTime::Begins | TermTime::Extended => {
            swap.record.term.as_ref().map(|term| (&term.candidate, term.ttl))
        }
        TermTime::Unchanged | TermTime::None => None,
    }
}

/// What the two keys of a name mean.
fn entry(
    name: &Name,
    visible: Option<&EtcdKeyValue>,
    record: Option<&EtcdKeyValue>,
) -> Result<Option<Entry<EtcdVersion>>> {
    let record = match record {
        None => None,
        Some(value) => {
            let decoded: Decoded<EtcdTerm> = codec::decode_named(name, &value.value.0)?;
            Some((decoded, value.mod_revision))
        }
    };
    let Some(visible) = visible else {
        return Ok(record.map(|(decoded, revision)| {
            let version = EtcdVersion { record: revision, ..EtcdVersion::default() };
            Entry::Document(Document { record: decoded.record, version, left: Duration::ZERO })
        }));
    };
    if let Some((Decoded { record, extra: Some(EtcdTerm { lease }), .. }, revision)) = record
        && let Some(term) = &record.term
        && visible.lease == lease
        && visible.value.0 == term.candidate.as_str().as_bytes()
    {
        let (version, left) =
            (EtcdVersion { record: revision, visible: visible.mod_revision, lease }, term.ttl);
        return Ok(Some(Entry::Document(Document { record, version, left })));
    }
    let shown = &visible.value.0[..visible.value.0.len().min(SHOWN_ID_BYTES)];
    let id = String::from_utf8_lossy(shown).into_owned();
    Ok(Some(Entry::Foreign { id, left: FOREIGN_LEFT }))
}

fn leader_changed() -> Error {
    Error::unavailable("etcd's leader changed during the request, so its keepalive proves nothing")
}

#[async_trait]
impl Backend for EtcdBackend {
    type Version = EtcdVersion;

    const EXPIRY: Expiry = Expiry::ServerLease;

    fn limits(&self) -> Limits {
        let examined = self.settings().grade_a.load(Ordering::Relaxed);
        let grade = if examined { Grade::A } else { Grade::C };
        Limits { min_ttl: MIN_TTL, ..Limits::new(grade) }
    }

    fn url(&self) -> String {
        self.settings().target.url.clone()
    }

    fn detached(&self) -> Self {
        EtcdBackend::new(Arc::clone(&self.client.settings), self.clock.clone())
    }

    async fn read(&self, names: &[Name]) -> Result<Reading<EtcdVersion>> {
        let read = |names| self.read_entries(names);
        let entries = in_batches(names, MAX_TXN_OPERATIONS / 2, MAX_IN_FLIGHT, read).await?;
        Ok(Reading { store_time: None, entries })
    }

    async fn swap(&self, swaps: &[Swap<EtcdVersion>]) -> Result<Vec<Result<Swapped<EtcdVersion>>>> {
        let attaching = self.sessions.attaching();
        let sessions = self.attach(swaps).await;
        let swaps: Vec<_> = swaps.iter().zip(sessions).collect();
        let swapped = in_batches(&swaps, 1, MAX_IN_FLIGHT, async |swaps| {
            let [(swap, session)] = swaps else { return Err(wrong_count(1, swaps.len())) };
            Ok(vec![self.swap_one(swap, session.clone()).await])
        })
        .await;
        drop(attaching);
        if swaps.iter().any(|(swap, _)| swap.time == TermTime::None) {
            self.sessions.revoke_idle().await;
        }
        swapped
    }

    async fn touch(&self, holds: &[Hold], ttl: Duration) -> Option<Result<Vec<Result<Touched>>>> {
        // After a change of the leader, the second attempt is answered by the new one.
        for _ in 0..2 {
            match self.touch_once(holds, ttl).await {
                Ok(None) => {}
                Ok(Some(touched)) => return Some(Ok(touched)),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Err(leader_changed()))
    }

    async fn time_left(&self, versions: &[EtcdVersion]) -> Option<Result<Vec<Option<Duration>>>> {
        let mut leases: Vec<Int> = versions.iter().map(|version| version.lease).collect();
        leases.sort_unstable();
        leases.dedup();
        let times = in_batches(&leases, 1, MAX_IN_FLIGHT, async |leases| match leases {
            [lease] => Ok(vec![self.sessions.time_left(*lease).await]),
            _ => Err(wrong_count(1, leases.len())),
        });
        let times: Result<Vec<Option<Duration>>> = match times.await {
            Ok(times) => times.into_iter().collect(),
            Err(error) => Err(error),
        };
        Some(times.map(|times| {
            let times: HashMap<Int, Option<Duration>> = leases.into_iter().zip(times).collect();
            versions.iter().map(|version| times.get(&version.lease).copied().flatten()).collect()
        }))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let all = format!("{}{prefix}", self.settings().prefix);
        let mut request =
            RangeRequest { limit: Some(Int(PAGE_KEYS)), ..RangeRequest::prefix(&all).keys_only() };
        let mut names = Vec::new();
        loop {
            let answer = self.range(&request).await?;
            let keys = answer.kvs.iter();
            names.extend(keys.filter_map(|key| Some(self.settings().name_of(&key.key.0)?.0)));
            let Some(last) = answer.kvs.last().filter(|_| answer.more) else { break };
            let mut after = last.key.0.clone();
            after.push(0);
            request.key = message::EtcdBytes(after);
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn changes(&self, scope: &Scope) -> BoxStream<'static, Change> {
        watch::watch(Arc::clone(&self.client.settings), self.clock.clone(), scope.clone())
    }

    async fn examine(&self) -> Result<Report> {
        examine::examine(&self.client, &self.clock).await
    }
}
