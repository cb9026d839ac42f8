//! Requests to a leader from outside: resign, drain and undrain. A request is itself a short lease, `tenure:ask:NAME`, with the
//! request in its note. Only the holder ends a term; the sender waits and reports the outcome.
//!
//! A candidate that carries out a request addressed to its id releases the request lease in the sender's name: that is the
//! answer. A request whose lease expires was not answered. A resign request needs no answer, because the sender observes the
//! result in the lease of `NAME`.

use std::time::Duration;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lease::{
    CandidateId, Claim, ClaimedWait, Hold, Lease, Name, Nonce, Note, Release, Token,
};
use crate::machine::Request;
use crate::store::{Scope, Store, StoreExt as _};

/// How often the sender polls the store, in addition to watching it.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A request as the note contains it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase", deny_unknown_fields)]
pub enum RemoteRequest {
    /// The leader: resign, and name this candidate as the successor.
    Resign {
        /// The preferred successor: a hint, no right.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        to: Option<String>,
    },
    /// This candidate: stop leading, and do not campaign.
    Drain {
        /// The id of the candidate that the request is for.
        id: String,
    },
    /// This candidate: campaign again.
    Undrain {
        /// The id of the candidate that the request is for.
        id: String,
    },
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The request was carried out, or there was nothing to do. The id of the current leader, if there is one.
    Done(Option<String>),
    /// The candidate did not carry out the request in time. The id of the current leader, if there is one.
    NoAnswer(Option<String>),
}

/// A request that concerns the candidate that read it.
pub(crate) struct ReceivedRequest {
    pub(crate) token: Token,
    pub(crate) request: Request,
    /// The lease to release when the request was carried out; `None` if the sender observes the result itself.
    pub(crate) answer: Option<Release>,
}

/// Reads a request as `candidate`. Returns `None` if there is none, it is for another candidate, or it cannot be parsed.
pub(crate) fn read(lease: &Lease, candidate: &CandidateId) -> Option<ReceivedRequest> {
    let (token, holder) = (lease.token?, lease.holder.as_ref()?);
    let is_for_candidate = |id: &str| id == candidate.as_str();
    let (request, is_visible) = match serde_json::from_str(lease.note.as_str()).ok()? {
        RemoteRequest::Resign { to: None } => (Request::Resign(None), true),
        RemoteRequest::Resign { to: Some(to) } => {
            (Request::Resign(Some(CandidateId::new(&to).ok()?)), true)
        }
        RemoteRequest::Drain { id } if is_for_candidate(&id) => (Request::Drain, false),
        RemoteRequest::Undrain { id } if is_for_candidate(&id) => (Request::Undrain, false),
        RemoteRequest::Drain { .. } | RemoteRequest::Undrain { .. } => return None,
    };
    let hold = Hold {
        name: lease.name.clone(),
        candidate: CandidateId::new(&holder.id).ok()?,
        nonce: holder.nonce?,
        token,
    };
    Some(ReceivedRequest { token, request, answer: (!is_visible).then(|| Release::from(hold)) })
}

/// Sends a request to the leader of `name`, waits up to `wait`, and reports the outcome.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use std::time::Duration;
/// use tenure::request::{RemoteRequest, RequestOutcome, send};
///
/// let store = tenure::open("memory:").await?;
/// let name = tenure::Name::new("ask:example")?;
/// let request = RemoteRequest::Resign { to: None };
/// let outcome = send(&*store, &name, &request, Duration::from_secs(1)).await?;
/// assert_eq!(outcome, RequestOutcome::Done(None)); // no candidate led
/// # Ok(()) }
/// ```
///
/// # Errors
/// Unavailable also if other senders have a request for the same name pending the whole time.
pub async fn send(
    store: &dyn Store,
    name: &Name,
    request: &RemoteRequest,
    wait: Duration,
) -> Result<RequestOutcome> {
    let clock = Clock::boot();
    let give_up = clock.now() + wait;
    let leader = leader_of(store, name).await?;
    if !request.is_needed(leader.as_ref()) {
        return Ok(RequestOutcome::Done(leader.map(|(id, _)| id)));
    }
    let mut changes = store.watch(&Scope::Names(vec![name.clone(), name.request_name()]));
    let hold = loop {
        if let Some(hold) = claim_request(store, name, request, wait).await? {
            break hold;
        }
        tokio::select! {
            _ = changes.next() => {}
            () = clock.sleep_until(give_up) => return Err(Error::unavailable(format!(
                "another request to the leader of '{name}' is in progress: try again in a moment"
            ))),
        }
    };
    let outcome = loop {
        let now = leader_of(store, name).await?;
        let answered = !is_held(store, &hold).await?;
        let id = now.as_ref().map(|(id, _)| id.clone());
        if request.is_done(answered, leader.as_ref(), now.as_ref()) {
            break RequestOutcome::Done(id);
        }
        if clock.now() >= give_up {
            break RequestOutcome::NoAnswer(id);
        }
        tokio::select! {
            _ = changes.next() => {}
            // A hint may be lost.
            () = clock.sleep_until(give_up.min(clock.now() + POLL_INTERVAL)) => {}
        }
    };
    // If this release fails, the request lease expires by itself.
    let _ = store.release_one(hold).await;
    Ok(outcome)
}

/// The id of the leader, and the token of its term.
type KnownLeader = (String, Option<Token>);

impl RemoteRequest {
    /// Whether the request has to be sent at all.
    fn is_needed(&self, leader: Option<&KnownLeader>) -> bool {
        match self {
            RemoteRequest::Resign { to } => {
                leader.is_some_and(|(id, _)| to.as_ref().is_none_or(|to| to != id))
            }
            RemoteRequest::Drain { .. } | RemoteRequest::Undrain { .. } => true,
        }
    }

    /// Whether the store shows that the request was carried out.
    fn is_done(
        &self,
        answered: bool,
        before: Option<&KnownLeader>,
        now: Option<&KnownLeader>,
    ) -> bool {
        match self {
            RemoteRequest::Resign { .. } => {
                before.map(|(_, token)| token) != now.map(|(_, token)| token)
            }
            RemoteRequest::Drain { id } => answered && now.is_none_or(|(leader, _)| leader != id),
            RemoteRequest::Undrain { .. } => answered,
        }
    }
}

async fn leader_of(store: &dyn Store, name: &Name) -> Result<Option<KnownLeader>> {
    let lease = store.observe_one(name).await?;
    Ok(lease.and_then(|lease| Some((lease.leader()?.to_owned(), lease.token))))
}

async fn is_held(store: &dyn Store, hold: &Hold) -> Result<bool> {
    let lease = store.observe_one(&hold.name).await?;
    Ok(lease.is_some_and(|lease| lease.holder.is_some() && lease.token == Some(hold.token)))
}

async fn claim_request(
    store: &dyn Store,
    name: &Name,
    request: &RemoteRequest,
    wait: Duration,
) -> Result<Option<Hold>> {
    let limits = store.limits();
    let ttl = (wait + Duration::from_secs(1)).clamp(limits.min_ttl, limits.max_ttl);
    let mut claim = Claim::new(name.request_name(), CandidateId::generate(), Nonce::random(), ttl);
    let note = serde_json::to_string(request)
        .map_err(|error| Error::invalid("the ask cannot be written").caused_by(error))?;
    claim.note = Note::new(&note)?;
    claim.wait = ClaimedWait::Never;
    Ok(store.acquire_one(&claim).await?.held().map(|grant| grant.hold))
}
