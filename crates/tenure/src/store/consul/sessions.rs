//! Consul's sessions: one for each candidate and TTL, shared by all names that the candidate holds with that TTL.
//!
//! The time of every term under a session counts from before the session's last renewal was sent. Handles that renew and handles
//! that acquire share the sessions of one store.
//!
//! The keys of participants, which grant no right, are under a second session: Consul deletes them with it. The keys of leases
//! stay when their session ends, because their tokens must not be lost.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::StatusCode;

use super::client::ConsulClient;
use super::message::{ConsulSessionId, SessionInfo, SessionRequest, whole_seconds};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::lease::{CandidateId, Name};

/// What the names of Tenure's sessions begin with.
pub(super) const SESSION_NAME_PREFIX: &str = "tenure:";

/// The sessions of one store.
#[derive(Debug, Default)]
pub(super) struct ConsulSessions {
    known: Mutex<HashMap<SessionKey, KnownSession>>,
    /// Held while a session is created, so that two calls do not create two.
    creating: tokio::sync::Mutex<()>,
}

/// The terms that share a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    pub(super) candidate: CandidateId,
    pub(super) ttl: Duration,
    /// Whether the keys are deleted when the session ends.
    pub(super) ephemeral: bool,
}

#[derive(Debug)]
struct KnownSession {
    session: ConsulSession,
    /// The names that may be under it.
    names: HashSet<Name>,
}

/// A session and its last renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConsulSession {
    pub(super) id: ConsulSessionId,
    /// The clock before the last renewal was sent.
    pub(super) kept_at: Moment,
}

impl ConsulSessions {
    fn known(&self) -> MutexGuard<'_, HashMap<SessionKey, KnownSession>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session for these terms, renewed at most `max_age` ago. The caller locks these names with it.
    pub(super) async fn attach(
        &self,
        client: &ConsulClient,
        clock: &Clock,
        key: &SessionKey,
        names: &[Name],
        max_age: Duration,
    ) -> Result<ConsulSession> {
        let _creating = self.creating.lock().await;
        // The names come first: from now on, a release of the last other name does not destroy the session.
        let known = self.known().get_mut(key).map(|known| {
            known.names.extend(names.iter().cloned());
            known.session.clone()
        });
        if let Some(session) = known {
            if clock.now().since(session.kept_at) <= max_age {
                return Ok(session);
            }
            if let Some(session) = self.renew(client, clock, key, &session.id).await? {
                return Ok(session);
            }
        }
        let kept_at = clock.now();
        let id = create(client, key).await?;
        let session = ConsulSession { id, kept_at };
        let names = names.iter().cloned().collect();
        self.known().insert(key.clone(), KnownSession { session: session.clone(), names });
        Ok(session)
    }

    /// Renews the session of these terms; `None` if there is none, or Consul has ended it.
    pub(super) async fn keep_alive(
        &self,
        client: &ConsulClient,
        clock: &Clock,
        key: &SessionKey,
    ) -> Result<Option<ConsulSession>> {
        let id = self.known().get(key).map(|known| known.session.id.clone());
        match id {
            Some(id) => self.renew(client, clock, key, &id).await,
            None => Ok(None),
        }
    }

    async fn renew(
        &self,
        client: &ConsulClient,
        clock: &Clock,
        key: &SessionKey,
        id: &ConsulSessionId,
    ) -> Result<Option<ConsulSession>> {
        let kept_at = clock.now();
        let answer = client.put(&format!("/v1/session/renew/{id}"), Vec::new()).await?;
        let lives = match answer.status {
            StatusCode::OK => {
                let sessions: Vec<SessionInfo> = client.parsed(&answer)?;
                sessions.iter().any(|session| session.id == *id)
            }
            // Not the page of a proxy.
            StatusCode::NOT_FOUND if answer.body.starts_with(b"Session id") => false,
            _ => return Err(client.unexpected(&answer)),
        };
        let mut sessions = self.known();
        let Some(known) = sessions.get_mut(key).filter(|known| known.session.id == *id) else {
            // It was destroyed meanwhile, because its last name was released.
            return Ok(None);
        };
        if !lives {
            sessions.remove(key);
            return Ok(None);
        }
        let session = ConsulSession { id: id.clone(), kept_at };
        // Answers may arrive in another order than their requests.
        if known.session.kept_at < kept_at {
            known.session = session.clone();
        }
        Ok(Some(session))
    }

    /// Forgets a session that Consul has ended.
    pub(super) fn forget(&self, id: &ConsulSessionId) {
        self.known().retain(|_, known| known.session.id != *id);
    }

    /// A name was released, or is under another session now. A session without names is destroyed: nothing is left behind. It has
    /// no keys, so no lock-delay begins.
    pub(super) fn detach(
        &self,
        client: &Arc<ConsulClient>,
        name: &Name,
        keep: Option<&ConsulSessionId>,
    ) {
        let mut idle = Vec::new();
        self.known().retain(|_, known| {
            let is_idle = Some(&known.session.id) != keep
                && known.names.remove(name)
                && known.names.is_empty();
            if is_idle {
                idle.push(known.session.id.clone());
            }
            !is_idle
        });
        for id in idle {
            let client = Arc::clone(client);
            tokio::spawn(async move {
                // Otherwise it expires.
                if let Err(error) = destroy(&client, &id).await {
                    tracing::debug!(%error, "a session of Consul is not destroyed");
                }
            });
        }
    }
}

/// Creates a session.
pub(super) async fn create(client: &ConsulClient, key: &SessionKey) -> Result<ConsulSessionId> {
    let delay = match key.ephemeral {
        true => Duration::ZERO,
        false => client.settings.lock_delay(key.ttl),
    };
    let request = SessionRequest {
        name: format!("{SESSION_NAME_PREFIX}{}", key.candidate),
        ttl: whole_seconds(key.ttl),
        lock_delay: whole_seconds(delay),
        behavior: if key.ephemeral { "delete" } else { "release" },
        node_checks: [],
        checks: [],
    };
    let body = serde_json::to_vec(&request)
        .map_err(|error| Error::invalid(format!("a session cannot be requested: {error}")))?;
    let answer = client.put("/v1/session/create", body).await?;
    let session: SessionInfo = client.parsed(&answer)?;
    match answer.status == StatusCode::OK && !session.id.is_empty() {
        true => Ok(session.id),
        false => Err(client.unexpected(&answer)),
    }
}

/// Destroys a session. It is no error if there is none.
pub(super) async fn destroy(client: &ConsulClient, id: &ConsulSessionId) -> Result<()> {
    let answer = client.put(&format!("/v1/session/destroy/{id}"), Vec::new()).await?;
    match answer.body.trim_ascii() == b"true" {
        true => Ok(()),
        false => Err(client.unexpected(&answer)),
    }
}

/// What Consul knows about a session; `None` if it does not exist.
pub(super) async fn info(
    client: &ConsulClient,
    id: &ConsulSessionId,
) -> Result<Option<SessionInfo>> {
    let answer = client.get(&format!("/v1/session/info/{id}?consistent")).await?;
    let sessions: Vec<SessionInfo> = client.parsed(&answer)?;
    Ok(sessions.into_iter().next())
}
