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

use super::auth::Auth;
use super::cached_read::CachedRead;
use super::control::{self, ControlRefused, ControlRequest};
use super::events::{self, Listening};
use super::limits::{HttpLimits, LARGE};
use super::participant::Participant;
use super::response::{self, HttpError};
use super::secret::Secret;
use super::store_thread::StoreThread;
use super::{fleet, leases, metrics};

const PAGE: &str = include_str!("page.html");

/// What the handlers share.
#[derive(Debug)]
pub(super) struct App {
    pub(super) subject: Participant,
    pub(super) gate: Auth,
    pub(super) secret: Option<Secret>,
    pub(super) limits: HttpLimits,
    pub(super) refused: ControlRefused,
    /// For what is written; what is read has connections of its own.
    pub(super) store: Arc<dyn Store>,
    pub(super) aside: StoreThread,
    leases: CachedRead,
    /// `None` for a candidate.
    fleet: Option<CachedRead>,
    listeners: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl App {
    pub(super) fn new(
        subject: Participant,
        gate: Auth,
        secret: Option<Secret>,
        store: &dyn Store,
        aside: StoreThread,
        limits: HttpLimits,
    ) -> App {
        let clock = subject.clock();
        let (all, patience) = (store.detached(), limits.store_time);
        let leases = CachedRead::start(&aside, clock, leases::FRESH, move || {
            let all = Arc::clone(&all);
            async move { leases::read(&*all, patience).await }
        });
        let fleet = match &subject {
            Participant::Candidate(_) => None,
            Participant::Member(member) => {
                let (member, all) = (Arc::downgrade(member), store.detached());
                Some(CachedRead::start(&aside, clock, fleet::FRESH, move || {
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
            refused: ControlRefused::default(),
            store: store.detached(),
            aside,
            leases,
            fleet,
            listeners: Arc::new(Semaphore::new(limits.listeners)),
            large: Arc::new(Semaphore::new(limits.large)),
        }
    }
}

type SharedApp = State<Arc<App>>;

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
        .layer(map_response(response::with_headers))
        .with_state(app)
}

/// Comes before every path, also before those that are none.
async fn let_in(State(app): SharedApp, request: Request, next: Next) -> Response {
    if app.gate.knows(request.uri(), request.headers()) {
        return next.run(request).await;
    }
    let message = "this instance answers to localhost only: ask for that Host, or start with --allow-host NAME";
    HttpError::denied(StatusCode::MISDIRECTED_REQUEST, message).into_response()
}

async fn page() -> Response {
    let mut response = response::text(StatusCode::OK, "text/html; charset=utf-8", PAGE);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}

async fn status(State(app): SharedApp) -> Response {
    response::json(StatusCode::OK, &app.subject.status())
}

/// For those who route by the code alone. It carries no right: by the time it is read, it may be another.
async fn leader(State(app): SharedApp) -> Response {
    let body = app.subject.status();
    response::json(
        if body.is_leader() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE },
        &body,
    )
}

/// Fails only where a restart would help: not because somebody else leads, nor because the store is down.
async fn healthz(State(app): SharedApp) -> Response {
    match app.subject.trouble() {
        None => response::json(StatusCode::OK, &serde_json::json!({"ok": true})),
        Some(trouble) => {
            HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", trouble).into_response()
        }
    }
}

async fn leases(State(app): SharedApp) -> Result<Response, HttpError> {
    read(&app, &app.leases).await
}

async fn fleet(State(app): SharedApp) -> Result<Response, HttpError> {
    let message = "this instance is a candidate, not a member of a fleet: ask one started with 'tenure fleet run'";
    let none = || HttpError::invalid(StatusCode::NOT_FOUND, message);
    read(&app, app.fleet.as_ref().ok_or_else(none)?).await
}

/// What is in the store. A large one is kept for its client until that has read it, and by then there may be newer ones for
/// others: so there are not too many.
async fn read(app: &App, reading: &CachedRead) -> Result<Response, HttpError> {
    let body = reading.get().await?;
    if body.len() <= LARGE {
        return Ok(response::text(StatusCode::OK, response::JSON, body));
    }
    let Ok(place) = Arc::clone(&app.large).try_acquire_owned() else {
        let message = format!("{} answers as large are being sent: try again", app.limits.large);
        return Err(HttpError::busy(message));
    };
    let length = HeaderValue::from(body.len());
    // In one piece, which all of them share; behind it there is only the place to give back.
    let whole = stream::unfold((Some(body), place), async |(body, place)| {
        Some((Ok::<Bytes, Infallible>(body?), (None, place)))
    });
    let mut response = response::text(StatusCode::OK, response::JSON, Body::from_stream(whole));
    response.headers_mut().insert(CONTENT_LENGTH, length);
    Ok(response)
}

async fn events(State(app): SharedApp, headers: HeaderMap) -> Response {
    let Ok(place) = Arc::clone(&app.listeners).try_acquire_owned() else {
        let message = format!("{} listen already: try again later", app.limits.listeners);
        return HttpError::busy(message).into_response();
    };
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let Listening { id, missed, live } = app.subject.news().listen(last);
    // Made after we listen: what happens in between is in it or comes after it.
    let Ok(state) = serde_json::to_string(&app.subject.status()) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let first = stream::iter([events::frame(&id, "state", &state)]).chain(stream::iter(missed));
    // Too far behind is over, and so is the end of the instance: the client comes back and gets the state.
    let live = stream::unfold((live, place), async |(mut live, place)| {
        live.recv().await.ok().map(|frame| (frame, (live, place)))
    });
    let body = Body::from_stream(first.chain(live).map(Ok::<_, Infallible>));
    response::text(StatusCode::OK, "text/event-stream", body)
}

async fn metrics(State(app): SharedApp) -> Response {
    response::text(StatusCode::OK, metrics::TYPE, app.subject.metrics())
}

async fn resign(State(app): SharedApp, request: Request) -> Result<Response, HttpError> {
    control::carry_out(&app, ControlRequest::Resign, request).await
}

async fn drain(State(app): SharedApp, request: Request) -> Result<Response, HttpError> {
    control::carry_out(&app, ControlRequest::Drain, request).await
}

async fn undrain(State(app): SharedApp, request: Request) -> Result<Response, HttpError> {
    control::carry_out(&app, ControlRequest::Undrain, request).await
}

async fn nothing() -> HttpError {
    HttpError::invalid(StatusCode::NOT_FOUND, "there is nothing here: '/' lists what there is")
}

async fn other_method() -> HttpError {
    let message = "not with this method: '/' lists what there is";
    HttpError::invalid(StatusCode::METHOD_NOT_ALLOWED, message)
}
