//! Asking something of a leader from outside. An ask is itself a short lease, `tenure:ask:NAME`, with the wish in its note:
//! only the holder ends a term, and the asker waits and reports.
//!
//! Whoever does what was asked of it by id releases the ask in the asker's name: that is the answer. An ask that runs out was
//! not answered. A resignation shows by itself, in the lease it is about.

use std::time::Duration;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lease::{
    Answer, CandidateId, Claim, ClaimedWait, Hold, Lease, Name, Nonce, Note, Release, Token,
};
use crate::machine::Request;
use crate::store::{Scope, Store};

/// How often an asker looks by itself.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What is asked, as it stands in the note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase", deny_unknown_fields)]
pub enum RemoteRequest {
    /// Whoever leads: resign, and let this one come next.
    Resign {
        /// A hint, no right.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        to: Option<String>,
    },
    /// This candidate: stop leading, and do not campaign.
    Drain {
        /// Whom it is for.
        id: String,
    },
    /// This candidate: campaign again.
    Undrain {
        /// Whom it is for.
        id: String,
    },
}

/// How an ask came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// It was done, or there was nothing to do; who leads now, if anybody.
    Done(Option<String>),
    /// The leader has not done it in the time given; who leads.
    NoAnswer(Option<String>),
}

/// An ask that concerns the candidate that read it.
pub(crate) struct ReceivedRequest {
    pub(crate) token: Token,
    pub(crate) ask: Request,
    /// Released when it is done; `None` where the doing shows by itself.
    pub(crate) answer: Option<Release>,
}

/// Reads an ask as `candidate` would: `None` if there is none, or it is for somebody else, or cannot be read.
pub(crate) fn read(lease: &Lease, candidate: &CandidateId) -> Option<ReceivedRequest> {
    let (token, holder) = (lease.token?, lease.holder.as_ref()?);
    let for_us = |id: &str| id == candidate.as_str();
    let (ask, shows) = match serde_json::from_str(lease.note.as_str()).ok()? {
        RemoteRequest::Resign { to: None } => (Request::Resign(None), true),
        RemoteRequest::Resign { to: Some(to) } => {
            (Request::Resign(Some(CandidateId::new(&to).ok()?)), true)
        }
        RemoteRequest::Drain { id } if for_us(&id) => (Request::Drain, false),
        RemoteRequest::Undrain { id } if for_us(&id) => (Request::Undrain, false),
        RemoteRequest::Drain { .. } | RemoteRequest::Undrain { .. } => return None,
    };
    let hold = Hold {
        name: lease.name.clone(),
        candidate: CandidateId::new(&holder.id).ok()?,
        nonce: holder.nonce?,
        token,
    };
    Some(ReceivedRequest { token, ask, answer: (!shows).then(|| Release::from(hold)) })
}

/// Asks something of the leader of `name`, waits up to `wait`, and reports.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use std::time::Duration;
/// use tenure::ask::{Reply, Wish, ask};
///
/// let store = tenure::open("memory:").await?;
/// let name = tenure::Name::new("ask:example")?;
/// let reply = ask(&*store, &name, &Wish::Resign { to: None }, Duration::from_secs(1)).await?;
/// assert_eq!(reply, Reply::Done(None)); // nobody led
/// # Ok(()) }
/// ```
///
/// # Errors
/// Unavailable also when somebody else is asking something of the same name all the time.
pub async fn send(
    store: &dyn Store,
    name: &Name,
    wish: &RemoteRequest,
    wait: Duration,
) -> Result<RequestOutcome> {
    let clock = Clock::boot();
    let give_up = clock.now() + wait;
    let leader = leader_of(store, name).await?;
    if !wish.wants(leader.as_ref()) {
        return Ok(RequestOutcome::Done(leader.map(|(id, _)| id)));
    }
    let mut changes = store.watch(&Scope::Names(vec![name.clone(), name.ask()]));
    let hold = loop {
        if let Some(hold) = take(store, name, wish, wait).await? {
            break hold;
        }
        tokio::select! {
            _ = changes.next() => {}
            () = clock.sleep_until(give_up) => return Err(Error::unavailable(format!(
                "somebody else is asking something of the leader of '{name}': try again in a moment"
            ))),
        }
    };
    let reply = loop {
        let now = leader_of(store, name).await?;
        let answered = !is_held(store, &hold).await?;
        let id = now.as_ref().map(|(id, _)| id.clone());
        if wish.is_done(answered, leader.as_ref(), now.as_ref()) {
            break RequestOutcome::Done(id);
        }
        if clock.now() >= give_up {
            break RequestOutcome::NoAnswer(id);
        }
        tokio::select! {
            _ = changes.next() => {}
            // A hint may be lost.
            () = clock.sleep_until(give_up.min(clock.now() + LOOK_EVERY)) => {}
        }
    };
    // What stays behind runs out by itself.
    let _ = store.release(&[Release::from(hold)]).await;
    Ok(reply)
}

/// Who leads, and in which term.
type KnownLeader = (String, Option<Token>);

impl RemoteRequest {
    /// Whether there is anything to ask for.
    fn wants(&self, leader: Option<&KnownLeader>) -> bool {
        match self {
            RemoteRequest::Resign { to } => {
                leader.is_some_and(|(id, _)| to.as_ref().is_none_or(|to| to != id))
            }
            RemoteRequest::Drain { .. } | RemoteRequest::Undrain { .. } => true,
        }
    }

    /// Whether what can be seen from outside has come about.
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
    let lease = store.observe(&Scope::name(name)).await?.pop().transpose()?;
    Ok(lease.and_then(|lease| Some((lease.leader()?.to_owned(), lease.token))))
}

async fn is_held(store: &dyn Store, hold: &Hold) -> Result<bool> {
    let lease = store.observe(&Scope::name(&hold.name)).await?.pop().transpose()?;
    Ok(lease.is_some_and(|lease| lease.holder.is_some() && lease.token == Some(hold.token)))
}

async fn take(
    store: &dyn Store,
    name: &Name,
    wish: &RemoteRequest,
    wait: Duration,
) -> Result<Option<Hold>> {
    let limits = store.limits();
    let ttl = (wait + Duration::from_secs(1)).clamp(limits.min_ttl, limits.max_ttl);
    let mut claim = Claim::new(name.ask(), CandidateId::generate(), Nonce::random(), ttl);
    let wish = serde_json::to_string(wish)
        .map_err(|error| Error::invalid("the ask cannot be written").caused_by(error))?;
    claim.note = Note::new(&wish)?;
    claim.wait = ClaimedWait::Never;
    let answer = store.acquire(&[claim]).await?.pop().transpose()?;
    Ok(match answer {
        Some(Answer::Held(grant)) => Some(grant.hold),
        Some(Answer::Taken(_)) | None => None,
    })
}
