//! A service that keeps documents, in memory: the backend that tests the compare-and-swap layer.
//!
//! It is a fake, written to the worst that real services do. Its leases expire in each of the three ways, a session is shared
//! by all leases of a candidate and TTL and is not extended by a grant, and a test can make the next swaps of one client
//! conflict, lose their replies, wait, or arrive late, and can end a session before its time.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use tenure::store::cas::{
    Backend, Condition, Document, Entry, Expiry, ForeignDocument, ForeignHolder, Reading, Swap,
    Swapped, TermTime, Touched,
};
use tenure::store::codec;
use tenure::store::{Change, Grade, Limits, Report, Scope};
use tenure::{CandidateId, Clock, Error, Hold, Moment, Name, Result, StoreTime};
use tokio::sync::{Semaphore, broadcast};

/// A way in which leases expire, as a type.
pub trait ExpiryKind: fmt::Debug + Send + Sync + 'static {
    /// The value of [`Backend::EXPIRY`].
    const EXPIRY: Expiry;
}

/// The service has a clock.
#[derive(Debug)]
pub struct StoreClock;

/// The service ends sessions.
#[derive(Debug)]
pub struct ServerLease;

/// The service does neither.
#[derive(Debug)]
pub struct Observation;

impl ExpiryKind for StoreClock {
    const EXPIRY: Expiry = Expiry::StoreClock;
}

impl ExpiryKind for ServerLease {
    const EXPIRY: Expiry = Expiry::ServerLease;
}

impl ExpiryKind for Observation {
    const EXPIRY: Expiry = Expiry::Observation;
}

/// The server: documents and sessions.
#[derive(Debug)]
pub struct DocumentService {
    clock: Clock,
    expiry: Expiry,
    state: Mutex<ServiceState>,
}

#[derive(Debug)]
struct ServiceState {
    documents: HashMap<Name, StoredDocument>,
    sessions: HashMap<SessionId, ServerSession>,
    /// The number of the last write.
    revision: u64,
    changes: broadcast::Sender<Change>,
    /// Swaps that were sent and have not arrived yet.
    late: Vec<(Swap<u64>, Option<SessionId>)>,
}

type SessionId = u64;

#[derive(Debug)]
struct ServerSession {
    candidate: CandidateId,
    expires: Moment,
}

#[derive(Debug)]
struct StoredDocument {
    content: Content,
    version: u64,
    /// When the term ends, on the service's clock.
    until: Moment,
    session: Option<SessionId>,
}

#[derive(Debug)]
enum Content {
    Bytes(Vec<u8>),
    /// A holder of another program, and the record that it was written over.
    Foreign {
        id: String,
        ttl: Duration,
        until: Moment,
        record: Option<Vec<u8>>,
    },
    Locked,
}

/// What happens to a swap.
#[derive(Clone, Debug)]
pub enum SwapFault {
    /// The service answers with a conflict and writes nothing.
    Conflict,
    /// The service writes, and the reply is lost.
    LoseReply,
    /// The request is lost.
    LoseRequest,
    /// The request arrives when the test calls [`DocumentService::deliver_late`]; the client has no answer.
    ArriveLate,
    /// The request waits until the semaphore has a permit.
    Wait(Arc<Semaphore>),
    /// The service writes at once, and the reply waits until the semaphore has a permit.
    DelayReply(Arc<Semaphore>),
}

impl DocumentService {
    /// An empty service on this clock, whose leases expire in this way.
    pub fn new(clock: Clock, expiry: Expiry) -> Arc<Self> {
        Arc::new(DocumentService {
            clock,
            expiry,
            state: Mutex::new(ServiceState {
                documents: HashMap::new(),
                sessions: HashMap::new(),
                revision: 0,
                changes: broadcast::channel(1024).0,
                late: Vec::new(),
            }),
        })
    }

    /// Ends all sessions of a candidate before their time.
    pub fn end_sessions(&self, candidate: &CandidateId) {
        self.state().sessions.retain(|_, session| session.candidate != *candidate);
    }

    /// Lets the swaps arrive that were sent with [`SwapFault::ArriveLate`]. Returns how many wrote something.
    pub fn deliver_late(&self) -> usize {
        let now = self.clock.now();
        let mut state = self.state();
        let late = std::mem::take(&mut state.late);
        let arrived = late.iter().filter(|(swap, session)| {
            matches!(state.swap(swap, self.expiry, *session, now), Ok(Swapped::Done { .. }))
        });
        arrived.count()
    }

    /// Ends all subscriptions, as a restart does. Documents and sessions are kept.
    pub fn restart(&self) {
        self.state().changes = broadcast::channel(1024).0;
    }

    /// Stores these bytes under a name.
    pub fn put_bytes(&self, name: &Name, bytes: Vec<u8>) {
        self.put(name, Content::Bytes(bytes));
    }

    /// Stores a holder of another program under a name.
    pub fn put_foreign(&self, name: &Name, id: &str, ttl: Duration) {
        let (until, record) = (self.clock.now() + ttl, self.bytes(name));
        self.put(name, Content::Foreign { id: id.to_owned(), ttl, until, record });
    }

    /// Makes every access to a name fail.
    pub fn lock(&self, name: &Name) {
        self.put(name, Content::Locked);
    }

    /// The bytes under a name.
    pub fn bytes(&self, name: &Name) -> Option<Vec<u8>> {
        match self.state().documents.get(name).map(|document| &document.content) {
            Some(Content::Bytes(bytes)) => Some(bytes.clone()),
            _ => None,
        }
    }

    /// The number of sessions that live.
    pub fn live_sessions(&self) -> usize {
        let now = self.clock.now();
        let mut state = self.state();
        state.expire(now);
        state.sessions.len()
    }

    fn put(&self, name: &Name, content: Content) {
        let mut state = self.state();
        state.revision += 1;
        let (version, until) = (state.revision, Moment::PAST);
        let document = StoredDocument { content, version, until, session: None };
        state.documents.insert(name.clone(), document);
    }

    fn state(&self) -> MutexGuard<'_, ServiceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServiceState {
    fn expire(&mut self, now: Moment) {
        self.sessions.retain(|_, session| now < session.expires);
    }

    /// The session that holds a document, if it lives.
    fn session_of(&self, document: &StoredDocument) -> Option<&ServerSession> {
        self.sessions.get(&document.session?)
    }

    fn entry(&self, name: &Name, expiry: Expiry, now: Moment) -> Result<Option<Entry<u64>>> {
        let Some(document) = self.documents.get(name) else { return Ok(None) };
        match &document.content {
            Content::Locked => Err(Error::unavailable(format!("'{name}' is locked"))),
            // Without a clock and without sessions, the service knows only what was written.
            Content::Foreign { id, ttl, record, .. } if expiry == Expiry::Observation => {
                let holder = Some(ForeignHolder { id: id.clone(), ttl: *ttl });
                let record = record.as_ref().map(|bytes| codec::decode(name, bytes)).transpose()?;
                let version = document.version;
                Ok(Some(Entry::ForeignDocument(ForeignDocument { version, holder, record })))
            }
            Content::Foreign { until, .. } if now >= *until => Ok(None),
            Content::Foreign { id, until, .. } => {
                Ok(Some(Entry::Foreign { id: id.clone(), left: until.since(now) }))
            }
            Content::Bytes(bytes) => {
                let left = match expiry {
                    Expiry::StoreClock => document.until.since(now),
                    Expiry::ServerLease => self
                        .session_of(document)
                        .map_or(Duration::ZERO, |session| session.expires.since(now)),
                    Expiry::Observation => Duration::ZERO,
                };
                let record = codec::decode(name, bytes)?;
                Ok(Some(Entry::Document(Document { record, version: document.version, left })))
            }
        }
    }

    fn swap(
        &mut self,
        swap: &Swap<u64>,
        expiry: Expiry,
        session: Option<SessionId>,
        now: Moment,
    ) -> Result<Swapped<u64>> {
        let found = self.documents.get(&swap.name);
        let found = found.filter(|document| match document.content {
            Content::Foreign { until, .. } => expiry == Expiry::Observation || now < until,
            Content::Bytes(_) | Content::Locked => true,
        });
        let as_expected = found.map(|document| document.version) == swap.expected;
        let in_session = found.is_some_and(|found| self.session_of(found).is_some());
        let condition = match (swap.condition, expiry) {
            (Condition::None, _) | (_, Expiry::Observation) => true,
            (Condition::TermIsLive, Expiry::StoreClock) => {
                found.is_some_and(|found| now < found.until)
            }
            (Condition::TermIsOver, Expiry::StoreClock) => true,
            (Condition::TermIsLive, Expiry::ServerLease) => in_session,
            (Condition::TermIsOver, Expiry::ServerLease) => !in_session,
        };
        if !as_expected || !condition {
            return Ok(Swapped::Conflict);
        }
        let (until, kept_session) =
            found.map_or((Moment::PAST, None), |found| (found.until, found.session));
        let ttl = swap.record.term.as_ref().map_or(Duration::ZERO, |term| term.ttl);
        self.revision += 1;
        let version = self.revision;
        let document = StoredDocument {
            content: Content::Bytes(codec::encode(&swap.name, &swap.record)?),
            version,
            until: match swap.time {
                TermTime::Begins | TermTime::Extended => now + ttl,
                TermTime::Unchanged => until,
                TermTime::None => Moment::PAST,
            },
            session: match swap.time {
                TermTime::Begins | TermTime::Extended => session,
                TermTime::Unchanged => kept_session,
                TermTime::None => None,
            },
        };
        self.documents.insert(swap.name.clone(), document);
        self.notify(swap);
        Ok(Swapped::Done { version, counts_from: None })
    }

    fn notify(&self, swap: &Swap<u64>) {
        let (name, record) = (swap.name.clone(), &swap.record);
        let change = match (swap.time, &record.term) {
            (TermTime::Begins, Some(term)) => {
                let holder = Some(term.candidate.clone());
                Change::Granted { name, token: record.token, holder }
            }
            (TermTime::None, _)
                if record.next.is_some() || !matches!(record.before, tenure::Ended::Expired(_)) =>
            {
                Change::Freed { name, next: record.next.clone() }
            }
            (TermTime::Extended, _) => return,
            _ => Change::Look,
        };
        // An error only means that there is no subscriber.
        let _ = self.changes.send(change);
    }
}

/// One client of a [`DocumentService`].
pub struct DocumentBackend<K> {
    service: Arc<DocumentService>,
    /// The time of this client; it may differ from the service's.
    clock: Clock,
    touches: bool,
    faults: Mutex<VecDeque<SwapFault>>,
    /// The number of reads that report every term as over.
    reads_over: AtomicUsize,
    sessions: Mutex<HashMap<(CandidateId, Duration), ClientSession>>,
    kind: PhantomData<K>,
}

#[derive(Clone, Copy, Debug)]
struct ClientSession {
    id: SessionId,
    /// The clock of this client before the last keepalive that succeeded.
    kept_at: Moment,
}

impl<K> fmt::Debug for DocumentBackend<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DocumentBackend(touches: {})", self.touches)
    }
}

impl<K: ExpiryKind> DocumentBackend<K> {
    /// A client. `touches`: it renews in one round trip.
    pub fn new(service: &Arc<DocumentService>, touches: bool) -> Self {
        assert_eq!(service.expiry, K::EXPIRY);
        DocumentBackend {
            service: Arc::clone(service),
            clock: service.clock.clone(),
            touches,
            faults: Mutex::default(),
            reads_over: AtomicUsize::new(0),
            sessions: Mutex::default(),
            kind: PhantomData,
        }
    }

    /// Makes the next read report that every term is over, as a service does whose clock ran ahead for a moment, or that reads
    /// from a replica.
    pub fn read_over_once(&self) {
        self.reads_over.store(1, Ordering::SeqCst);
    }

    /// Adds a fault for the next call of `swap` that has none yet.
    pub fn fail_next(&self, fault: SwapFault) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push_back(fault);
    }

    fn next_fault(&self) -> Option<SwapFault> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// The session for the term that a swap begins or extends. An existing session is not extended by it.
    fn session(
        &self,
        state: &mut ServiceState,
        swap: &Swap<u64>,
        now: Moment,
    ) -> Option<ClientSession> {
        if K::EXPIRY != Expiry::ServerLease
            || !matches!(swap.time, TermTime::Begins | TermTime::Extended)
        {
            return None;
        }
        let term = swap.record.term.as_ref()?;
        let key = (term.candidate.clone(), term.ttl);
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let live = sessions.get(&key).filter(|session| state.sessions.contains_key(&session.id));
        if let (Some(session), TermTime::Begins) = (live, swap.time) {
            return Some(*session);
        }
        let id = live.map_or(state.revision + 1, |session| session.id);
        state.revision += 1;
        let expires = now + term.ttl;
        state.sessions.insert(id, ServerSession { candidate: term.candidate.clone(), expires });
        let session = ClientSession { id, kept_at: self.clock.now() };
        sessions.insert(key, session);
        Some(session)
    }

    fn swap_now(&self, swaps: &[Swap<u64>]) -> Vec<Result<Swapped<u64>>> {
        let now = self.service.clock.now();
        let mut state = self.service.state();
        state.expire(now);
        let swap = |swap: &Swap<u64>| {
            let session = self.session(&mut state, swap, now);
            let session_id = session.map(|session| session.id);
            let swapped = state.swap(swap, K::EXPIRY, session_id, now)?;
            Ok(match swapped {
                Swapped::Conflict => Swapped::Conflict,
                Swapped::Done { version, .. } => {
                    Swapped::Done { version, counts_from: session.map(|session| session.kept_at) }
                }
            })
        };
        swaps.iter().map(swap).collect()
    }

    fn touch_one(&self, state: &mut ServiceState, hold: &Hold, ttl: Duration) -> Result<Touched> {
        let now = self.service.clock.now();
        let Some(Entry::Document(found)) = state.entry(&hold.name, K::EXPIRY, now)? else {
            return Ok(Touched::Unknown);
        };
        let same_ttl = found.record.term.as_ref().is_some_and(|term| term.ttl == ttl);
        if !same_ttl || !found.record.is_term_of(hold) {
            return Ok(Touched::Unknown);
        }
        state.revision += 1;
        let revision = state.revision;
        let Some(document) = state.documents.get_mut(&hold.name) else {
            return Ok(Touched::Unknown);
        };
        match K::EXPIRY {
            Expiry::StoreClock if found.left.is_zero() => return Ok(Touched::Unknown),
            Expiry::StoreClock => (document.until, document.version) = (now + ttl, revision),
            Expiry::Observation => return Ok(Touched::Unknown),
            Expiry::ServerLease => return Ok(self.keep_alive(state, hold, ttl, now)),
        }
        Ok(Touched::Renewed)
    }

    /// Keeps the session of a hold alive. The document stays unchanged.
    fn keep_alive(
        &self,
        state: &mut ServiceState,
        hold: &Hold,
        ttl: Duration,
        now: Moment,
    ) -> Touched {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (hold.candidate.clone(), ttl);
        let Some(session) = sessions.get_mut(&key) else { return Touched::Unknown };
        let holds = state.documents.get(&hold.name).and_then(|document| document.session);
        match state.sessions.get_mut(&session.id) {
            Some(server) if holds == Some(session.id) => {
                server.expires = now + ttl;
                session.kept_at = self.clock.now();
                Touched::Renewed
            }
            _ => Touched::Unknown,
        }
    }
}

#[async_trait]
impl<K: ExpiryKind> Backend for DocumentBackend<K> {
    type Version = u64;

    const EXPIRY: Expiry = K::EXPIRY;

    fn limits(&self) -> Limits {
        Limits::new(Grade::A)
    }

    fn url(&self) -> String {
        "documents:".to_owned()
    }

    fn detached(&self) -> Self {
        DocumentBackend::new(&self.service, self.touches)
    }

    async fn read(&self, names: &[Name]) -> Result<Reading<u64>> {
        let now = self.service.clock.now();
        let mut state = self.service.state();
        state.expire(now);
        let store_time = match K::EXPIRY {
            Expiry::StoreClock => Some(StoreTime(now.as_nanos() / 1_000)),
            Expiry::ServerLease | Expiry::Observation => None,
        };
        let mut entries: Vec<_> =
            names.iter().map(|name| state.entry(name, K::EXPIRY, now)).collect();
        if self.reads_over.swap(0, Ordering::SeqCst) > 0 {
            for entry in &mut entries {
                if let Ok(Some(Entry::Document(document))) = entry {
                    document.left = Duration::ZERO;
                }
            }
        }
        Ok(Reading { store_time, entries })
    }

    async fn swap(&self, swaps: &[Swap<u64>]) -> Result<Vec<Result<Swapped<u64>>>> {
        let lost = || Error::unavailable("no answer");
        match self.next_fault() {
            None => Ok(self.swap_now(swaps)),
            Some(SwapFault::Conflict) => Ok(swaps.iter().map(|_| Ok(Swapped::Conflict)).collect()),
            Some(SwapFault::LoseReply) => {
                self.swap_now(swaps);
                Err(lost())
            }
            Some(SwapFault::LoseRequest) => Err(lost()),
            Some(SwapFault::ArriveLate) => {
                let now = self.service.clock.now();
                let mut state = self.service.state();
                for swap in swaps {
                    let session = self.session(&mut state, swap, now).map(|session| session.id);
                    state.late.push((swap.clone(), session));
                }
                Err(lost())
            }
            Some(SwapFault::DelayReply(permits)) => {
                let swapped = self.swap_now(swaps);
                permits.acquire().await.map_err(|_| lost())?.forget();
                Ok(swapped)
            }
            Some(SwapFault::Wait(permits)) => {
                permits.acquire().await.map_err(|_| lost())?.forget();
                Ok(self.swap_now(swaps))
            }
        }
    }

    async fn touch(&self, holds: &[Hold], ttl: Duration) -> Option<Result<Vec<Result<Touched>>>> {
        if !self.touches {
            return None;
        }
        let mut state = self.service.state();
        state.expire(self.service.clock.now());
        Some(Ok(holds.iter().map(|hold| self.touch_one(&mut state, hold, ttl)).collect()))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let state = self.service.state();
        let names = state.documents.keys().filter(|name| name.as_str().starts_with(prefix));
        Ok(names.cloned().collect())
    }

    fn changes(&self, scope: &Scope) -> BoxStream<'static, Change> {
        let (service, scope) = (Arc::clone(&self.service), scope.clone());
        let changes = service.state().changes.subscribe();
        let later =
            stream::unfold((service, changes, scope), async |(service, mut changes, scope)| {
                loop {
                    let change = match changes.recv().await {
                        Ok(change) => change,
                        Err(broadcast::error::RecvError::Lagged(_)) => Change::Look,
                        Err(broadcast::error::RecvError::Closed) => {
                            changes = service.state().changes.subscribe();
                            Change::Look
                        }
                    };
                    if change.concerns(&scope) {
                        return Some((change, (service, changes, scope)));
                    }
                }
            });
        stream::iter([Change::Look]).chain(later).boxed()
    }

    async fn examine(&self) -> Result<Report> {
        Ok(Report {
            what: "documents in memory".to_owned(),
            grade: Grade::A,
            round_trip: Duration::ZERO,
            checks: Vec::new(),
        })
    }
}
