//! The calls to a Consul agent: the token, and what an error means.

use std::fmt;
use std::sync::Arc;

use reqwest::header::HeaderName;
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;

use super::message::{KeyValue, KvOperation, TxnAnswer, TxnError, TxnOperation, TxnRefusal};
use super::settings::ConsulSettings;
use crate::blocking;
use crate::error::{Error, Result};
use crate::store::endpoint::Password;
use crate::store::http::{HttpClient, HttpRequest};

static TOKEN_HEADER: HeaderName = HeaderName::from_static("x-consul-token");

/// The header of an answer about keys: the index of their last change.
const INDEX_HEADER: &str = "x-consul-index";

/// A client of one agent.
pub(super) struct ConsulClient {
    pub(super) settings: Arc<ConsulSettings>,
    http: Arc<HttpClient>,
    /// The token as it was last read.
    token: tokio::sync::Mutex<Option<Arc<str>>>,
}

/// Without the token.
impl fmt::Debug for ConsulClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConsulClient({})", self.settings.target.url)
    }
}

/// An answer with one of the statuses 200, 404 and 409.
pub(super) struct ConsulAnswer {
    pub(super) status: StatusCode,
    /// The index of an answer about keys.
    pub(super) index: Option<u64>,
    pub(super) body: Vec<u8>,
}

impl ConsulClient {
    pub(super) fn new(settings: Arc<ConsulSettings>) -> Self {
        let http = Arc::new(HttpClient::new(Arc::clone(&settings.target)));
        ConsulClient { settings, http, token: tokio::sync::Mutex::default() }
    }

    pub(super) async fn get(&self, path: &str) -> Result<ConsulAnswer> {
        self.call(Method::GET, path, Vec::new()).await
    }

    pub(super) async fn put(&self, path: &str, body: Vec<u8>) -> Result<ConsulAnswer> {
        self.call(Method::PUT, path, body).await
    }

    async fn call(&self, method: Method, path: &str, body: Vec<u8>) -> Result<ConsulAnswer> {
        let path = match &self.settings.datacenter {
            None => path.to_owned(),
            Some(name) => {
                let and = if path.contains('?') { '&' } else { '?' };
                format!("{path}{and}dc={}", crate::store::endpoint::percent_encoded(name))
            }
        };
        let token = self.token().await?;
        let (status, answer) = self.send(&method, &path, &body, token.as_deref()).await?;
        let answer = match status {
            // Nothing was done, and a token in a file may have been replaced.
            StatusCode::FORBIDDEN if self.is_replaced(token.as_ref()).await? => {
                let token = self.token().await?;
                self.send(&method, &path, &body, token.as_deref()).await?.1
            }
            _ => answer,
        };
        match answer.status {
            StatusCode::OK | StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(answer),
            status => Err(self.explain(&path, status, &answer.body)),
        }
    }

    async fn send(
        &self,
        method: &Method,
        path: &str,
        body: &[u8],
        token: Option<&str>,
    ) -> Result<(StatusCode, ConsulAnswer)> {
        let secret = token.map(|token| (TOKEN_HEADER.clone(), token));
        let request = HttpRequest { method: method.clone(), path, secret, body: body.to_vec() };
        let mut answer = self.http.send(&request).await?;
        answer.usable();
        let index = answer.header(INDEX_HEADER).and_then(|index| index.parse().ok());
        let (status, body) = (answer.status(), answer.body().await?);
        Ok((status, ConsulAnswer { status, index, body }))
    }

    async fn token(&self) -> Result<Option<Arc<str>>> {
        let Some(password) = &self.settings.token else { return Ok(None) };
        let mut token = self.token.lock().await;
        if token.is_none() {
            let password = password.clone();
            let secret = blocking::run(move || password.read()).await??;
            *token = Some(secret.expose().into());
        }
        Ok(token.clone())
    }

    /// Whether the file of the token has another one than `used`.
    async fn is_replaced(&self, used: Option<&Arc<str>>) -> Result<bool> {
        if !matches!(self.settings.token, Some(Password::File(_))) {
            return Ok(false);
        }
        self.token.lock().await.take();
        Ok(self.token().await?.as_ref() != used)
    }

    /// Runs a transaction. Only operations that read may be `consistent`.
    pub(super) async fn txn(
        &self,
        operations: impl IntoIterator<Item = KvOperation>,
        consistent: bool,
    ) -> Result<TxnAnswer> {
        let operations: Vec<_> = operations.into_iter().map(|kv| TxnOperation { kv }).collect();
        let body = serde_json::to_vec(&operations).map_err(|error| {
            Error::invalid(format!("a request to Consul cannot be written: {error}"))
        })?;
        let path = if consistent { "/v1/txn?consistent" } else { "/v1/txn" };
        let answer = self.put(path, body).await?;
        let parsed: TxnAnswer = self.parsed(&answer)?;
        match (answer.status, &parsed.errors) {
            (StatusCode::OK, None) => Ok(parsed),
            (StatusCode::CONFLICT, Some(errors)) if !errors.is_empty() => {
                match errors.iter().find(|error| error.refusal() == TxnRefusal::Denied) {
                    Some(_) => Err(self.denied(path)),
                    None => Ok(parsed),
                }
            }
            _ => Err(self.unexpected(&answer)),
        }
    }

    /// Reads keys, at most as many as a transaction may have operations. `None` for a key that does not exist.
    pub(super) async fn read_keys(&self, keys: &[String]) -> Result<Vec<Option<KeyValue>>> {
        let mut found: Vec<Option<KeyValue>> = keys.iter().map(|_| None).collect();
        // A transaction does nothing if a key does not exist. Each repetition has fewer keys.
        let mut wanted: Vec<usize> = (0..keys.len()).collect();
        while !wanted.is_empty() {
            let reads = wanted.iter().map(|&at| KvOperation::get(&keys[at]));
            let answer = self.txn(reads, true).await?;
            match answer.errors {
                None => {
                    let values = answer.results.unwrap_or_default();
                    if values.len() != wanted.len() {
                        return Err(Error::unavailable("Consul has answered a part of a read"));
                    }
                    for (at, value) in wanted.drain(..).zip(values) {
                        found[at] = Some(value.kv);
                    }
                }
                Some(errors) => remove_failed(&mut wanted, &errors)?,
            }
        }
        Ok(found)
    }

    /// The content of an answer.
    pub(super) fn parsed<T: DeserializeOwned>(&self, answer: &ConsulAnswer) -> Result<T> {
        serde_json::from_slice(&answer.body).map_err(|_| self.unexpected(answer))
    }

    pub(super) fn unexpected(&self, answer: &ConsulAnswer) -> Error {
        self.settings.target.unexpected(answer.status, &answer.body)
    }

    /// What an answer that is not a success means, and what to do.
    fn explain(&self, path: &str, status: StatusCode, body: &[u8]) -> Error {
        let text = String::from_utf8_lossy(body);
        let (url, has) = (&self.settings.target.url, |part: &str| text.contains(part));
        let is_page = text.trim_start().starts_with('<');
        if status == StatusCode::FORBIDDEN && has("Permission denied") {
            self.denied(path)
        } else if status == StatusCode::FORBIDDEN && has("ACL not found") {
            Error::denied(format!(
                "{url}: Consul does not know the token: give a valid one, as consul://:TOKEN@HOST or in \
                 CONSUL_HTTP_TOKEN"
            ))
        } else if has("Invalid Session TTL") {
            Error::denied(format!("{url}: {text}: the server's session_ttl_min is above it"))
        } else if status == StatusCode::TOO_MANY_REQUESTS {
            Error::unavailable(format!(
                "{url}: Consul refuses more connections: raise limits.http_max_conns_per_client of the agent"
            ))
        } else if status == StatusCode::INTERNAL_SERVER_ERROR && !is_page && !text.is_empty() {
            Error::unavailable(format!("{url}: {}", text.trim().escape_debug()))
        } else {
            self.settings.target.unexpected(status, body)
        }
    }

    fn denied(&self, path: &str) -> Error {
        let (url, prefix) = (&self.settings.target.url, &self.settings.prefix);
        let rule = match path.contains("/session/") {
            true => r#"session_prefix "" { policy = "write" }"#.to_owned(),
            false => format!(r#"key_prefix "{prefix}" {{ policy = "write" }}"#),
        };
        let token = match self.settings.token {
            Some(_) => "the token",
            None => "requests without a token",
        };
        Error::denied(format!(
            "{url}: Consul denies {token} what Tenure needs. Add to its policy: {rule}"
        ))
    }
}

/// Removes the items whose operation failed: one operation each.
fn remove_failed(items: &mut Vec<usize>, errors: &[TxnError]) -> Result<()> {
    let before = items.len();
    let mut number = 0;
    items.retain(|_| {
        number += 1;
        !errors.iter().any(|error| error.op_index == number - 1)
    });
    match items.len() < before {
        true => Ok(()),
        false => Err(Error::unavailable("Consul refuses a transaction and does not say why")),
    }
}
