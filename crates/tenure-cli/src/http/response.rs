//! How we answer: JSON, never to be kept, never to be guessed at.

use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tenure::Error;

pub(super) const JSON: &str = "application/json";

/// What stands on every answer. No CORS headers: no page but ours has any business here.
pub(super) async fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Any text.
pub(super) fn text(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    (status, [(CONTENT_TYPE, HeaderValue::from_static(kind))], body.into()).into_response()
}

/// A value as JSON.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => text(status, JSON, body),
        // Only a value that cannot be a key comes here, and we have none.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Why there is no answer, in one sentence.
#[derive(Clone, Debug)]
pub(super) struct HttpError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    header: Option<(HeaderName, &'static str)>,
}

impl HttpError {
    pub(super) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        HttpError { status, kind, message: message.into(), header: None }
    }

    /// What the client got wrong.
    pub(super) fn invalid(status: StatusCode, message: impl Into<String>) -> Self {
        HttpError::new(status, "invalid", message)
    }

    /// What the client may not do.
    pub(super) fn denied(status: StatusCode, message: impl Into<String>) -> Self {
        HttpError::new(status, "denied", message)
    }

    /// What the store did not say, and why.
    pub(super) fn of(error: &Error) -> Self {
        HttpError::new(StatusCode::SERVICE_UNAVAILABLE, error.kind().as_str(), error.to_string())
    }

    /// What there is too little of at the moment.
    pub(super) fn busy(message: impl Into<String>) -> Self {
        let refusal = HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message);
        refusal.with(RETRY_AFTER, "2")
    }

    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        HttpError::denied(StatusCode::UNAUTHORIZED, message).with(WWW_AUTHENTICATE, "Bearer")
    }

    fn with(self, name: HeaderName, value: &'static str) -> Self {
        HttpError { header: Some((name, value)), ..self }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let said = serde_json::json!({"error": {"kind": self.kind, "message": self.message}});
        let mut response = json(self.status, &said);
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
