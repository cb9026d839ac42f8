//! `POST /resign`, `/drain`, `/undrain`: for those who know the secret.
//!
//! Each is answered when it was passed on and we have stopped saying that we lead, not when somebody else leads: that is
//! seen in the status. A candidate is told directly. Drains are kept in the store, for the members of a fleet and for the
//! candidate's next process.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use tenure::fleet::overrides::{self, Overrides};
use tenure::presence::present;
use tenure::{CandidateId, Clock, Moment, Name};

use super::auth;
use super::candidate::HttpCandidate;
use super::limits::BODY;
use super::participant::Participant;
use super::response::{self, HttpError};
use super::routes::App;
use crate::candidate::Candidate;
use crate::resign::successor::{self, SuccessorCheck};
use crate::store_access;

/// So long we wait until the election or the fleet has heard of it.
const HEARD_WITHIN: Duration = Duration::from_millis(500);
/// Those who try secrets fill no log.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlRequest {
    Resign,
    Drain,
    Undrain,
}

impl ControlRequest {
    fn word(self) -> &'static str {
        match self {
            ControlRequest::Resign => "resign",
            ControlRequest::Drain => "drain",
            ControlRequest::Undrain => "undrain",
        }
    }
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ControlBody {
    to: Option<String>,
}

/// Does what is asked for, or says why not.
pub(super) async fn carry_out(
    app: &App,
    wish: ControlRequest,
    request: Request,
) -> Result<Response, HttpError> {
    let (head, body) = request.into_parts();
    let peer = head.extensions.get::<Peer>().map(|peer| peer.0);
    may(app, &head.headers).inspect_err(|_| app.refused.note(app.subject.clock(), wish, peer))?;
    let said = read(app, &head.headers, body).await?;
    let to = said.to.as_deref().map(CandidateId::new).transpose();
    let to = to.map_err(|error| HttpError::invalid(StatusCode::BAD_REQUEST, error.to_string()))?;
    if wish != ControlRequest::Resign && to.is_some() {
        let message = format!("/{} is about this instance alone: leave 'to' out", wish.word());
        return Err(HttpError::invalid(StatusCode::BAD_REQUEST, message));
    }
    match &app.subject {
        Participant::Candidate(instance) => {
            if let Some(to) = &to {
                check_successor(app, instance, to).await?;
            }
            act(instance, wish, to.as_ref())?;
            if wish != ControlRequest::Resign {
                let election = &instance.election;
                write(app, election.name(), election.candidate_id(), wish).await?;
            }
        }
        Participant::Member(member) => {
            let (name, me) = (member.fleet.name(), member.fleet.member_id());
            if wish == ControlRequest::Resign {
                let message = format!(
                    "'{me}' is a member of a fleet and leads nothing it could resign from: POST /drain has it give its shards away"
                );
                return Err(HttpError::invalid(StatusCode::CONFLICT, message));
            }
            write(app, name, me, wish).await?;
        }
    }
    let name = app.subject.name();
    let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
    let to = to.map(|to| to.to_string());
    tracing::info!(%name, %peer, to, "asked over HTTP to {}", wish.word());
    let clock = app.subject.clock();
    match &app.subject {
        Participant::Candidate(_) if wish == ControlRequest::Undrain => {}
        // So that what we say next is no yes.
        Participant::Candidate(instance) => heard(clock, || !instance.election.is_leader()).await,
        Participant::Member(member) => {
            heard(clock, || member.is_drained() == (wish == ControlRequest::Drain)).await;
        }
    }
    Ok(response::json(StatusCode::ACCEPTED, &app.subject.status()))
}

fn may(app: &App, headers: &HeaderMap) -> Result<(), HttpError> {
    let Some(secret) = &app.secret else {
        return Err(HttpError::denied(
            StatusCode::FORBIDDEN,
            "control is off: start with --control-secret-file to turn it on",
        ));
    };
    if auth::is_foreign(headers) {
        let message = "this request comes from a page of another site";
        return Err(HttpError::denied(StatusCode::FORBIDDEN, message));
    }
    let mut said = headers.get_all(AUTHORIZATION).iter();
    match (said.next(), said.next()) {
        (Some(said), None) if secret.is_in(said.as_bytes()) => Ok(()),
        (None, _) => Err(HttpError::unauthorized(
            "this needs the control secret: send it as 'Authorization: Bearer SECRET'",
        )),
        _ => Err(HttpError::unauthorized("this is not the control secret")),
    }
}

/// No body is as good as an empty wish. Anything else must be JSON, and say so: a form on a page cannot.
async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<ControlBody, HttpError> {
    let kind = headers.get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or_default());
    let is_json = |kind: &str| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case(response::JSON)
    };
    if kind.is_some_and(|kind| !is_json(kind)) {
        let message = "send JSON, with 'Content-Type: application/json'";
        return Err(HttpError::invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let too_long = || {
        HttpError::invalid(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is broken, or longer than 4 KiB",
        )
    };
    // Said beforehand, so nobody has to send it.
    if body.size_hint().lower() > BODY as u64 {
        return Err(too_long());
    }
    let body: Bytes = tokio::select! {
        body = to_bytes(body, BODY) => body.map_err(|_| too_long())?,
        () = app.subject.clock().sleep(app.limits.body_time) => {
            let message = "the body did not arrive in time";
            return Err(HttpError::invalid(StatusCode::REQUEST_TIMEOUT, message));
        }
    };
    if body.is_empty() {
        return Ok(ControlBody::default());
    }
    if kind.is_none() {
        let message = "say what the body is, with 'Content-Type: application/json'";
        return Err(HttpError::invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    serde_json::from_slice(&body).map_err(|_| {
        HttpError::invalid(StatusCode::BAD_REQUEST, "the body is not like {\"to\":\"ID\"}, or {}")
    })
}

/// Refuses a successor that cannot lead, before the leader stops its work. Presence that cannot be read refuses nobody.
async fn check_successor(
    app: &App,
    instance: &HttpCandidate,
    to: &CandidateId,
) -> Result<(), HttpError> {
    let (name, me) = (instance.election.name(), instance.election.candidate_id());
    if to == me || !instance.is_leader() {
        return Ok(());
    }
    let (store, of, wait) = (app.store.clone(), name.clone(), app.limits.store_time);
    let read = app.aside.spawn(async move {
        store_access::patiently(&store.url(), wait, present(&*store, &of)).await
    });
    let Ok(Ok(nodes)) = read.await else { return Ok(()) };
    let holder = Some((me.as_str(), "leading"));
    let candidates: Vec<_> = nodes.iter().map(|node| Candidate::new(node, holder)).collect();
    match successor::check(name, me.as_str(), to, &candidates) {
        SuccessorCheck::Refused(why) => Err(HttpError::invalid(StatusCode::CONFLICT, why)),
        SuccessorCheck::Ready | SuccessorCheck::Unknown => Ok(()),
    }
}

fn act(
    instance: &HttpCandidate,
    wish: ControlRequest,
    to: Option<&CandidateId>,
) -> Result<(), HttpError> {
    let election = &instance.election;
    match wish {
        ControlRequest::Resign if !election.is_leader() => {
            let id = election.candidate_id();
            let message = format!("'{id}' does not lead, so it cannot resign");
            return Err(HttpError::invalid(StatusCode::CONFLICT, message));
        }
        ControlRequest::Resign => match to {
            Some(to) if to == election.candidate_id() => {
                let message = format!("'{to}' is the one that resigns: name another, or none");
                return Err(HttpError::invalid(StatusCode::BAD_REQUEST, message));
            }
            Some(to) => election.resign_to(to),
            None => election.resign(),
        },
        ControlRequest::Drain => election.drain(),
        ControlRequest::Undrain => election.undrain(),
    }
    Ok(())
}

/// Keeps a drain in the store, or ends it. A client that goes away in the middle changes nothing of that.
async fn write(
    app: &App,
    name: &Name,
    id: &CandidateId,
    wish: ControlRequest,
) -> Result<(), HttpError> {
    let (name, me, drain) = (name.clone(), id.clone(), wish == ControlRequest::Drain);
    let (store, wait) = (app.store.clone(), app.limits.store_time);
    let written = app.aside.spawn(async move {
        let edit = |overrides: &mut Overrides| {
            if drain {
                overrides.drained.insert(me.clone());
            } else {
                overrides.drained.remove(&me);
            }
        };
        let change = overrides::change(&*store, &name, &me, wait, edit);
        store_access::patiently(&store.url(), store_access::PATIENCE, change).await
    });
    match written.await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(HttpError::of(&error)),
        // Only while everything comes down.
        Err(_) => Err(HttpError::busy("this instance is about to end")),
    }
}

/// Returns when it has been heard; that may also be a little later.
async fn heard(clock: &Clock, heard: impl Fn() -> bool) {
    let limit = clock.now() + HEARD_WITHIN;
    while !heard() && clock.now() < limit {
        clock.sleep(Duration::from_millis(1)).await;
    }
}

/// Tells of those who were refused, now and then.
#[derive(Debug, Default)]
pub(super) struct ControlRefused(Mutex<(Option<Moment>, u64)>);

impl ControlRefused {
    fn note(&self, clock: &Clock, wish: ControlRequest, peer: Option<SocketAddr>) {
        let mut told = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        told.1 += 1;
        let now = clock.now();
        if told.0.is_none_or(|last| now >= last + TELL_EVERY) {
            let (times, peer) = (told.1, peer.map(|peer| peer.to_string()).unwrap_or_default());
            tracing::warn!(%peer, times, "refused over HTTP: {}", wish.word());
            *told = (Some(now), 0);
        }
    }
}
