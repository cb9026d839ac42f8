//! The requests to the API server.

use std::fmt;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt};
use http::header::RETRY_AFTER;
use k8s_openapi::List;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{GetParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::client::Body;
use kube::core::Request;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, Semaphore};

use super::MAX_IN_FLIGHT;
use super::error::{Refusal, Verb, not_kubernetes, not_sent};
use super::lease_object::{KIND, object_name};
use super::settings::KubernetesSettings;
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::lease::Name;
use crate::store::Scope;

/// The longest time that one request may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time that the API server can make this client wait before the next request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// The number of objects in one page of a list.
const PAGE: u32 = 500;

/// The length of one watch request in seconds. A connection that is lost without notice is found after this time.
pub(super) const WATCH_SECONDS: u32 = 60;

/// The result of a write.
#[derive(Debug)]
pub(super) enum Put {
    /// The object as it is stored now.
    Written(Box<Lease>),
    /// The object is not the expected one any more. Nothing was written.
    Conflict,
}

/// One client with its own connections.
pub(super) struct ApiClient {
    settings: Arc<KubernetesSettings>,
    clock: Clock,
    leases: Request,
    /// Built at the first request, in the runtime that uses it, because its connections belong to that runtime.
    client: Mutex<Option<Client>>,
    permits: Semaphore,
    /// The server has asked for no request before this moment.
    not_before: StdMutex<Option<Moment>>,
}

impl fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiClient({:?})", self.settings)
    }
}

impl ApiClient {
    pub(super) fn new(settings: Arc<KubernetesSettings>, clock: Clock) -> Self {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", settings.namespace);
        ApiClient {
            settings,
            clock,
            leases: Request::new(path),
            client: Mutex::default(),
            permits: Semaphore::new(MAX_IN_FLIGHT),
            not_before: StdMutex::default(),
        }
    }

    pub(super) fn settings(&self) -> Arc<KubernetesSettings> {
        Arc::clone(&self.settings)
    }

    /// The object of a name; `None` if there is none.
    pub(super) async fn get(&self, name: &Name) -> Result<Option<Lease>> {
        let verb = Verb("get");
        let request = self.leases.get(&object_name(name), &GetParams::default());
        match self.send(verb, request).await? {
            Ok(body) => self.parse(verb, &body).map(Some),
            Err(refusal) if refusal.is_missing_lease() => Ok(None),
            Err(refusal) => Err(refusal.into_error(verb, &self.settings)),
        }
    }

    pub(super) async fn create(&self, object: &Lease) -> Result<Put> {
        let body = self.encode(object)?;
        let request = self.leases.create(&PostParams::default(), body);
        self.put(Verb("create"), request).await
    }

    /// Replaces an object, only if its uid and resourceVersion are those in `object`.
    pub(super) async fn update(&self, object: &Lease) -> Result<Put> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let body = self.encode(object)?;
        let request = self.leases.replace(&name, &PostParams::default(), body);
        self.put(Verb("update"), request).await
    }

    async fn put(&self, verb: Verb, request: HttpRequest) -> Result<Put> {
        match self.send(verb, request).await? {
            Ok(body) => Ok(Put::Written(self.parse(verb, &body)?)),
            // An update of a deleted object is a conflict with its uid; some servers answer that it is missing.
            Err(refusal) if refusal.http_status == 409 || refusal.is_missing_lease() => {
                Ok(Put::Conflict)
            }
            Err(refusal) => Err(refusal.into_error(verb, &self.settings)),
        }
    }

    /// The objects of a scope, and the resourceVersion of the list.
    pub(super) async fn list(&self, scope: &Scope) -> Result<(Vec<Lease>, String)> {
        let verb = Verb("list");
        let mut params = match selector(scope) {
            LeaseSelector::Name(name) => ListParams::default().fields(&name),
            LeaseSelector::Label => ListParams::default().labels(KIND),
            LeaseSelector::All => ListParams::default(),
        };
        params = params.limit(PAGE);
        let mut objects = Vec::new();
        loop {
            let page: List<Lease> = match self.send(verb, self.leases.list(&params)).await? {
                Ok(body) => self.parse(verb, &body)?,
                // The token of the next page is too old: from the beginning.
                Err(refusal) if refusal.http_status == 410 && params.continue_token.is_some() => {
                    objects.clear();
                    params.continue_token = None;
                    continue;
                }
                Err(refusal) => return Err(refusal.into_error(verb, &self.settings)),
            };
            objects.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok((objects, page.metadata.resource_version.unwrap_or_default())),
            }
        }
    }

    /// The changes after `resource_version`, until the request ends.
    pub(super) async fn watch(
        &self,
        scope: &Scope,
        resource_version: &str,
    ) -> Result<BoxStream<'static, kube::Result<WatchEvent<Lease>>>> {
        let params = WatchParams::default().timeout(WATCH_SECONDS);
        let params = match selector(scope) {
            LeaseSelector::Name(name) => params.fields(&name),
            LeaseSelector::Label => params.labels(KIND),
            LeaseSelector::All => params,
        };
        let verb = Verb("watch");
        let request = self.leases.watch(&params, resource_version);
        let request = request.map_err(|error| Error::invalid(error.to_string()))?;
        let client = self.client(verb).await?;
        self.wait_is_over(verb)?;
        let started = client.request_events::<Lease>(request);
        let started = tokio::time::timeout(ANSWER_TIMEOUT, started).await;
        match started {
            Ok(Ok(events)) => Ok(events.boxed()),
            Ok(Err(error)) => Err(not_sent(error, verb, &self.settings)),
            Err(_) => Err(self.no_answer(verb)),
        }
    }

    /// A request that is not about leases: its answer as JSON.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        verb: Verb,
        request: HttpRequest,
    ) -> Result<T> {
        match self.send(verb, request).await? {
            Ok(body) => self.parse(verb, &body),
            Err(refusal) => Err(refusal.into_error(verb, &self.settings)),
        }
    }

    /// Sends one request, once. The inner error is an answer other than success.
    async fn send(&self, verb: Verb, request: HttpRequest) -> Result<Result<Vec<u8>, Refusal>> {
        let request = request.map_err(|error| Error::invalid(error.to_string()))?;
        let client = self.client(verb).await?;
        // Never closed.
        let _permit = self.permits.acquire().await.ok();
        self.wait_is_over(verb)?;
        let exchange = async {
            let response = client.send(request.map(Body::from)).await?;
            let (head, body) = response.into_parts();
            Ok((head, body.collect_bytes().await?.to_vec()))
        };
        let (head, body) = match tokio::time::timeout(ANSWER_TIMEOUT, exchange).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(not_sent(error, verb, &self.settings)),
            Err(_) => return Err(self.no_answer(verb)),
        };
        if head.status.is_success() {
            return Ok(Ok(body));
        }
        let refusal = Refusal::new(head.status.as_u16(), body);
        let after =
            head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        if let (429 | 503, Some(seconds)) = (refusal.http_status, after) {
            let wait = Duration::from_secs(seconds).min(MAX_RETRY_AFTER);
            *self.not_before() = Some(self.clock.now() + wait);
        }
        Ok(Err(refusal))
    }

    /// An error while the server wants no requests.
    fn wait_is_over(&self, Verb(verb): Verb) -> Result<()> {
        let mut not_before = self.not_before();
        let left = not_before.map_or(Duration::ZERO, |at| at.since(self.clock.now()));
        if left.is_zero() {
            *not_before = None;
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "{verb} of leases was not sent: the API server at {} is overloaded and wants no request for {:.1} s (Retry-After)",
            self.settings.server(),
            left.as_secs_f64()
        )))
    }

    fn not_before(&self) -> std::sync::MutexGuard<'_, Option<Moment>> {
        self.not_before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn no_answer(&self, Verb(verb): Verb) -> Error {
        let (server, seconds) = (self.settings.server(), ANSWER_TIMEOUT.as_secs());
        Error::unavailable(format!("{verb} of leases at {server} got no answer in {seconds} s"))
    }

    async fn client(&self, verb: Verb) -> Result<Client> {
        let mut client = self.client.lock().await;
        // A client certificate of an exec plugin has an end.
        let is_valid = |client: &&Client| match client.valid_until() {
            Some(end) => i128::from(self.clock.minting_micros()) < i128::from(end.as_microsecond()),
            None => true,
        };
        if let Some(client) = client.as_ref().filter(is_valid) {
            return Ok(client.clone());
        }
        install_crypto_provider();
        let config = self.settings.config.clone();
        // An exec plugin runs here, and blocks.
        let built = tokio::task::spawn_blocking(move || Client::try_from(config)).await;
        let built = built.map_err(|error| Error::unavailable(error.to_string()))?;
        let built = built.map_err(|error| not_sent(error, verb, &self.settings))?;
        *client = Some(built.clone());
        Ok(built)
    }

    fn encode(&self, object: &Lease) -> Result<Vec<u8>> {
        serde_json::to_vec(object).map_err(|error| Error::invalid(error.to_string()))
    }

    fn parse<T: DeserializeOwned>(&self, Verb(verb): Verb, body: &[u8]) -> Result<T> {
        serde_json::from_slice(body).map_err(|_| {
            let tried = format!("{verb} of leases at {}", self.settings.server());
            not_kubernetes(&tried, 200, body)
        })
    }
}

/// A request as the crate `kube` builds it.
pub(super) type HttpRequest = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

enum LeaseSelector {
    /// A field selector for one object.
    Name(String),
    /// The objects that have a record.
    Label,
    /// Every Lease of the namespace: what client-go created has no label.
    All,
}

fn selector(scope: &Scope) -> LeaseSelector {
    match scope {
        Scope::Names(names) => match &names[..] {
            [name] => LeaseSelector::Name(format!("metadata.name={}", object_name(name))),
            _ => LeaseSelector::All,
        },
        Scope::Prefix(_) => LeaseSelector::Label,
    }
}

/// The crate `kube` uses the provider of the process. An application that has two compiled in and chose none would panic.
fn install_crypto_provider() {
    use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread has just installed one.
        let _ = ring::default_provider().install_default();
    }
}
