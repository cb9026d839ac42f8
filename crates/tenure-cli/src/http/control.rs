//! `POST /resign`, `/drain`, `/undrain`: control requests, which need the secret.
//!
//! The response is sent when the request has been passed on and this instance has stopped answering that it leads, not when
//! another candidate leads: the status shows that. A candidate gets the request directly. Drains are kept in the store, for the
//! members of a fleet and for the candidate's next process.

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
use super::participant::{HttpCandidate, Participant};
use super::response::{self, HttpError};
use super::routes::App;
use super::server::MAX_BODY_BYTES;
use crate::candidate::Candidate;
use crate::resign::successor::{self, SuccessorCheck};
use crate::store_access;

/// How long a response waits until the request has taken effect on the election or the fleet.
const EFFECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Refused requests are logged at most this often, so that guessing secrets does not fill the log.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The control requests.
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

/// The address of the client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ControlBody {
    to: Option<String>,
}

/// Executes a control request, or says why not.
pub(super) async fn handle(
    app: &App,
    action: ControlRequest,
    request: Request,
) -> Result<Response, HttpError> {
    let (head, body) = request.into_parts();
    let peer = head.extensions.get::<Peer>().map(|peer| peer.0);
    authorize(app, &head.headers)
        .inspect_err(|_| app.refused.note(app.participant.clock(), action, peer))?;
    let sent = read(app, &head.headers, body).await?;
    let to = sent.to.as_deref().map(CandidateId::new).transpose();
    let to = to.map_err(|error| HttpError::invalid(StatusCode::BAD_REQUEST, error.to_string()))?;
    if action != ControlRequest::Resign && to.is_some() {
        let message = format!("/{} is about this instance alone: leave 'to' out", action.word());
        return Err(HttpError::invalid(StatusCode::BAD_REQUEST, message));
    }
    match &app.participant {
        Participant::Candidate(instance) => {
            if let Some(to) = &to {
                check_successor(app, instance, to).await?;
            }
            apply(instance, action, to.as_ref())?;
            if action != ControlRequest::Resign {
                let election = &instance.election;
                save_drain(app, election.name(), election.candidate_id(), action).await?;
            }
        }
        Participant::Member(member) => {
            let (name, me) = (member.fleet.name(), member.fleet.member_id());
            if action == ControlRequest::Resign {
                let message = format!(
                    "'{me}' is a member of a fleet and leads nothing it could resign from: POST /drain has it give its shards away"
                );
                return Err(HttpError::invalid(StatusCode::CONFLICT, message));
            }
            save_drain(app, name, me, action).await?;
        }
    }
    let name = app.participant.name();
    let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
    let to = to.map(|to| to.to_string());
    tracing::info!(%name, %peer, to, "asked over HTTP to {}", action.word());
    let clock = app.participant.clock();
    match &app.participant {
        Participant::Candidate(_) if action == ControlRequest::Undrain => {}
        // So that the next answer does not say that this candidate leads.
        Participant::Candidate(instance) => {
            wait_for_effect(clock, || !instance.election.is_leader()).await
        }
        Participant::Member(member) => {
            wait_for_effect(clock, || member.is_drained() == (action == ControlRequest::Drain))
                .await;
        }
    }
    Ok(response::json(StatusCode::ACCEPTED, &app.participant.status()))
}

fn authorize(app: &App, headers: &HeaderMap) -> Result<(), HttpError> {
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
    let mut sent = headers.get_all(AUTHORIZATION).iter();
    match (sent.next(), sent.next()) {
        (Some(sent), None) if secret.is_in(sent.as_bytes()) => Ok(()),
        (None, _) => Err(HttpError::unauthorized(
            "this needs the control secret: send it as 'Authorization: Bearer SECRET'",
        )),
        _ => Err(HttpError::unauthorized("this is not the control secret")),
    }
}

/// Reads the body. No body is the same as `{}`. Any other body must be JSON with a JSON content type, which an HTML form cannot
/// send.
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
    // The client declares the length first, so it need not send a body that is too long.
    if body.size_hint().lower() > MAX_BODY_BYTES as u64 {
        return Err(too_long());
    }
    let body: Bytes = tokio::select! {
        body = to_bytes(body, MAX_BODY_BYTES) => body.map_err(|_| too_long())?,
        () = app.participant.clock().sleep(app.limits.body_timeout) => {
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

/// Refuses a successor that cannot lead, before the leader stops its work. If presence cannot be read, no successor is refused.
async fn check_successor(
    app: &App,
    instance: &HttpCandidate,
    to: &CandidateId,
) -> Result<(), HttpError> {
    let (name, me) = (instance.election.name(), instance.election.candidate_id());
    if to == me || !instance.is_leader() {
        return Ok(());
    }
    let (store, of, wait) = (app.store.clone(), name.clone(), app.limits.store_timeout);
    let read = app.store_thread.spawn(async move {
        store_access::with_timeout(&store.url(), wait, present(&*store, &of)).await
    });
    let Ok(Ok(nodes)) = read.await else { return Ok(()) };
    let holder = Some((me.as_str(), "leading"));
    let candidates: Vec<_> = nodes.iter().map(|node| Candidate::new(node, holder)).collect();
    match successor::check(name, me.as_str(), to, &candidates) {
        SuccessorCheck::Refused(reason) => Err(HttpError::invalid(StatusCode::CONFLICT, reason)),
        SuccessorCheck::Ready | SuccessorCheck::Unknown => Ok(()),
    }
}

fn apply(
    instance: &HttpCandidate,
    action: ControlRequest,
    to: Option<&CandidateId>,
) -> Result<(), HttpError> {
    let election = &instance.election;
    match action {
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

/// Keeps a drain in the store, or removes it. This completes even if the client disconnects.
async fn save_drain(
    app: &App,
    name: &Name,
    id: &CandidateId,
    action: ControlRequest,
) -> Result<(), HttpError> {
    let (name, me, drain) = (name.clone(), id.clone(), action == ControlRequest::Drain);
    let (store, wait) = (app.store.clone(), app.limits.store_timeout);
    let written = app.store_thread.spawn(async move {
        let edit = |overrides: &mut Overrides| {
            if drain {
                overrides.drained.insert(me.clone());
            } else {
                overrides.drained.remove(&me);
            }
        };
        let change = overrides::change(&*store, &name, &me, wait, edit);
        store_access::with_timeout(&store.url(), store_access::STORE_TIMEOUT, change).await
    });
    match written.await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(HttpError::of(&error)),
        // The store thread ends only while this instance shuts down.
        Err(_) => Err(HttpError::busy("this instance is about to end")),
    }
}

/// Returns when the condition holds, or after [`EFFECT_TIMEOUT`]: the request may take effect a little later.
async fn wait_for_effect(clock: &Clock, in_effect: impl Fn() -> bool) {
    let limit = clock.now() + EFFECT_TIMEOUT;
    while !in_effect() && clock.now() < limit {
        clock.sleep(Duration::from_millis(1)).await;
    }
}

/// Logs refused requests, at most once per [`REFUSAL_LOG_INTERVAL`].
#[derive(Debug, Default)]
pub(super) struct ControlRefused(Mutex<(Option<Moment>, u64)>);

impl ControlRefused {
    fn note(&self, clock: &Clock, action: ControlRequest, peer: Option<SocketAddr>) {
        let mut refusals = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        refusals.1 += 1;
        let now = clock.now();
        if refusals.0.is_none_or(|last| now >= last + REFUSAL_LOG_INTERVAL) {
            let (times, peer) = (refusals.1, peer.map(|peer| peer.to_string()).unwrap_or_default());
            tracing::warn!(%peer, times, "refused over HTTP: {}", action.word());
            *refusals = (Some(now), 0);
        }
    }
}
