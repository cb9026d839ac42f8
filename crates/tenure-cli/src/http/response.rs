//! Responses and errors: JSON with an explicit content type, never cached.

use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tenure::Error;

pub(super) const JSON: &str = "application/json";

/// Adds the headers of every response. There are no CORS headers: no page of another site needs access.
pub(super) async fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A response with a text body of this content type.
pub(super) fn text(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    (status, [(CONTENT_TYPE, HeaderValue::from_static(kind))], body.into()).into_response()
}

/// A response with a JSON body.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => text(status, JSON, body),
        // Only a map key that is not a string fails here, and there are none.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// An error response: a kind, one sentence, and perhaps a header.
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

    /// The client sent an invalid request.
    pub(super) fn invalid(status: StatusCode, message: impl Into<String>) -> Self {
        HttpError::new(status, "invalid", message)
    }

    /// The client is not allowed to do this.
    pub(super) fn denied(status: StatusCode, message: impl Into<String>) -> Self {
        HttpError::new(status, "denied", message)
    }

    /// The store did not answer; the reason is its error.
    pub(super) fn of(error: &Error) -> Self {
        HttpError::new(StatusCode::SERVICE_UNAVAILABLE, error.kind().as_str(), error.to_string())
    }

    /// A resource is used up at the moment; the client may retry.
    pub(super) fn busy(message: impl Into<String>) -> Self {
        let error = HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message);
        error.with(RETRY_AFTER, "2")
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
        let body = serde_json::json!({"error": {"kind": self.kind, "message": self.message}});
        let mut response = json(self.status, &body);
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
