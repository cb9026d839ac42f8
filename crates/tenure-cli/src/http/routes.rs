//! The routes of the server and their handlers.

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

use super::auth::{Auth, ControlSecret};
use super::cached_read::{CachedRead, StoreThread};
use super::control::{self, ControlRefused, ControlRequest};
use super::events::{self, EventSubscription};
use super::metrics;
use super::participant::Participant;
use super::response::{self, HttpError};
use super::server::{HttpLimits, LARGE_RESPONSE_BYTES};

const PAGE: &str = include_str!("page.html");

/// The state that the handlers share.
#[derive(Debug)]
pub(super) struct App {
    pub(super) participant: Participant,
    pub(super) auth: Auth,
    pub(super) secret: Option<ControlSecret>,
    pub(super) limits: HttpLimits,
    pub(super) refused: ControlRefused,
    /// For writes. Reads use separate connections.
    pub(super) store: Arc<dyn Store>,
    pub(super) store_thread: StoreThread,
    leases: CachedRead,
    /// `None` for a candidate.
    fleet: Option<CachedRead>,
    subscribers: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl App {
    pub(super) fn new(
        participant: Participant,
        auth: Auth,
        secret: Option<ControlSecret>,
        store: &dyn Store,
        store_thread: StoreThread,
        limits: HttpLimits,
    ) -> App {
        let clock = participant.clock();
        let (thread, detached) = (&store_thread, store.detached());
        let leases = CachedRead::of_leases(thread, clock, detached, limits.store_timeout);
        let fleet = match &participant {
            Participant::Candidate(_) => None,
            Participant::Member(member) => {
                let (detached, member) = (store.detached(), Arc::downgrade(member));
                let timeout = limits.fleet_timeout;
                Some(CachedRead::of_fleet(thread, clock, detached, timeout, member))
            }
        };
        App {
            participant,
            auth,
            secret,
            limits,
            refused: ControlRefused::default(),
            store: store.detached(),
            store_thread,
            leases,
            fleet,
            subscribers: Arc::new(Semaphore::new(limits.subscribers)),
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
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::clone(&app), check_host))
        .layer(map_response(response::with_headers))
        .with_state(app)
}

/// Checks the Host of every request, also for unknown paths.
async fn check_host(State(app): SharedApp, request: Request, next: Next) -> Response {
    if app.auth.accepts_host(request.uri(), request.headers()) {
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
    response::json(StatusCode::OK, &app.participant.status())
}

/// For clients that route by the status code alone. The answer grants no right: it may have changed before the client reads it.
async fn leader(State(app): SharedApp) -> Response {
    let body = app.participant.status();
    response::json(
        if body.is_leader() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE },
        &body,
    )
}

/// Fails only if a restart would help: not because another candidate leads, nor because the store is down.
async fn healthz(State(app): SharedApp) -> Response {
    match app.participant.failure() {
        None => response::json(StatusCode::OK, &serde_json::json!({"ok": true})),
        Some(failure) => {
            HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", failure).into_response()
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

/// Sends a read of the store. A large body stays in memory until its client has read it, and meanwhile there may be newer
/// bodies for other clients: so the number of large bodies in flight is limited.
async fn read(app: &App, cached: &CachedRead) -> Result<Response, HttpError> {
    let body = cached.get().await?;
    if body.len() <= LARGE_RESPONSE_BYTES {
        return Ok(response::text(StatusCode::OK, response::JSON, body));
    }
    let Ok(permit) = Arc::clone(&app.large).try_acquire_owned() else {
        let message = format!("{} answers as large are being sent: try again", app.limits.large);
        return Err(HttpError::busy(message));
    };
    let length = HeaderValue::from(body.len());
    // The body is one chunk that all clients share. The stream ends after it, which releases the permit.
    let body_stream = stream::unfold((Some(body), permit), async |(body, permit)| {
        Some((Ok::<Bytes, Infallible>(body?), (None, permit)))
    });
    let mut response =
        response::text(StatusCode::OK, response::JSON, Body::from_stream(body_stream));
    response.headers_mut().insert(CONTENT_LENGTH, length);
    Ok(response)
}

async fn events(State(app): SharedApp, headers: HeaderMap) -> Response {
    let Ok(permit) = Arc::clone(&app.subscribers).try_acquire_owned() else {
        let message = format!("{} listen already: try again later", app.limits.subscribers);
        return HttpError::busy(message).into_response();
    };
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let EventSubscription { id, missed, live } = app.participant.event_log().subscribe(last);
    // Read after subscribing: an event in between is in the state or follows it.
    let Ok(state) = serde_json::to_string(&app.participant.status()) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let first = stream::iter([events::frame(&id, "state", &state)]).chain(stream::iter(missed));
    // A subscriber that is too far behind is disconnected, as at the end of the instance. The client reconnects and gets the
    // state.
    let live = stream::unfold((live, permit), async |(mut live, permit)| {
        live.recv().await.ok().map(|frame| (frame, (live, permit)))
    });
    let body = Body::from_stream(first.chain(live).map(Ok::<_, Infallible>));
    response::text(StatusCode::OK, "text/event-stream", body)
}

async fn metrics(State(app): SharedApp) -> Response {
    response::text(StatusCode::OK, metrics::TYPE, app.participant.metrics())
}

async fn resign(State(app): SharedApp, request: Request) -> Result<Response, HttpError> {
    control::handle(&app, ControlRequest::Resign, request).await
}

async fn drain(State(app): SharedApp, request: Request) -> Result<Response, HttpError> {
    control::handle(&app, ControlRequest::Drain, request).await
}

async fn undrain(State(app): SharedApp, request: Request) -> Result<Response, HttpError> {
    control::handle(&app, ControlRequest::Undrain, request).await
}

async fn not_found() -> HttpError {
    HttpError::invalid(StatusCode::NOT_FOUND, "there is nothing here: '/' lists what there is")
}

async fn method_not_allowed() -> HttpError {
    let message = "not with this method: '/' lists what there is";
    HttpError::invalid(StatusCode::METHOD_NOT_ALLOWED, message)
}
