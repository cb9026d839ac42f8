//! Builds a [`RedisStore`] from a URL, or from the client, the TLS configuration and the credentials that an application already
//! has.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Client, ConnectionInfo};

use super::RedisStore;
use super::settings::{GivenSettings, RedisSettings};
use crate::error::Result;
use crate::store::endpoint::{Credentials, CredentialsProvider, StoreUrl};
use crate::store::{Store, redact_url};

/// Builds a store in a Redis server: [`RedisStore::builder`].
///
/// [`open`](crate::open) is this builder with a URL alone. Everything that a URL can say may also be in the URL here. What is
/// given twice, or contradicts the URL, is refused by [`build`](RedisStoreBuilder::build) with one sentence.
///
/// ```
/// # fn main() -> tenure::Result<()> {
/// use std::time::Duration;
/// use tenure::store::redis::RedisStore;
///
/// let store = RedisStore::builder("redis://127.0.0.1:6379/0")
///     .key_prefix("billing:")
///     .startup_wait(Duration::from_secs(12))
///     .build()?;
/// assert_eq!(store.url(), "redis://127.0.0.1:6379/0?startup_wait=12000ms&key_prefix=billing:");
/// # Ok(()) }
/// ```
#[must_use = "a builder does nothing until build() is called"]
pub struct RedisStoreBuilder {
    url: String,
    given: GivenSettings,
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("url", &redact_url(&self.url))
            .finish_non_exhaustive()
    }
}

impl RedisStoreBuilder {
    pub(super) fn new(url: &str) -> Self {
        RedisStoreBuilder { url: url.to_owned(), given: GivenSettings::default() }
    }

    /// Uses the server of an application's own client: its address, database, user, password, and whether it uses TLS. The URL
    /// is `redis://`, without a host.
    ///
    /// The store makes its own connections to that server, so that no other traffic delays a renewal. The certificates of the
    /// client cannot be read from it: give them with [`tls`](RedisStoreBuilder::tls). A client that does not check the
    /// server's certificate is refused.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure::store::redis::{RedisStore, client::Client};
    ///
    /// let client = Client::open("redis://tenure:s3cret@cache.example/2")?;
    /// let store = RedisStore::builder("redis://").client(client).build()?;
    /// assert_eq!(store.url(), "redis://tenure:***@cache.example:6379/2");
    /// # Ok(()) }
    /// ```
    pub fn client(self, client: Client) -> Self {
        self.connection_info(client.get_connection_info().clone())
    }

    /// The same as [`client`](RedisStoreBuilder::client), for an application that has the settings of a connection and no
    /// client.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure::store::redis::RedisStore;
    /// use tenure::store::redis::client::{ConnectionInfo, IntoConnectionInfo};
    ///
    /// let info: ConnectionInfo = ("cache.example", 6379).into_connection_info()?;
    /// let store = RedisStore::builder("redis://").connection_info(info).build()?;
    /// assert_eq!(store.url(), "redis://cache.example:6379");
    /// # Ok(()) }
    /// ```
    pub fn connection_info(mut self, info: ConnectionInfo) -> Self {
        self.given.connection = Some(info);
        self
    }

    /// Uses the application's own TLS configuration instead of the options `ca`, `cert` and `key`. The server is one with TLS:
    /// `rediss://`, or a client that uses TLS. Needs the feature `tls`.
    ///
    /// What the configuration does not check, Tenure does not check either.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use tenure::store::redis::RedisStore;
    /// use tenure::store::rustls::{ClientConfig, RootCertStore, crypto::ring};
    ///
    /// let roots = RootCertStore::empty(); // with the CA of the application
    /// let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
    ///     .with_safe_default_protocol_versions()?
    ///     .with_root_certificates(roots)
    ///     .with_no_client_auth();
    /// let store = RedisStore::builder("rediss://cache.example").tls(Arc::new(config)).build()?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(mut self, config: Arc<crate::store::rustls::ClientConfig>) -> Self {
        self.given.tls = Some(crate::store::tls::TlsClient::Given(config));
        self
    }

    /// Asks `provider` for the credentials of every log-in, for passwords that change while the process runs.
    ///
    /// The store logs in for every new connection: at the first call, for a watch, and after a connection was lost. The
    /// provider's time counts towards the five seconds of a connection attempt. It runs on the thread of its caller, which for
    /// renewals is the thread of the election, so it must not block. If it returns
    /// [`Unavailable`](crate::Kind::Unavailable), or panics, the attempt counts as one on a server that is down and is repeated.
    /// Every other error is [`Denied`](crate::Kind::Denied): an operator must act, and an election does not start. Its text
    /// appears in logs, so it must not contain a secret.
    ///
    /// ```
    /// # async fn read_from_vault() -> Result<String, std::io::Error> { Ok("s3cret".to_owned()) }
    /// # fn main() -> tenure::Result<()> {
    /// use tenure::Error;
    /// use tenure::store::{Credentials, redis::RedisStore};
    ///
    /// let store = RedisStore::builder("redis://127.0.0.1:6379")
    ///     .credentials(async || match read_from_vault().await {
    ///         Ok(password) => Ok(Credentials::new("tenure", password)),
    ///         Err(error) => Err(Error::unavailable(format!("no password from the vault: {error}"))),
    ///     })
    ///     .build()?;
    /// # Ok(()) }
    /// ```
    pub fn credentials<F, R>(mut self, provider: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<Credentials>> + Send + 'static,
    {
        self.given.credentials = Some(CredentialsProvider::new(provider));
        self
    }

    /// Puts every key and every channel of the store below `prefix`, so that a user with `~PREFIX*` and `&PREFIX*` can use it.
    /// The same as the option `key_prefix` of the URL. 1 to 100 bytes of `A–Z a–z 0–9 . _ : / -`.
    ///
    /// The lease `job` is then the key `PREFIXjob`. Stores with different prefixes have different leases, as long as no prefix
    /// begins with another one: all candidates of one election need the same prefix.
    ///
    /// ```
    /// # fn main() -> tenure::Result<()> {
    /// use tenure::store::redis::RedisStore;
    ///
    /// let store = RedisStore::builder("redis://127.0.0.1:6379").key_prefix("billing:").build()?;
    /// assert_eq!(store.url(), "redis://127.0.0.1:6379?key_prefix=billing:");
    /// assert!(RedisStore::builder("redis://127.0.0.1").key_prefix("a b").build().is_err());
    /// # Ok(()) }
    /// ```
    pub fn key_prefix(mut self, prefix: &str) -> Self {
        self.given.key_prefix = Some(prefix.to_owned());
        self
    }

    /// Sets how long after the start of a server that is not durable a candidate holds a lease without leading; zero for no
    /// wait on any server. By default it is the TTL of the claim. The same as the option `startup_wait` of the URL.
    ///
    /// ```
    /// # fn main() -> tenure::Result<()> {
    /// use std::time::Duration;
    /// use tenure::store::redis::RedisStore;
    ///
    /// let store =
    ///     RedisStore::builder("redis://127.0.0.1:6379").startup_wait(Duration::ZERO).build()?;
    /// # Ok(()) }
    /// ```
    pub fn startup_wait(mut self, wait: Duration) -> Self {
        self.given.startup_wait = Some(wait);
        self
    }

    /// The store, as [`open`](crate::open) returns it. It neither reads files nor connects yet.
    ///
    /// # Errors
    /// Invalid: the URL or a setting cannot be used, or two of them contradict each other.
    pub fn build(self) -> Result<Arc<dyn Store>> {
        let settings = RedisSettings::new(&StoreUrl::parse(&self.url)?, self.given)?;
        Ok(Arc::new(RedisStore::with_settings(Arc::new(settings))))
    }
}
