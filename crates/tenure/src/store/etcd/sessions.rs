//! The etcd leases of this client: one for each candidate and TTL, shared by all names that the candidate holds with that TTL.
//!
//! A keepalive extends an etcd lease. The time of every term under it counts from before the last keepalive was sent. etcd's
//! leader answers keepalives from its memory, and so does a leader that was replaced and has not noticed it: its answer is worth
//! nothing. So a keepalive counts only together with a later linearizable answer of the same Raft term: a term has one leader,
//! and that answer shows that it was still the leader.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::de::IgnoredAny;

use super::client::{EtcdCallError, EtcdClient};
use super::message::{Int, LeaseGrantRequest, LeaseRequest, LeaseResponse, StreamItem};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::lease::{CandidateId, Name};

/// How long a release waits for the revocation of an etcd lease that is not needed any more.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(1);

/// A waiting candidate reads the remaining time of an etcd lease this long before the lease can expire, so that the reading
/// comes before the expiry.
const READ_BEFORE_EXPIRY: Duration = Duration::from_millis(100);

/// The etcd leases of one client.
#[derive(Debug)]
pub(super) struct EtcdSessions {
    client: Arc<EtcdClient>,
    clock: Clock,
    known: Mutex<HashMap<EtcdSessionKey, KnownEtcdSession>>,
    /// Held while an etcd lease is granted, so that two calls do not grant two.
    granting: tokio::sync::Mutex<()>,
    /// The number of calls that may be attaching keys now.
    attaching: AtomicUsize,
}

/// A call that may attach keys. Until it has ended, no etcd lease is revoked.
pub(super) struct Attaching<'a>(&'a AtomicUsize);

impl Drop for Attaching<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

type EtcdSessionKey = (CandidateId, Duration);

#[derive(Debug)]
struct KnownEtcdSession {
    session: EtcdSession,
    /// The names that may be attached to it.
    names: HashSet<Name>,
}

/// An etcd lease and its last keepalive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EtcdSession {
    pub(super) lease: Int,
    /// The clock before the last keepalive was sent.
    pub(super) kept_at: Moment,
    /// The Raft term in which it was answered.
    pub(super) raft_term: Int,
}

impl EtcdSessions {
    pub(super) fn new(client: Arc<EtcdClient>, clock: Clock) -> Self {
        let granting = tokio::sync::Mutex::default();
        let attaching = AtomicUsize::new(0);
        EtcdSessions { client, clock, known: Mutex::default(), granting, attaching }
    }

    /// Begins a call that may attach keys.
    pub(super) fn attaching(&self) -> Attaching<'_> {
        self.attaching.fetch_add(1, Ordering::SeqCst);
        Attaching(&self.attaching)
    }

    /// A key of this name was attached. An earlier release of the name may have detached it meanwhile.
    pub(super) fn attached(&self, name: &Name, lease: Int) {
        for known in self.known().values_mut().filter(|known| known.session.lease == lease) {
            known.names.insert(name.clone());
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<EtcdSessionKey, KnownEtcdSession>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session for the terms of this candidate and TTL, with a keepalive that is at most `max_age` old. The caller attaches
    /// these names to it.
    pub(super) async fn attach(
        &self,
        (candidate, ttl): (&CandidateId, Duration),
        names: &[Name],
        max_age: Duration,
    ) -> Result<EtcdSession> {
        let key = (candidate.clone(), ttl);
        let _granting = self.granting.lock().await;
        // The names come first: from now on, a release of the last other name does not revoke the lease.
        let known = self.known().get_mut(&key).map(|known| {
            known.names.extend(names.iter().cloned());
            known.session
        });
        if let Some(session) = known {
            if self.clock.now().since(session.kept_at) <= max_age {
                return Ok(session);
            }
            if let Some(session) = self.keep(&key, session.lease).await? {
                return Ok(session);
            }
        }
        let (sent, seconds) = (self.clock.now(), whole_seconds(ttl));
        let granted: LeaseResponse =
            self.client.call("lease/grant", &LeaseGrantRequest { ttl: seconds }).await?;
        if granted.ttl < seconds {
            return Err(Error::unavailable(format!(
                "etcd granted a lease of {} s where {} s were requested",
                granted.ttl.0, seconds.0
            )));
        }
        let raft_term = granted.header.raft_term;
        let session = EtcdSession { lease: granted.id, kept_at: sent, raft_term };
        let names = names.iter().cloned().collect();
        self.known().insert(key, KnownEtcdSession { session, names });
        Ok(session)
    }

    /// Keeps the session of this candidate and TTL alive; `None` if there is none, or etcd has ended it.
    pub(super) async fn keep_alive(
        &self,
        candidate: &CandidateId,
        ttl: Duration,
    ) -> Result<Option<EtcdSession>> {
        let key = (candidate.clone(), ttl);
        let lease = self.known().get(&key).map(|known| known.session.lease);
        match lease {
            Some(lease) => self.keep(&key, lease).await,
            None => Ok(None),
        }
    }

    async fn keep(&self, key: &EtcdSessionKey, lease: Int) -> Result<Option<EtcdSession>> {
        let sent = self.clock.now();
        let answer = self.client.call("lease/keepalive", &LeaseRequest { id: lease }).await;
        let answer: StreamItem<LeaseResponse> = match answer {
            Err(EtcdCallError::NoLease) => StreamItem::default(),
            answer => answer?,
        };
        if let Some(error) = &answer.error {
            match self.client.gateway_error(error) {
                EtcdCallError::NoLease => {}
                error => return Err(error.into()),
            }
        }
        let kept = answer.result.filter(|kept| kept.ttl > Int(0));
        let mut sessions = self.known();
        let Some(known) = sessions.get_mut(key).filter(|known| known.session.lease == lease) else {
            // It was revoked meanwhile, because its last name was released.
            return Ok(None);
        };
        let Some(kept) = kept else {
            sessions.remove(key);
            return Ok(None);
        };
        let session = EtcdSession { lease, kept_at: sent, raft_term: kept.header.raft_term };
        // Answers may arrive in another order than their requests.
        if known.session.kept_at < sent {
            known.session = session;
        }
        Ok(Some(session))
    }

    /// The time that an etcd lease has left at least; `None` if it does not exist any more. etcd answers in whole seconds.
    pub(super) async fn time_left(&self, lease: Int) -> Result<Option<Duration>> {
        let left: LeaseResponse =
            match self.client.call("lease/timetolive", &LeaseRequest { id: lease }).await {
                Err(EtcdCallError::NoLease) => return Ok(None),
                left => left?,
            };
        let Ok(seconds) = u64::try_from(left.ttl.0) else { return Ok(None) };
        Ok(Some(Duration::from_secs(seconds).saturating_sub(READ_BEFORE_EXPIRY)))
    }

    /// A name was released.
    pub(super) fn detach(&self, name: &Name) {
        for known in self.known().values_mut() {
            known.names.remove(name);
        }
    }

    /// Removes the sessions without names, unless a call may be attaching keys to one.
    fn take_idle(&self) -> Vec<Int> {
        let mut idle = Vec::new();
        let mut sessions = self.known();
        // A call that attaches keys is counted before it finds its session here.
        if self.attaching.load(Ordering::SeqCst) == 0 {
            sessions.retain(|_, known| {
                let is_idle = known.names.is_empty();
                idle.extend(is_idle.then_some(known.session.lease));
                !is_idle
            });
        }
        idle
    }

    /// Revokes etcd leases without names, so that a clean stop leaves nothing behind. One that is not revoked in time expires.
    pub(super) async fn revoke_idle(&self) {
        for id in self.take_idle() {
            let request = LeaseRequest { id };
            let revoked = self.client.call::<IgnoredAny>("lease/revoke", &request);
            if let Ok(Err(error)) = tokio::time::timeout(REVOKE_TIMEOUT, revoked).await {
                tracing::debug!(error = %Error::from(error), "an etcd lease is not revoked");
            }
        }
    }
}

/// etcd counts in whole seconds. Rounded up: the server must not expire a term before its holder does.
fn whole_seconds(ttl: Duration) -> Int {
    Int(i64::try_from(ttl.as_millis().div_ceil(1_000)).unwrap_or(i64::MAX))
}
