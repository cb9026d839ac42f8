//! The calls to etcd's HTTP gateway: the log-in, and what an error means.

use std::fmt;
use std::sync::Arc;

use reqwest::header::AUTHORIZATION;
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::message::GatewayError;
use super::settings::EtcdSettings;
use crate::blocking;
use crate::error::{Error, Kind, Result};
use crate::store::http::{HttpAnswer, HttpClient, HttpRequest};

/// A client of one cluster.
pub(super) struct EtcdClient {
    pub(super) settings: Arc<EtcdSettings>,
    http: Arc<HttpClient>,
    /// The token of the last log-in.
    token: tokio::sync::Mutex<Option<Arc<str>>>,
}

/// Without the token.
impl fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdClient({:?})", self.settings)
    }
}

/// Why a call failed.
#[derive(Debug)]
pub(super) enum EtcdCallError {
    /// The token of the log-in is not valid any more: nothing was done.
    Token,
    /// There is no such etcd lease: nothing was done.
    NoLease,
    /// The cluster has no users: a log-in is not needed.
    NoAuthentication,
    /// Everything else.
    Other(Error),
}

impl From<Error> for EtcdCallError {
    fn from(error: Error) -> EtcdCallError {
        EtcdCallError::Other(error)
    }
}

impl From<EtcdCallError> for Error {
    fn from(error: EtcdCallError) -> Error {
        match error {
            EtcdCallError::Token => Error::unavailable("etcd does not accept its own log-in token"),
            EtcdCallError::NoLease => Error::unavailable("the etcd lease has expired"),
            EtcdCallError::NoAuthentication => Error::unavailable("etcd has no authentication"),
            EtcdCallError::Other(error) => error,
        }
    }
}

impl EtcdClient {
    pub(super) fn new(settings: Arc<EtcdSettings>) -> Self {
        let http = Arc::new(HttpClient::new(Arc::clone(&settings.target)));
        EtcdClient { settings, http, token: tokio::sync::Mutex::default() }
    }

    /// Calls one method of the gateway, such as `kv/range`.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        request: &impl Serialize,
    ) -> Result<T, EtcdCallError> {
        let mut answer = self.open(method, encoded(request)?).await?;
        let (status, body) = (answer.status(), answer.body().await?);
        serde_json::from_slice(&body)
            .map_err(|_| EtcdCallError::Other(self.settings.target.unexpected(status, &body)))
    }

    /// Calls a method, and returns its answer unread: for streams.
    pub(super) async fn open(
        &self,
        method: &str,
        body: Vec<u8>,
    ) -> Result<HttpAnswer, EtcdCallError> {
        let token = self.token().await?;
        match self.send(method, body.clone(), token.as_deref()).await {
            Err(EtcdCallError::Token) if token.is_some() => {
                // The server has forgotten the token: it was restarted, or the token is old.
                self.forget(token.as_ref()).await;
                let token = self.token().await?;
                self.send(method, body, token.as_deref()).await
            }
            answer => answer,
        }
    }

    async fn send(
        &self,
        method: &str,
        body: Vec<u8>,
        token: Option<&str>,
    ) -> Result<HttpAnswer, EtcdCallError> {
        let path = format!("/v3/{method}");
        let secret = token.map(|token| (AUTHORIZATION, token));
        let request = HttpRequest { method: Method::POST, path: &path, secret, body };
        let mut answer = self.http.send(&request).await?;
        if answer.status() == StatusCode::OK {
            answer.usable();
            return Ok(answer);
        }
        let (status, body) = (answer.status(), answer.body().await?);
        let error = self.explain(status, &body);
        // Another member may be able to answer what this one cannot: it has no leader, or it is not ready.
        if !matches!(&error, EtcdCallError::Other(error) if error.kind() == Kind::Unavailable) {
            answer.usable();
        }
        Err(error)
    }

    /// The token of the log-in; `None` without a user.
    async fn token(&self) -> Result<Option<Arc<str>>, EtcdCallError> {
        let (Some(user), Some(password)) = (&self.settings.user, &self.settings.password) else {
            return Ok(None);
        };
        let mut token = self.token.lock().await;
        if token.is_none() {
            let password = password.clone();
            let password = blocking::run(move || password.read()).await??;
            let body = encoded(&LoginRequest { name: user, password: password.expose() })?;
            let mut answer = match self.send("auth/authenticate", body, None).await {
                // As etcd's own client: a cluster without users needs no log-in.
                Err(EtcdCallError::NoAuthentication) => return Ok(None),
                answer => answer?,
            };
            let (status, body) = (answer.status(), answer.body().await?);
            let login: LoginResponse = serde_json::from_slice(&body)
                .map_err(|_| self.settings.target.unexpected(status, &body))?;
            *token = Some(login.token.into());
        }
        Ok(token.clone())
    }

    async fn forget(&self, used: Option<&Arc<str>>) {
        let mut token = self.token.lock().await;
        // Another call may have logged in again meanwhile.
        if token.as_ref() == used {
            *token = None;
        }
    }

    /// What an answer that is not a success means, and what to do.
    fn explain(&self, status: StatusCode, body: &[u8]) -> EtcdCallError {
        let error = serde_json::from_slice::<GatewayError>(body);
        match error.ok().filter(|error| !error.text().is_empty()) {
            Some(error) => self.gateway_error(&error),
            None if status == StatusCode::NOT_FOUND => {
                EtcdCallError::Other(Error::denied(format!(
                    "{} has no gateway for version 3 of etcd's API: Tenure needs etcd 3.4 or later",
                    self.settings.target.url
                )))
            }
            None => EtcdCallError::Other(self.settings.target.unexpected(status, body)),
        }
    }

    /// The meaning of an error that etcd has answered.
    pub(super) fn gateway_error(&self, error: &GatewayError) -> EtcdCallError {
        let (text, url) = (error.text(), &self.settings.target.url);
        let has = |part: &str| text.contains(part);
        if has("invalid auth token") {
            return EtcdCallError::Token;
        }
        if has("requested lease not found") {
            return EtcdCallError::NoLease;
        }
        if has("authentication is not enabled") {
            return EtcdCallError::NoAuthentication;
        }
        EtcdCallError::Other(if has("permission denied") {
            let user = self.settings.user.as_deref().unwrap_or("?");
            Error::denied(format!(
                "{url}: etcd denies the user '{user}' what Tenure needs. Grant its role the keys: etcdctl role \
                 grant-permission ROLE readwrite '{}' --prefix",
                self.settings.prefix
            ))
        } else if has("authentication failed") {
            Error::denied(format!("{url}: etcd refuses the log-in: check user and password"))
        } else if has("user name is empty") || has("user name not found") {
            Error::denied(format!("{url}: etcd requires a user: write etcd://USER:PASSWORD@HOST"))
        } else if has("database space exceeded") {
            Error::unavailable(format!(
                "{url}: etcd has no space left (NOSPACE): compact and defragment it, then etcdctl alarm disarm"
            ))
        } else if has("too many operations") {
            Error::denied(format!("{url}: its --max-txn-ops is below the 128 that Tenure needs"))
        } else if matches!(error.grpc_code(), Some(INVALID_ARGUMENT | NOT_FOUND | UNIMPLEMENTED)) {
            Error::denied(format!("{url}: etcd refuses a request: {text}"))
        } else {
            Error::unavailable(format!("{url}: {text}"))
        })
    }
}

// The codes of gRPC.
const INVALID_ARGUMENT: i64 = 3;
const NOT_FOUND: i64 = 5;
const UNIMPLEMENTED: i64 = 12;

fn encoded(request: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(request)
        .map_err(|error| Error::invalid(format!("a request to etcd cannot be written: {error}")))
}

#[derive(Serialize)]
struct LoginRequest<'a> {
    name: &'a str,
    password: &'a str,
}

#[derive(Deserialize)]
struct LoginResponse {
    token: String,
}
