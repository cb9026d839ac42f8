//! Which path means what.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream::{self, StreamExt};
use tokio::sync::Semaphore;

use super::control::{self, Refused, Wish};
use super::gate::Gate;
use super::instance::Instance;
use super::leases::Leases;
use super::limits::Limits;
use super::metrics;
use super::news::{self, Listening, News};
use super::reply::{self, Refusal};
use super::secret::Secret;

const PAGE: &str = include_str!("page.html");

/// What the handlers share.
#[derive(Debug)]
pub(super) struct App {
    pub(super) instance: Arc<Instance>,
    pub(super) gate: Gate,
    pub(super) secret: Option<Secret>,
    pub(super) limits: Limits,
    pub(super) leases: Leases,
    pub(super) news: Arc<News>,
    pub(super) listeners: Arc<Semaphore>,
    pub(super) refused: Refused,
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
    reply::json(StatusCode::OK, &app.instance.status())
}

/// For those who route by the code alone. It carries no right: by the time it is read, it may be another.
async fn leader(State(app): Shared) -> Response {
    let body = app.instance.status();
    let leads = body.is_leader;
    reply::json(if leads { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &body)
}

/// Fails only where a restart would help: not because somebody else leads, nor because the store is down.
async fn healthz(State(app): Shared) -> Response {
    match app.instance.trouble() {
        None => reply::json(StatusCode::OK, &serde_json::json!({"ok": true})),
        Some(trouble) => {
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", trouble).into_response()
        }
    }
}

async fn leases(State(app): Shared) -> Response {
    match app.leases.get().await {
        Ok(body) => reply::text(StatusCode::OK, reply::JSON, body),
        Err(refusal) => refusal.into_response(),
    }
}

async fn fleet() -> Refusal {
    let message = "this instance is a candidate, not a member of a fleet: ask one started with 'tenure fleet run'";
    Refusal::invalid(StatusCode::NOT_FOUND, message)
}

async fn events(State(app): Shared, headers: HeaderMap) -> Response {
    let Ok(place) = Arc::clone(&app.listeners).try_acquire_owned() else {
        let message = format!("{} listen already: try again later", app.limits.listeners);
        return Refusal::busy(message).into_response();
    };
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let Listening { id, missed, live } = app.news.listen(last);
    // Made after we listen: what happens in between is in it or comes after it.
    let Ok(state) = serde_json::to_string(&app.instance.status()) else {
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
    reply::text(StatusCode::OK, metrics::TYPE, metrics::page(&app.instance))
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
