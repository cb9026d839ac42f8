//! Which path means what.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_SECURITY_POLICY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream::{self, StreamExt};
use tenure::Store;
use tokio::sync::Semaphore;

use super::aside::Aside;
use super::control::{self, Refused, Wish};
use super::gate::Gate;
use super::limits::{LARGE, Limits};
use super::news::{self, Listening};
use super::reading::Reading;
use super::reply::{self, Refusal};
use super::secret::Secret;
use super::subject::Subject;
use super::{fleet, leases, metrics};

const PAGE: &str = include_str!("page.html");

/// What the handlers share.
#[derive(Debug)]
pub(super) struct App {
    pub(super) subject: Subject,
    pub(super) gate: Gate,
    pub(super) secret: Option<Secret>,
    pub(super) limits: Limits,
    pub(super) refused: Refused,
    /// For what is written; what is read has connections of its own.
    pub(super) store: Arc<dyn Store>,
    pub(super) aside: Aside,
    leases: Reading,
    /// `None` for a candidate.
    fleet: Option<Reading>,
    listeners: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl App {
    pub(super) fn new(
        subject: Subject,
        gate: Gate,
        secret: Option<Secret>,
        store: &dyn Store,
        aside: Aside,
        limits: Limits,
    ) -> App {
        let clock = subject.clock();
        let (all, patience) = (store.detached(), limits.store_time);
        let leases = Reading::start(&aside, clock, leases::FRESH, move || {
            let all = Arc::clone(&all);
            async move { leases::read(&*all, patience).await }
        });
        let fleet = match &subject {
            Subject::Candidate(_) => None,
            Subject::Member(member) => {
                let (member, all) = (Arc::downgrade(member), store.detached());
                Some(Reading::start(&aside, clock, fleet::FRESH, move || {
                    let (member, all) = (member.clone(), Arc::clone(&all));
                    async move { fleet::read(&member, &*all, limits.fleet_time).await }
                }))
            }
        };
        App {
            subject,
            gate,
            secret,
            limits,
            refused: Refused::default(),
            store: store.detached(),
            aside,
            leases,
            fleet,
            listeners: Arc::new(Semaphore::new(limits.listeners)),
            large: Arc::new(Semaphore::new(limits.large)),
        }
    }
}

type Shared = State<Arc<App>>;

pub(super) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/status", get(status))
        .route("/leader", get(leader))
        .route("/healthz", get(healthz))
        .route("/leases", get(leases))
        .route("/fleet", get(fleet))
        .route("/events", get(events))
        .route("/metrics", get(metrics))
        .route("/resign", post(resign))
        .route("/drain", post(drain))
        .route("/undrain", post(undrain))
        .fallback(nothing)
        .method_not_allowed_fallback(other_method)
        .layer(from_fn_with_state(Arc::clone(&app), let_in))
        .layer(map_response(reply::with_headers))
        .with_state(app)
}

/// Comes before every path, also before those that are none.
async fn let_in(State(app): Shared, request: Request, next: Next) -> Response {
    if app.gate.knows(request.uri(), request.headers()) {
        return next.run(request).await;
    }
    let message = "this instance answers to localhost only: ask for that Host, or start with --allow-host NAME";
    Refusal::denied(StatusCode::MISDIRECTED_REQUEST, message).into_response()
}

async fn page() -> Response {
    let mut response = reply::text(StatusCode::OK, "text/html; charset=utf-8", PAGE);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}

async fn status(State(app): Shared) -> Response {
    reply::json(StatusCode::OK, &app.subject.status())
}

/// For those who route by the code alone. It carries no right: by the time it is read, it may be another.
async fn leader(State(app): Shared) -> Response {
    let body = app.subject.status();
    reply::json(
        if body.is_leader() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE },
        &body,
    )
}

/// Fails only where a restart would help: not because somebody else leads, nor because the store is down.
async fn healthz(State(app): Shared) -> Response {
    match app.subject.trouble() {
        None => reply::json(StatusCode::OK, &serde_json::json!({"ok": true})),
        Some(trouble) => {
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", trouble).into_response()
        }
    }
}

async fn leases(State(app): Shared) -> Result<Response, Refusal> {
    read(&app, &app.leases).await
}

async fn fleet(State(app): Shared) -> Result<Response, Refusal> {
    let message = "this instance is a candidate, not a member of a fleet: ask one started with 'tenure fleet run'";
    let none = || Refusal::invalid(StatusCode::NOT_FOUND, message);
    read(&app, app.fleet.as_ref().ok_or_else(none)?).await
}

/// What is in the store. A large one is kept for its client until that has read it, and by then there may be newer ones for
/// others: so there are not too many.
async fn read(app: &App, reading: &Reading) -> Result<Response, Refusal> {
    let body = reading.get().await?;
    if body.len() <= LARGE {
        return Ok(reply::text(StatusCode::OK, reply::JSON, body));
    }
    let Ok(place) = Arc::clone(&app.large).try_acquire_owned() else {
        let message = format!("{} answers as large are being sent: try again", app.limits.large);
        return Err(Refusal::busy(message));
    };
    let length = HeaderValue::from(body.len());
    // In one piece, which all of them share; behind it there is only the place to give back.
    let whole = stream::unfold((Some(body), place), async |(body, place)| {
        Some((Ok::<Bytes, Infallible>(body?), (None, place)))
    });
    let mut response = reply::text(StatusCode::OK, reply::JSON, Body::from_stream(whole));
    response.headers_mut().insert(CONTENT_LENGTH, length);
    Ok(response)
}

async fn events(State(app): Shared, headers: HeaderMap) -> Response {
    let Ok(place) = Arc::clone(&app.listeners).try_acquire_owned() else {
        let message = format!("{} listen already: try again later", app.limits.listeners);
        return Refusal::busy(message).into_response();
    };
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let Listening { id, missed, live } = app.subject.news().listen(last);
    // Made after we listen: what happens in between is in it or comes after it.
    let Ok(state) = serde_json::to_string(&app.subject.status()) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let first = stream::iter([news::frame(&id, "state", &state)]).chain(stream::iter(missed));
    // Too far behind is over, and so is the end of the instance: the client comes back and gets the state.
    let live = stream::unfold((live, place), async |(mut live, place)| {
        live.recv().await.ok().map(|frame| (frame, (live, place)))
    });
    let body = Body::from_stream(first.chain(live).map(Ok::<_, Infallible>));
    reply::text(StatusCode::OK, "text/event-stream", body)
}

async fn metrics(State(app): Shared) -> Response {
    reply::text(StatusCode::OK, metrics::TYPE, app.subject.metrics())
}

async fn resign(State(app): Shared, request: Request) -> Result<Response, Refusal> {
    control::carry_out(&app, Wish::Resign, request).await
}

async fn drain(State(app): Shared, request: Request) -> Result<Response, Refusal> {
    control::carry_out(&app, Wish::Drain, request).await
}

async fn undrain(State(app): Shared, request: Request) -> Result<Response, Refusal> {
    control::carry_out(&app, Wish::Undrain, request).await
}

async fn nothing() -> Refusal {
    Refusal::invalid(StatusCode::NOT_FOUND, "there is nothing here: '/' lists what there is")
}

async fn other_method() -> Refusal {
    let message = "not with this method: '/' lists what there is";
    Refusal::invalid(StatusCode::METHOD_NOT_ALLOWED, message)
}
