//! Calls to a service that speaks HTTP, on one or several hosts.
//!
//! A request goes to the host that answered last. A host that cannot be reached, or whose answer the store calls unusable, is
//! left for the next one. A request that may have arrived is never sent again: what it did is unknown.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::dns::{Addrs, Name as HostName, Resolve, Resolving};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Response, StatusCode, redirect};

use super::endpoint::Host;
use super::resolver::{Addresses, lookup_addresses};
use super::tls::{self, TlsClient};
use crate::blocking;
use crate::error::{Error, Kind, Result};

/// How long a connection to one address may take. Every call has the timeout of its caller too.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long an idle connection is kept: longer than any TTL at which a waiting candidate calls again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// After this time without data, the kernel checks that the server is still there.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

/// No answer to a request of a store is longer.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The part of an unusable answer that an error shows.
const SHOWN_BYTES: usize = 200;

/// What a server written in Go answers on its TLS port to a request without TLS.
const TLS_REQUIRED: &[u8] = b"Client sent an HTTP request to an HTTPS server";

/// Where a service is.
pub(super) struct HttpTarget {
    /// The name of the service in messages: `etcd`.
    pub(super) service: &'static str,
    /// At least one.
    pub(super) hosts: Vec<Host>,
    pub(super) tls: Option<TlsClient>,
    /// The URL of the store for messages, without secrets.
    pub(super) url: String,
}

/// A client of one service.
pub(super) struct HttpClient {
    pub(super) target: Arc<HttpTarget>,
    /// Made when it is needed. Made again after a failed connection, because certificates are replaced on disk.
    http: Mutex<Option<Client>>,
    /// The number of the host that is called first.
    host: AtomicUsize,
    resolver: Arc<HttpResolver>,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpClient({})", self.target.url)
    }
}

/// A request to a service.
pub(super) struct HttpRequest<'a> {
    pub(super) method: Method,
    /// Begins with `/`, and includes the query.
    pub(super) path: &'a str,
    /// A header that carries a secret, such as a token.
    pub(super) secret: Option<(HeaderName, &'a str)>,
    pub(super) body: Vec<u8>,
}

/// An answer with any status. Until the store calls it [usable](HttpAnswer::usable), the next request goes to another host.
pub(super) struct HttpAnswer {
    response: Response,
    attempt: HttpAttempt,
}

impl HttpClient {
    pub(super) fn new(target: Arc<HttpTarget>) -> Self {
        HttpClient {
            target,
            http: Mutex::default(),
            host: AtomicUsize::new(0),
            resolver: Arc::default(),
        }
    }

    /// Sends a request to the first host that can be reached.
    ///
    /// # Errors
    /// Unavailable if no host can be reached, or the connection is lost. Denied if TLS fails.
    pub(super) async fn send(self: &Arc<Self>, request: &HttpRequest<'_>) -> Result<HttpAnswer> {
        let mut failure = None;
        for _ in &self.target.hosts {
            let attempt = HttpAttempt::begin(self);
            let host = &self.target.hosts[attempt.host()];
            let error = match self.request(host, request).await?.send().await {
                Ok(response) => return Ok(HttpAnswer { response, attempt }),
                Err(error) => error,
            };
            // The next connection reads the certificates again.
            locked(&self.http).take();
            let is_unsent = error.is_connect();
            let error = self.target.unreachable(host, &error);
            if !is_unsent || error.kind() != Kind::Unavailable {
                return Err(error);
            }
            failure = Some(error);
        }
        Err(failure.unwrap_or_else(|| Error::invalid("the URL names no host")))
    }

    async fn request(
        &self,
        host: &Host,
        request: &HttpRequest<'_>,
    ) -> Result<reqwest::RequestBuilder> {
        let scheme = if self.target.tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{host}{}", request.path);
        let mut headers = HeaderMap::new();
        if let Some((name, secret)) = &request.secret {
            let mut value = HeaderValue::from_str(secret)
                .map_err(|_| Error::invalid("the token has a character that HTTP cannot carry"))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let client = self.http().await?;
        Ok(client.request(request.method.clone(), url).headers(headers).body(request.body.clone()))
    }

    async fn http(&self) -> Result<Client> {
        if let Some(client) = &*locked(&self.http) {
            return Ok(client.clone());
        }
        let builder = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            // A watch may be silent for long: without this a lost connection would stay unnoticed.
            .tcp_keepalive(TCP_KEEPALIVE)
            .tcp_nodelay(true)
            .dns_resolver(Arc::clone(&self.resolver));
        let target = Arc::clone(&self.target);
        let builder = blocking::run(move || tls::configure(builder, target.tls.as_ref())).await??;
        let client = builder
            .build()
            .map_err(|error| Error::denied(format!("cannot set up HTTP: {}", cause(&error))))?;
        Ok(locked(&self.http).insert(client).clone())
    }
}

impl HttpAnswer {
    pub(super) fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The value of a header; `None` if there is none, or if it is not text.
    #[cfg(feature = "consul")]
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// The host works: the next request goes to it too.
    pub(super) fn usable(&mut self) {
        self.attempt.succeeded();
    }

    /// The rest of the answer, as it arrives.
    ///
    /// # Errors
    /// Unavailable if the connection is lost.
    pub(super) async fn chunk(&mut self) -> Result<Option<Vec<u8>>> {
        let target = &self.attempt.client.target;
        let chunk = self.response.chunk().await;
        chunk.map(|chunk| chunk.map(|chunk| chunk.to_vec())).map_err(|error| {
            let url = &target.url;
            Error::unavailable(format!("the connection to {url} was lost: {}", cause(&error)))
        })
    }

    /// The whole answer.
    ///
    /// # Errors
    /// Unavailable if the connection is lost, or the answer is too long. Denied if the server speaks TLS only.
    pub(super) async fn body(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(self.attempt.client.target.unusable("it is too long"));
            }
            body.extend_from_slice(&chunk);
        }
        let target = &self.attempt.client.target;
        if target.tls.is_none() && body.starts_with(TLS_REQUIRED) {
            return Err(Error::denied(format!(
                "cannot talk to {}: the server speaks TLS; add tls=1, or name its plaintext port",
                target.url
            )));
        }
        Ok(body)
    }
}

impl HttpTarget {
    /// The error for an answer that is not in the service's format, such as the page of a proxy.
    pub(super) fn unexpected(&self, status: StatusCode, answer: &[u8]) -> Error {
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(SHOWN_BYTES)]);
        self.unusable(&format!(
            "status {status}, '{}'. Check host and port, and whether a proxy answers instead of {}",
            shown.trim().escape_debug(),
            self.service
        ))
    }

    fn unusable(&self, reason: &str) -> Error {
        Error::unavailable(format!("the answer of {} cannot be used: {reason}", self.url))
    }

    /// The error for a request that got no answer.
    fn unreachable(&self, host: &Host, error: &reqwest::Error) -> Error {
        let service = self.service;
        let plaintext = "remove tls=1, ca, cert and key, or name its TLS port";
        if let Some(reason) = causes(error).find_map(|cause| tls_reason(cause, plaintext)) {
            return Error::denied(format!("will not talk to {service} at {host}: {reason}"));
        }
        let cause = cause(error);
        Error::unavailable(match (error.is_connect(), &self.tls) {
            (true, Some(_)) if cause.contains("handshake eof") => format!(
                "{service} at {host} closed the connection during the TLS handshake. If this port has no TLS, remove tls=1, \
                 ca, cert and key"
            ),
            (true, _) => {
                format!("cannot reach {service} at {host}: {cause}. Is {service} running?")
            }
            (false, Some(_)) => format!("lost the connection to {service} at {host}: {cause}"),
            (false, None) => format!(
                "lost the connection to {service} at {host}: {cause}. If this port speaks TLS, add tls=1"
            ),
        })
    }
}

/// The addresses of host names. The lookups run on the threads of [`blocking`], and addresses found earlier serve while a lookup
/// fails.
#[derive(Debug, Default)]
struct HttpResolver(Mutex<HashMap<String, Arc<Addresses>>>);

impl Resolve for HttpResolver {
    fn resolve(&self, name: HostName) -> Resolving {
        let name = name.as_str().to_owned();
        let addresses = Arc::clone(locked(&self.0).entry(name.clone()).or_default());
        Box::pin(async move {
            // reqwest adds the port.
            let found = addresses.resolve(lookup_addresses(Host { name, port: 0 })).await?;
            let found: Box<dyn Iterator<Item = SocketAddr> + Send> = Box::new(found.into_iter());
            Ok::<Addrs, Box<dyn StdError + Send + Sync>>(found)
        })
    }
}

/// One request to one host. If it is dropped before it succeeded, the next request goes to the next host.
struct HttpAttempt {
    client: Arc<HttpClient>,
    number: usize,
    failed: bool,
}

impl HttpAttempt {
    fn begin(client: &Arc<HttpClient>) -> Self {
        let number = client.host.load(Ordering::Relaxed);
        HttpAttempt { client: Arc::clone(client), number, failed: true }
    }

    fn host(&self) -> usize {
        self.number % self.client.target.hosts.len()
    }

    fn succeeded(&mut self) {
        self.failed = false;
    }
}

impl Drop for HttpAttempt {
    fn drop(&mut self) {
        if self.failed {
            let (next, order) = (self.number.wrapping_add(1), Ordering::Relaxed);
            // Of several requests that failed at one host, only the first changes it.
            let _ = self.client.host.compare_exchange(self.number, next, order, order);
        }
    }
}

fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    let mut next = error.source();
    std::iter::from_fn(move || {
        let cause = next?;
        next = cause.source();
        Some(cause)
    })
}

/// The innermost cause of an error: the outer ones only say that there was an error.
fn cause(error: &reqwest::Error) -> String {
    let text = causes(error).last().map_or_else(|| error.to_string(), ToString::to_string);
    match text.strip_suffix(" (os error 111)") {
        Some(_) => "connection refused".to_owned(),
        None => text,
    }
}

/// Why TLS failed, if that is the cause.
fn tls_reason(cause: &(dyn StdError + 'static), plaintext: &str) -> Option<String> {
    tls::explain(cause.downcast_ref::<io::Error>()?, plaintext)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
