//! The calls to etcd's HTTP gateway: which member is called, the log-in, and what an error means.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Client, Response, StatusCode, redirect};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::message::GatewayError;
use super::settings::EtcdSettings;
use crate::blocking;
use crate::error::{Error, Kind, Result};
use crate::store::tls;

/// How long a connection may take. Every call has the timeout of its caller too.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// No answer of etcd to a call of ours is longer.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The part of an answer that an error shows.
const SHOWN_BYTES: usize = 200;

/// A client of one cluster.
pub(super) struct EtcdClient {
    pub(super) settings: Arc<EtcdSettings>,
    /// Made when it is needed. Made again after a failed connection, because certificates are replaced on disk.
    http: Mutex<Option<Client>>,
    /// The number of the member that is called first.
    member: AtomicUsize,
    /// The token of the last log-in.
    token: tokio::sync::Mutex<Option<Arc<str>>>,
}

impl fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdClient({})", self.settings.url)
    }
}

/// Why a call failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// The token of the log-in is not valid any more: nothing was done.
    Token,
    /// There is no such etcd lease: nothing was done.
    NoLease,
    /// Everything else.
    Other(Error),
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Error {
        match error {
            CallError::Token => Error::unavailable("etcd does not accept its own log-in token"),
            CallError::NoLease => Error::unavailable("the etcd lease has expired"),
            CallError::Other(error) => error,
        }
    }
}

impl EtcdClient {
    pub(super) fn new(settings: Arc<EtcdSettings>) -> Self {
        EtcdClient {
            settings,
            http: Mutex::default(),
            member: AtomicUsize::new(0),
            token: tokio::sync::Mutex::default(),
        }
    }

    /// Calls one method of the gateway, such as `kv/range`.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        request: &impl Serialize,
    ) -> Result<T, CallError> {
        let body = serde_json::to_vec(request).map_err(|error| {
            CallError::Other(Error::invalid(format!("a request to etcd cannot be written: {error}")))
        })?;
        let response = self.open(method, body).await?;
        let answer = self.body(response).await.map_err(CallError::Other)?;
        serde_json::from_slice(&answer).map_err(|_| CallError::Other(self.not_etcd(&answer)))
    }

    /// Calls a method, and returns its answer unread: for streams.
    pub(super) async fn open(&self, method: &str, body: Vec<u8>) -> Result<Response, CallError> {
        let token = self.token().await?;
        match self.send(method, body.clone(), token.as_deref()).await {
            Err(CallError::Token) if token.is_some() => {
                // The server has forgotten the token: it was restarted, or the token is old.
                self.forget(token.as_ref()).await;
                let token = self.token().await?;
                self.send(method, body, token.as_deref()).await
            }
            answer => answer,
        }
    }

    /// Sends a request to the first member that can be reached. A request that may have arrived is not sent again.
    async fn send(
        &self,
        method: &str,
        body: Vec<u8>,
        token: Option<&str>,
    ) -> Result<Response, CallError> {
        let mut failure = None;
        for _ in &self.settings.hosts {
            let attempt = Attempt::begin(self);
            let url = format!("{}/v3/{method}", self.settings.base(&self.settings.hosts[attempt.member]));
            let mut request = self.http().await?.post(url).header(CONTENT_TYPE, "application/json");
            if let Some(token) = token {
                request = request.header(AUTHORIZATION, token);
            }
            let error = match request.body(body.clone()).send().await {
                Ok(response) if response.status() == StatusCode::OK => {
                    attempt.succeeded();
                    return Ok(response);
                }
                Ok(response) => {
                    let (status, answer) = (response.status(), self.body(response).await?);
                    let error = self.explain(status, &answer);
                    if !matches!(&error, CallError::Other(error) if error.kind() == Kind::Unavailable) {
                        attempt.succeeded();
                    }
                    return Err(error);
                }
                Err(error) => error,
            };
            // The next connection reads the certificates again.
            self.http.lock().unwrap_or_else(PoisonError::into_inner).take();
            let is_unsent = error.is_connect();
            let error = self.transport_error(&error, attempt.member);
            if !is_unsent || error.kind() != Kind::Unavailable {
                return Err(CallError::Other(error));
            }
            failure = Some(error);
        }
        let failure = failure.unwrap_or_else(|| Error::invalid("the etcd URL names no host"));
        Err(CallError::Other(failure))
    }

    async fn http(&self) -> Result<Client> {
        if let Some(client) = &*self.http.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(client.clone());
        }
        let builder = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true);
        let settings = Arc::clone(&self.settings);
        let builder = blocking::run(move || tls::configure(builder, settings.tls.as_ref())).await??;
        let client = builder
            .build()
            .map_err(|error| Error::denied(format!("cannot set up HTTP: {error}")))?;
        Ok(self.http.lock().unwrap_or_else(PoisonError::into_inner).insert(client).clone())
    }

    /// The token of the log-in; `None` without a user.
    async fn token(&self) -> Result<Option<Arc<str>>, CallError> {
        let (Some(user), Some(password)) = (&self.settings.user, &self.settings.password) else {
            return Ok(None);
        };
        let mut token = self.token.lock().await;
        if token.is_none() {
            let password = password.clone();
            let password = blocking::run(move || password.read()).await.and_then(|read| read)?;
            let login = LoginRequest { name: user, password: password.expose() };
            let body = serde_json::to_vec(&login).unwrap_or_default();
            let answer = match self.send("auth/authenticate", body, None).await {
                Ok(response) => self.body(response).await?,
                // As etcd's own client: a server without authentication needs no log-in.
                Err(CallError::Other(error)) if error.to_string().contains(NOT_ENABLED) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            let login: LoginResponse =
                serde_json::from_slice(&answer).map_err(|_| self.not_etcd(&answer))?;
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

    /// Reads an answer.
    async fn body(&self, mut response: Response) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() <= MAX_ANSWER_BYTES => {
                    body.extend_from_slice(&chunk);
                }
                Ok(Some(_)) => return Err(self.unavailable("its answer is too long")),
                Ok(None) => return Ok(body),
                Err(error) => return Err(self.unavailable(&describe(&error))),
            }
        }
    }

    fn unavailable(&self, reason: &str) -> Error {
        Error::unavailable(format!("no usable answer from {}: {reason}", self.settings.url))
    }

    fn not_etcd(&self, answer: &[u8]) -> Error {
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(SHOWN_BYTES)]);
        self.unavailable(&format!(
            "it is not what etcd answers ('{}'). Check host and port, and whether a proxy answers instead",
            shown.escape_debug()
        ))
    }

    fn transport_error(&self, error: &reqwest::Error, member: usize) -> Error {
        let host = &self.settings.hosts[member];
        if let Some(reason) = tls_reason(error) {
            return Error::denied(format!("cannot connect to etcd at {host}: {reason}"));
        }
        Error::unavailable(format!("cannot reach etcd at {host}: {}", describe(error)))
    }

    /// What an answer that is not a success means, and what to do.
    fn explain(&self, status: StatusCode, answer: &[u8]) -> CallError {
        let Ok(error) = serde_json::from_slice::<GatewayError>(answer) else {
            return CallError::Other(match status {
                StatusCode::NOT_FOUND => Error::denied(format!(
                    "{} has no gateway for version 3: Tenure needs etcd 3.4 or later",
                    self.settings.url
                )),
                _ => self.not_etcd(answer),
            });
        };
        self.gateway_error(&error)
    }

    /// The meaning of an error that etcd has answered.
    pub(super) fn gateway_error(&self, error: &GatewayError) -> CallError {
        let (text, url) = (error.text(), &self.settings.url);
        let denied = |reason: String| CallError::Other(Error::denied(format!("{url}: {reason}")));
        if text.contains("invalid auth token") {
            return CallError::Token;
        }
        if text.contains("requested lease not found") {
            return CallError::NoLease;
        }
        if text.contains("permission denied") {
            let user = self.settings.user.as_deref().unwrap_or("?");
            let prefix = &self.settings.prefix;
            return denied(format!(
                "etcd denies the user '{user}' what Tenure needs. Grant its role the keys: etcdctl role grant-permission ROLE \
                 readwrite '{prefix}' --prefix"
            ));
        }
        if text.contains("invalid user ID or password") {
            return denied("check user and password".to_owned());
        }
        if text.contains("user name is empty") {
            return denied("etcd requires a user: write etcd://USER:PASSWORD@HOST".to_owned());
        }
        if text.contains("database space exceeded") {
            return CallError::Other(Error::unavailable(format!(
                "{url}: etcd has no space left (NOSPACE): compact and defragment it, then etcdctl alarm disarm"
            )));
        }
        if text.contains("too many operations") {
            return denied("its --max-txn-ops is below 128, which Tenure needs".to_owned());
        }
        CallError::Other(match error.grpc_code() {
            Some(NOT_FOUND | INVALID_ARGUMENT | UNIMPLEMENTED) => {
                Error::denied(format!("{url}: etcd refuses a request: {text}"))
            }
            _ => Error::unavailable(format!("{url}: {text}")),
        })
    }
}

/// The codes of gRPC.
const INVALID_ARGUMENT: i64 = 3;
const NOT_FOUND: i64 = 5;
const UNIMPLEMENTED: i64 = 12;

const NOT_ENABLED: &str = "authentication is not enabled";

#[derive(Serialize)]
struct LoginRequest<'a> {
    name: &'a str,
    password: &'a str,
}

#[derive(Deserialize)]
struct LoginResponse {
    token: String,
}

/// One request to one member. If it fails, or its caller gives up, the next request goes to the next member.
struct Attempt<'a> {
    client: &'a EtcdClient,
    member: usize,
    number: usize,
}

impl<'a> Attempt<'a> {
    fn begin(client: &'a EtcdClient) -> Self {
        let number = client.member.load(Ordering::Relaxed);
        Attempt { client, member: number % client.settings.hosts.len(), number }
    }

    fn succeeded(mut self) {
        self.number = usize::MAX;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.number != usize::MAX {
            let next = self.number.wrapping_add(1) % self.client.settings.hosts.len();
            let (order, member) = (Ordering::Relaxed, &self.client.member);
            // Only the first of several requests that failed at one member changes it.
            let _ = member.compare_exchange(self.number, next, order, order);
        }
    }
}

/// The causes of an error in one line.
fn describe(error: &reqwest::Error) -> String {
    let mut causes = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        causes.push(error.to_string());
        cause = error.source();
    }
    // The outer ones only say that there was an error.
    causes.pop().unwrap_or_else(|| error.to_string())
}

/// Why TLS failed, if that is the cause.
fn tls_reason(error: &reqwest::Error) -> Option<String> {
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.downcast_ref::<io::Error>();
        if let Some(reason) = reason.and_then(|error| tls::explain(error, "leave out tls=1, ca, cert and key")) {
            return Some(reason);
        }
        cause = error.source();
    }
    None
}
