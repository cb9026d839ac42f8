//! Where the server is and how to log in there: from the URL, or from an application's own client.

use std::fmt;
use std::path::{Path, PathBuf};

use redis::{ConnectionAddr, ConnectionInfo};

use crate::error::{Error, Result};
use crate::store::endpoint::{Endpoint, Host, Password, Secret, percent_encoded};
use crate::store::tls::{self, TlsClient};

/// The options that describe a server, and not the store on it.
const SERVER_OPTIONS: [&str; 4] = ["socket", "ca", "cert", "key"];

const TLS_OVER_SOCKET: &str = "TLS over a unix socket is not spoken: write redis://?socket=PATH";

pub(super) struct RedisTarget {
    pub(super) address: RedisAddress,
    pub(super) tls: Option<TlsClient>,
    pub(super) user: Option<String>,
    pub(super) password: Option<Password>,
    pub(super) database: u32,
    /// The URL for messages, without secrets.
    pub(super) url: String,
}

pub(super) enum RedisAddress {
    Tcp(Host),
    Socket(PathBuf),
}

impl RedisAddress {
    /// Writes the URL of this address.
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>, is_tls: bool) -> fmt::Result {
        let scheme = if is_tls { "rediss" } else { "redis" };
        match self {
            RedisAddress::Tcp(host) => write!(f, "{scheme}://{host}"),
            RedisAddress::Socket(path) => write!(f, "{scheme}://?socket={}", path.display()),
        }
    }
}

impl RedisTarget {
    /// The server that a URL names. `given` is the TLS client of the builder.
    pub(super) fn from_endpoint(
        endpoint: Endpoint<'_>,
        is_tls: bool,
        given: Option<TlsClient>,
    ) -> Result<Self> {
        let without_tls = "the options ca, cert and key are for rediss://, not redis://";
        let tls = tls::from_options(&endpoint.options, is_tls, without_tls)?;
        let address = address(&endpoint, is_tls || given.is_some())?;
        let has_files = ["ca", "cert", "key"].iter().any(|key| endpoint.options.is_given(key));
        if has_files && given.is_some() {
            return Err(Error::invalid(
                "the options ca, cert and key, and tls() of the builder: give one of them",
            ));
        }
        Ok(RedisTarget {
            address,
            tls: replaced(tls, given)?,
            database: database(&endpoint)?,
            user: endpoint.user,
            password: endpoint.password,
            url: endpoint.url,
        })
    }

    /// The server that an application's own client uses. `endpoint` is the URL, which must not name one; `given` is the TLS
    /// client of the builder.
    pub(super) fn from_client(
        info: &ConnectionInfo,
        endpoint: &Endpoint<'_>,
        is_tls: bool,
        given: Option<TlsClient>,
    ) -> Result<Self> {
        let names_server = !endpoint.hosts.is_empty()
            || endpoint.user.is_some()
            || endpoint.password.is_some()
            || !endpoint.path.is_empty()
            || SERVER_OPTIONS.iter().any(|option| endpoint.options.is_given(option));
        if names_server {
            return Err(Error::invalid(
                "the URL names a server, and the client of the builder does too: write redis:// without one",
            ));
        }
        let (address, tls) = match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                (RedisAddress::Tcp(Host { name: host.clone(), port: *port }), None)
            }
            ConnectionAddr::TcpTls { host, port, insecure, tls_params } => {
                if *insecure {
                    return Err(Error::invalid(
                        "the client does not check the server's certificate, which Tenure never omits: give a client \
                         without 'insecure', and the CA with tls() of the builder",
                    ));
                }
                if tls_params.is_some() && given.is_none() {
                    return Err(Error::invalid(
                        "the certificates of a client cannot be read from it: give them with tls() of the builder",
                    ));
                }
                let tls = tls::with_system_roots()?;
                (RedisAddress::Tcp(Host { name: host.clone(), port: *port }), Some(tls))
            }
            ConnectionAddr::Unix(path) => (RedisAddress::Socket(absolute(path)?.into()), None),
            _ => return Err(Error::invalid("the client's kind of address is not supported")),
        };
        if tls.is_none() && is_tls {
            return Err(Error::invalid(
                "the URL begins with rediss://, and the client of the builder does not use TLS: write redis://, or \
                 give a client that does",
            ));
        }
        if matches!(address, RedisAddress::Socket(_)) && given.is_some() {
            return Err(Error::invalid(TLS_OVER_SOCKET));
        }
        let login = info.redis_settings();
        let database = u32::try_from(login.db())
            .map_err(|_| Error::invalid("the database of the client is not a number from 0 on"))?;
        let user = login.username().filter(|user| !user.is_empty()).map(str::to_owned);
        let password = login.password().map(|password| Password::Given(Secret::new(password)));
        Ok(RedisTarget {
            url: shown_url(&address, tls.is_some(), user.as_deref(), password.is_some(), database),
            address,
            tls: replaced(tls, given)?,
            user,
            password,
            database,
        })
    }
}

/// The TLS client of the builder instead of the one of the URL or the client.
fn replaced(own: Option<TlsClient>, given: Option<TlsClient>) -> Result<Option<TlsClient>> {
    match (own, given) {
        (None, Some(_)) => Err(Error::invalid(
            "tls() of the builder is for a server with TLS: write rediss://, or give a client that uses TLS",
        )),
        (own, None) => Ok(own),
        (Some(_), given) => Ok(given),
    }
}

fn address(endpoint: &Endpoint<'_>, is_tls: bool) -> Result<RedisAddress> {
    let Some(path) = endpoint.options.path("socket")? else {
        return Ok(RedisAddress::Tcp(endpoint.first_host()?.clone()));
    };
    absolute(&path)?;
    if is_tls {
        return Err(Error::invalid(TLS_OVER_SOCKET));
    }
    if !endpoint.hosts.is_empty() {
        return Err(Error::invalid("a host and the option socket: give one of them"));
    }
    Ok(RedisAddress::Socket(path))
}

/// A relative path would mean two servers in two working directories.
fn absolute(path: &Path) -> Result<&Path> {
    match path.is_absolute() {
        true => Ok(path),
        false => Err(Error::invalid(
            "the path of a unix socket (option socket) is an absolute path, beginning with '/'",
        )),
    }
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

/// The URL of a server, without its password.
fn shown_url(
    address: &RedisAddress,
    is_tls: bool,
    user: Option<&str>,
    has_password: bool,
    database: u32,
) -> String {
    let scheme = if is_tls { "rediss" } else { "redis" };
    let user = percent_encoded(user.unwrap_or_default());
    let login = match (user.as_str(), has_password) {
        ("", false) => String::new(),
        (user, true) => format!("{user}:***@"),
        (user, false) => format!("{user}@"),
    };
    let database = if database == 0 { String::new() } else { format!("/{database}") };
    match address {
        RedisAddress::Tcp(host) => format!("{scheme}://{login}{host}{database}"),
        RedisAddress::Socket(path) => {
            format!("{scheme}://{login}{database}?socket={}", path.display())
        }
    }
}
