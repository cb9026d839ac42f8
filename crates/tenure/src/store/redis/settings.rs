//! The settings of a Redis URL: what [`Endpoint`] does not know, such as the database number and the unix socket.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::store::endpoint::{Endpoint, Host, Options, Password, Secret, StoreUrl, UrlForm};
use crate::store::tls::TlsFiles;

/// `quarantine` is the earlier name of `startup_wait`, and still accepted. There is no variable: `REDIS_URL` belongs to the
/// program that `tenure run` starts.
static FORM: UrlForm = UrlForm {
    service: "Redis",
    form: "redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]",
    default_port: 6379,
    several_hosts: false,
    options: &["password_file", "ca", "cert", "key", "socket", "startup_wait", "quarantine"],
    environment: &[],
};

pub(super) struct RedisSettings {
    pub(super) address: RedisAddress,
    pub(super) tls: Option<TlsFiles>,
    pub(super) user: Option<String>,
    password: Option<Password>,
    pub(super) database: u32,
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

pub(super) enum RedisAddress {
    Tcp(Host),
    Socket(PathBuf),
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// The server's address for messages: without user, database and options.
impl fmt::Display for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        match &self.address {
            RedisAddress::Tcp(host) => write!(f, "{scheme}://{host}"),
            RedisAddress::Socket(path) => write!(f, "{scheme}://?socket={}", path.display()),
        }
    }
}

impl RedisSettings {
    pub(super) fn from_url(url: &StoreUrl<'_>) -> Result<Self> {
        let endpoint = Endpoint::from_url(url, &FORM)?;
        if endpoint.user.is_some() && endpoint.password.is_none() {
            // Without AUTH the server would treat the connection as its default user, which may have more permissions.
            return Err(Error::invalid(
                "a user without a password: add one, or the option password_file",
            ));
        }
        let is_tls = url.scheme == "rediss";
        let without_tls = "the options ca, cert and key are for rediss://, not redis://";
        Ok(RedisSettings {
            tls: TlsFiles::from_options(&endpoint.options, is_tls, without_tls)?,
            address: address(&endpoint, is_tls)?,
            database: database(&endpoint)?,
            startup_wait: startup_wait(&endpoint.options)?,
            user: endpoint.user,
            password: endpoint.password,
            url: endpoint.url,
            grade_b: AtomicBool::new(false),
            found_primary: AtomicBool::new(false),
        })
    }

    /// The password. A password file is read again each time, so that the next connection uses a changed password.
    pub(super) fn password(&self) -> Result<Option<Secret>> {
        self.password.as_ref().map(Password::read).transpose()
    }
}

fn address(endpoint: &Endpoint<'_>, is_tls: bool) -> Result<RedisAddress> {
    let Some(path) = endpoint.options.path("socket")? else {
        return Ok(RedisAddress::Tcp(endpoint.first_host()?.clone()));
    };
    // A relative path would mean two servers in two working directories.
    if !path.is_absolute() {
        return Err(Error::invalid("the option socket takes an absolute path, beginning with '/'"));
    }
    if is_tls {
        return Err(Error::invalid(
            "TLS over a unix socket is not spoken: write redis://?socket=PATH",
        ));
    }
    if !endpoint.hosts.is_empty() {
        return Err(Error::invalid("a host and the option socket: give one of them"));
    }
    Ok(RedisAddress::Socket(path))
}

fn database(endpoint: &Endpoint<'_>) -> Result<u32> {
    let text = endpoint.path.as_str();
    if text.is_empty() {
        return Ok(0);
    }
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| endpoint.malformed("what follows the host is not the number of a database"))
}

fn startup_wait(options: &Options<'_>) -> Result<Option<Duration>> {
    match (options.duration("startup_wait")?, options.duration("quarantine")?) {
        (Some(_), Some(_)) => Err(Error::invalid(
            "the options startup_wait and quarantine (its earlier name) are both given: give startup_wait",
        )),
        (wait, earlier) => Ok(wait.or(earlier)),
    }
}
