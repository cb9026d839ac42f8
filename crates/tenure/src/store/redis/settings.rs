//! The settings of a store: from its URL, or from an application's client and the builder.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use redis::ConnectionInfo;

use super::keys::KeyPrefix;
use super::target::{RedisAddress, RedisTarget};
use crate::error::{Error, Result};
use crate::store::endpoint::{
    Credentials, CredentialsProvider, Endpoint, MAX_DURATION, Options, Password, StoreUrl, UrlForm,
};
use crate::store::tls::TlsClient;

/// `quarantine` is the earlier name of `startup_wait`, and still accepted. There is no variable: `REDIS_URL` belongs to the
/// program that `tenure run` starts.
static FORM: UrlForm = UrlForm {
    service: "Redis",
    form: "redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]",
    default_port: 6379,
    several_hosts: false,
    options: &[
        "password_file",
        "ca",
        "cert",
        "key",
        "socket",
        "startup_wait",
        "key_prefix",
        "quarantine",
    ],
    environment: &[],
};

/// What a builder sets beside the URL.
#[derive(Default)]
pub(super) struct GivenSettings {
    pub(super) connection: Option<ConnectionInfo>,
    pub(super) tls: Option<TlsClient>,
    pub(super) credentials: Option<CredentialsProvider>,
    pub(super) key_prefix: Option<String>,
    pub(super) startup_wait: Option<Duration>,
}

pub(super) struct RedisSettings {
    pub(super) address: RedisAddress,
    pub(super) tls: Option<TlsClient>,
    login: RedisLogin,
    pub(super) database: u32,
    /// What every key and channel begins with.
    pub(super) keys: KeyPrefix,
    /// How long after the start of a server that is not durable a candidate holds a lease without leading. `None`: its TTL.
    /// Zero: it leads at once, on every server.
    pub(super) startup_wait: Option<Duration>,
    /// The URL for messages, without secrets.
    pub(super) url: String,
    /// Whether the server had grade B when it was last examined; false if it was not examined.
    pub(super) grade_b: AtomicBool,
    /// Whether a primary was ever found at this address.
    pub(super) found_primary: AtomicBool,
}

/// How to log in.
struct RedisLogin {
    /// The user of a password without one.
    user: Option<String>,
    password: Option<Password>,
    /// Asked instead of `password`.
    provider: Option<CredentialsProvider>,
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// The server's address for messages: without user, database and options.
impl fmt::Display for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.write(f, self.tls.is_some())
    }
}

impl RedisSettings {
    pub(super) fn from_url(url: &StoreUrl<'_>) -> Result<Self> {
        Self::new(url, GivenSettings::default())
    }

    /// The settings of a URL, with what the builder adds to it.
    ///
    /// # Errors
    /// Invalid if a part cannot be used, or two parts contradict each other.
    pub(super) fn new(url: &StoreUrl<'_>, given: GivenSettings) -> Result<Self> {
        let is_tls = match url.scheme {
            "redis" => false,
            "rediss" => true,
            scheme => {
                return Err(Error::invalid(format!(
                    "'{}:' is not a Redis server: write redis://HOST:PORT/0",
                    scheme.escape_debug()
                )));
            }
        };
        let endpoint = Endpoint::from_url(url, &FORM)?;
        let startup_wait = startup_wait(&endpoint.options, given.startup_wait)?;
        let key_prefix = endpoint.options.text("key_prefix")?;
        let key_prefix = one_of("key_prefix", key_prefix, given.key_prefix.clone())?;
        let keys = key_prefix.as_deref().map(KeyPrefix::new).transpose()?.unwrap_or_default();
        // The shown URL has every setting that a URL can have.
        let is_client = given.connection.is_some();
        let wait = startup_wait.filter(|_| is_client || given.startup_wait.is_some());
        let prefix = key_prefix.filter(|_| is_client || given.key_prefix.is_some());
        let target = match &given.connection {
            Some(info) => RedisTarget::from_client(info, &endpoint, is_tls, given.tls)?,
            None => RedisTarget::from_endpoint(endpoint, is_tls, given.tls)?,
        };
        let mut url = target.url;
        if let Some(wait) = wait {
            add_option(&mut url, &format!("startup_wait={}ms", wait.as_millis()));
        }
        if let Some(prefix) = prefix {
            add_option(&mut url, &format!("key_prefix={prefix}"));
        }
        Ok(RedisSettings {
            login: RedisLogin::new(target.user, target.password, given.credentials)?,
            address: target.address,
            tls: target.tls,
            database: target.database,
            keys,
            startup_wait,
            url,
            grade_b: AtomicBool::new(false),
            found_primary: AtomicBool::new(false),
        })
    }

    /// The credentials that need no provider; `None` if there are none. A password file is read again each time, so that the
    /// next connection uses a changed password. May block.
    pub(super) fn stored_credentials(&self) -> Result<Option<Credentials>> {
        let Some(password) = &self.login.password else { return Ok(None) };
        Ok(Some(Credentials::from_parts(self.login.user.clone(), password.read()?)))
    }

    /// The credentials of the application's provider; `None` if it has none.
    pub(super) async fn provided_credentials(&self) -> Result<Option<Credentials>> {
        let Some(provider) = &self.login.provider else { return Ok(None) };
        match provider.credentials().await {
            Ok(credentials) => Ok(Some(credentials.or_user(self.login.user.as_deref()))),
            Err(error) => {
                Err(Error::new(error.kind(), format!("cannot log in to {self}: {error}")))
            }
        }
    }
}

impl RedisLogin {
    fn new(
        user: Option<String>,
        password: Option<Password>,
        provider: Option<CredentialsProvider>,
    ) -> Result<Self> {
        match (&user, &password, &provider) {
            (_, Some(_), Some(_)) => {
                Err(Error::invalid("a password and credentials() of the builder: give one of them"))
            }
            // Without AUTH the server would treat the connection as its default user, which may have more permissions.
            (Some(_), None, None) => Err(Error::invalid(
                "a user without a password: add one, or the option password_file",
            )),
            _ => Ok(RedisLogin { user, password, provider }),
        }
    }
}

fn startup_wait(options: &Options<'_>, given: Option<Duration>) -> Result<Option<Duration>> {
    let url = match (options.duration("startup_wait")?, options.duration("quarantine")?) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid(
                "the options startup_wait and quarantine (its earlier name) are both given: give startup_wait",
            ));
        }
        (wait, earlier) => wait.or(earlier),
    };
    if given.is_some_and(|wait| wait > MAX_DURATION) {
        return Err(Error::invalid("a start-up wait may last a day at most"));
    }
    one_of("startup_wait", url, given)
}

/// A setting that the URL and the builder both have.
fn one_of<T>(name: &str, url: Option<T>, builder: Option<T>) -> Result<Option<T>> {
    match (url, builder) {
        (Some(_), Some(_)) => Err(Error::invalid(format!(
            "{name} is given in the URL and in the builder: give one of them"
        ))),
        (url, builder) => Ok(url.or(builder)),
    }
}

fn add_option(url: &mut String, option: &str) {
    url.push(if url.contains('?') { '&' } else { '?' });
    url.push_str(option);
}
