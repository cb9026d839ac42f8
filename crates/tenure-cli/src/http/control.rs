//! `POST /resign`, `/drain`, `/undrain`: for those who know the secret.
//!
//! Each is answered when it was passed on and we have stopped saying that we lead, not when somebody else leads: that is
//! seen in the status.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use tenure::{CandidateId, Clock, Moment};

use super::gate;
use super::instance::Instance;
use super::limits::BODY;
use super::reply::{self, Refusal};
use super::routes::App;

/// So long we wait until the election has heard of it.
const HEARD_WITHIN: Duration = Duration::from_millis(500);
/// Those who try secrets fill no log.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Resign,
    Drain,
    Undrain,
}

impl Wish {
    fn word(self) -> &'static str {
        match self {
            Wish::Resign => "resign",
            Wish::Drain => "drain",
            Wish::Undrain => "undrain",
        }
    }
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    to: Option<String>,
}

/// Does what is asked for, or says why not.
pub(super) async fn carry_out(
    app: &App,
    wish: Wish,
    request: Request,
) -> Result<Response, Refusal> {
    let (head, body) = request.into_parts();
    let peer = head.extensions.get::<Peer>().map(|peer| peer.0);
    may(app, &head.headers).inspect_err(|_| app.refused.note(&app.instance.clock, wish, peer))?;
    let said = read(app, &head.headers, body).await?;
    let instance = &app.instance;
    let to = said.to.as_deref().map(CandidateId::new).transpose();
    let to = to.map_err(|error| Refusal::invalid(StatusCode::BAD_REQUEST, error.to_string()))?;
    act(instance, wish, to.as_ref())?;
    let name = instance.election.name();
    let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
    let to = to.map(|to| to.to_string());
    tracing::info!(%name, %peer, to, "asked over HTTP to {}", wish.word());
    if wish != Wish::Undrain {
        heard(instance).await;
    }
    Ok(reply::json(StatusCode::ACCEPTED, &instance.status()))
}

fn may(app: &App, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(secret) = &app.secret else {
        return Err(Refusal::denied(
            StatusCode::FORBIDDEN,
            "control is off: start with --control-secret-file to turn it on",
        ));
    };
    if gate::is_foreign(headers) {
        let message = "this request comes from a page of another site";
        return Err(Refusal::denied(StatusCode::FORBIDDEN, message));
    }
    let mut said = headers.get_all(AUTHORIZATION).iter();
    match (said.next(), said.next()) {
        (Some(said), None) if secret.is_in(said.as_bytes()) => Ok(()),
        (None, _) => Err(Refusal::unauthorized(
            "this needs the control secret: send it as 'Authorization: Bearer SECRET'",
        )),
        _ => Err(Refusal::unauthorized("this is not the control secret")),
    }
}

/// No body is as good as an empty wish. Anything else must be JSON, and say so: a form on a page cannot.
async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<Said, Refusal> {
    let kind = headers.get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or_default());
    let is_json = |kind: &str| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case(reply::JSON)
    };
    if kind.is_some_and(|kind| !is_json(kind)) {
        let message = "send JSON, with 'Content-Type: application/json'";
        return Err(Refusal::invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let too_long = || {
        Refusal::invalid(StatusCode::PAYLOAD_TOO_LARGE, "the body is broken, or longer than 4 KiB")
    };
    // Said beforehand, so nobody has to send it.
    if body.size_hint().lower() > BODY as u64 {
        return Err(too_long());
    }
    let body: Bytes = tokio::select! {
        body = to_bytes(body, BODY) => body.map_err(|_| too_long())?,
        () = app.instance.clock.sleep(app.limits.body_time) => {
            let message = "the body did not arrive in time";
            return Err(Refusal::invalid(StatusCode::REQUEST_TIMEOUT, message));
        }
    };
    if body.is_empty() {
        return Ok(Said::default());
    }
    if kind.is_none() {
        let message = "say what the body is, with 'Content-Type: application/json'";
        return Err(Refusal::invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    serde_json::from_slice(&body).map_err(|_| {
        Refusal::invalid(StatusCode::BAD_REQUEST, "the body is not like {\"to\":\"ID\"}, or {}")
    })
}

fn act(instance: &Instance, wish: Wish, to: Option<&CandidateId>) -> Result<(), Refusal> {
    let election = &instance.election;
    if wish != Wish::Resign && to.is_some() {
        let message = format!("/{} is about this candidate alone: leave 'to' out", wish.word());
        return Err(Refusal::invalid(StatusCode::BAD_REQUEST, message));
    }
    match wish {
        Wish::Resign if !election.is_leader() => {
            let id = election.candidate_id();
            let message = format!("'{id}' does not lead, so it cannot resign");
            return Err(Refusal::invalid(StatusCode::CONFLICT, message));
        }
        Wish::Resign => match to {
            Some(to) if to == election.candidate_id() => {
                let message = format!("'{to}' is the one that resigns: name another, or none");
                return Err(Refusal::invalid(StatusCode::BAD_REQUEST, message));
            }
            Some(to) => election.resign_to(to),
            None => election.resign(),
        },
        Wish::Drain => election.drain(),
        Wish::Undrain => election.undrain(),
    }
    Ok(())
}

/// Returns when the election has heard that it should lead no more, so that what we say next is no yes.
async fn heard(instance: &Instance) {
    let clock = &instance.clock;
    let limit = clock.now() + HEARD_WITHIN;
    while instance.election.is_leader() && clock.now() < limit {
        clock.sleep(Duration::from_millis(1)).await;
    }
}

/// Tells of those who were refused, now and then.
#[derive(Debug, Default)]
pub(super) struct Refused(Mutex<(Option<Moment>, u64)>);

impl Refused {
    fn note(&self, clock: &Clock, wish: Wish, peer: Option<SocketAddr>) {
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
