//! The settings of a Redis URL: the server's address, the credentials, and TLS.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::super::{open::StoreUrl, redact_url};
use crate::error::{Error, Result};

/// `quarantine` is the earlier name of `startup_wait`, and still accepted.
const OPTIONS: &[&str] =
    &["password_file", "ca", "cert", "key", "socket", "startup_wait", "quarantine"];
const DEFAULT_PORT: u16 = 6379;

/// Advice for errors about a part of the URL that may belong to a password: that part is not repeated.
const ENCODING_ADVICE: &str = "Write redis://[USER[:PASSWORD]@]HOST[:PORT][/DB], and in user and password \
                      / ? # @ : % as %2F %3F %23 %40 %3A %25";

pub(super) struct RedisSettings {
    pub(super) address: RedisAddress,
    pub(super) tls: Option<Tls>,
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
    Tcp { host: String, port: u16 },
    Socket(PathBuf),
}

/// Paths, not contents: the files are read at every connection, so that renewed files take effect.
pub(super) struct Tls {
    pub(super) ca: Option<PathBuf>,
    pub(super) identity: Option<(PathBuf, PathBuf)>,
}

enum Password {
    Given(String),
    File(PathBuf),
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
            RedisAddress::Tcp { host, port } if host.contains(':') => {
                write!(f, "{scheme}://[{host}]:{port}")
            }
            RedisAddress::Tcp { host, port } => write!(f, "{scheme}://{host}:{port}"),
            RedisAddress::Socket(path) => write!(f, "{scheme}://?socket={}", path.display()),
        }
    }
}

impl RedisSettings {
    pub(super) fn from_url(url: &StoreUrl<'_>) -> Result<Self> {
        let options = url.options(OPTIONS).map_err(|error| {
            // A '?' in a password makes the rest of it look like an option.
            if error.to_string().contains('@') {
                malformed("an option holds an '@'")
            } else {
                error
            }
        })?;
        let option = |key: &str| options.iter().find(|(k, _)| *k == key).map(|(_, value)| *value);
        let path = |key: &'static str| option(key).map(|value| file(key, value)).transpose();
        let Some(rest) = url.rest.strip_prefix("//") else {
            return Err(malformed("there is no '//' after the scheme"));
        };
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, address) = match authority.rsplit_once('@') {
            Some((login, address)) => (Some(login), address),
            None => (None, authority),
        };
        let (user, password) = credentials(login, path("password_file")?)?;
        let secure = url.scheme == "rediss";
        let (ca, cert, key) = (path("ca")?, path("cert")?, path("key")?);
        if !secure && (ca.is_some() || cert.is_some() || key.is_some()) {
            return Err(Error::invalid(
                "the options ca, cert and key are for rediss://, not redis://",
            ));
        }
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                return Err(Error::invalid("the options cert and key come together or not at all"));
            }
        };
        Ok(RedisSettings {
            address: parse_address(address, path("socket")?, secure)?,
            tls: secure.then_some(Tls { ca, identity }),
            user,
            password,
            database: number(database)?,
            startup_wait: startup_wait(option("startup_wait"), option("quarantine"))?,
            url: displayed(url, &options),
            grade_b: AtomicBool::new(false),
            found_primary: AtomicBool::new(false),
        })
    }

    /// The password. A password file is read again each time, so that the next connection uses a changed password.
    pub(super) fn password(&self) -> Result<Option<String>> {
        let path = match &self.password {
            None => return Ok(None),
            Some(Password::Given(password)) => return Ok(Some(password.clone())),
            Some(Password::File(path)) => path,
        };
        let text = read_small(path)?;
        let text = String::from_utf8(text).map_err(|_| {
            Error::denied(format!("the password file '{}' is not UTF-8", path.display()))
        })?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            return Err(Error::denied(format!("the password file '{}' is empty", path.display())));
        }
        Ok(Some(line.to_owned()))
    }
}

/// Reads a small file that an operator must have provided.
pub(super) fn read_small(path: &std::path::Path) -> Result<Vec<u8>> {
    use std::io::Read;
    const LIMIT: u64 = 1 << 20;
    let mut bytes = Vec::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(LIMIT + 1).read_to_end(&mut bytes));
    match read {
        Ok(_) if bytes.len() as u64 <= LIMIT => Ok(bytes),
        Ok(_) => Err(Error::denied(format!("'{}' is larger than a mebibyte", path.display()))),
        Err(error) => {
            let message =
                format!("cannot read '{}', which the store URL names: {error}", path.display());
            Err(Error::denied(message).caused_by(error))
        }
    }
}

fn malformed(reason: &str) -> Error {
    Error::invalid(format!("the Redis URL cannot be read: {reason}. {ENCODING_ADVICE}"))
}

fn credentials(
    login: Option<&str>,
    file: Option<PathBuf>,
) -> Result<(Option<String>, Option<Password>)> {
    let (user, password) = match login {
        None => (None, None),
        Some(login) => match login.split_once(':') {
            Some((user, password)) => (Some(decoded(user)?), Some(decoded(password)?)),
            None => (Some(decoded(login)?), None),
        },
    };
    let user = user.filter(|user| !user.is_empty());
    let password = match (password, file) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid(
                "a password in the URL and a password_file: give one of them",
            ));
        }
        (Some(password), None) => Some(Password::Given(password)),
        (None, Some(path)) => Some(Password::File(path)),
        (None, None) => None,
    };
    if user.is_some() && password.is_none() {
        // Without AUTH the server would treat the connection as its default user, which may have more permissions.
        return Err(Error::invalid(
            "a user without a password: add one, or the option password_file",
        ));
    }
    Ok((user, password))
}

fn parse_address(address: &str, socket: Option<PathBuf>, secure: bool) -> Result<RedisAddress> {
    if let Some(path) = socket {
        if secure {
            return Err(Error::invalid(
                "TLS over a unix socket is not spoken: write redis://?socket=PATH",
            ));
        }
        if !address.is_empty() {
            return Err(Error::invalid("a host and the option socket: give one of them"));
        }
        return Ok(RedisAddress::Socket(path));
    }
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(|| malformed("']' is missing"))?;
            match port.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if port.is_empty() => (host, None),
                None => return Err(malformed("after ']' comes ':PORT' or nothing")),
            }
        }
        None => match address.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        },
    };
    let named = |c: char| c.is_ascii_alphanumeric() || "._-:%".contains(c);
    if host.is_empty() || !host.chars().all(named) {
        return Err(malformed("the host is missing or is not a name or an address"));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| malformed("the port is not a number from 1 to 65535"))?,
    };
    Ok(RedisAddress::Tcp { host: host.to_owned(), port })
}

fn number(database: &str) -> Result<u32> {
    if database.is_empty() {
        return Ok(0);
    }
    let digits = database.bytes().all(|b| b.is_ascii_digit());
    database
        .parse()
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| malformed("what follows the host is not the number of a database"))
}

fn file(key: &str, value: &str) -> Result<PathBuf> {
    let path = PathBuf::from(decoded(value)?);
    if path.as_os_str().is_empty() {
        return Err(Error::invalid(format!("the option {key} takes the path of a file")));
    }
    // A relative path would mean two servers in two working directories.
    if key == "socket" && !path.is_absolute() {
        return Err(Error::invalid("the option socket takes an absolute path, beginning with '/'"));
    }
    Ok(path)
}

fn startup_wait(named: Option<&str>, earlier: Option<&str>) -> Result<Option<Duration>> {
    match (named, earlier) {
        (Some(_), Some(_)) => Err(Error::invalid(
            "the options startup_wait and quarantine (its earlier name) are both given: give startup_wait",
        )),
        (wait, earlier) => wait.or(earlier).map(duration).transpose(),
    }
}

/// Parses `12s`, `500ms`, `2m`.
fn duration(text: &str) -> Result<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let scale = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => 0,
    };
    let millis = count.parse::<u64>().ok().and_then(|count| count.checked_mul(scale));
    match millis {
        Some(millis) if scale > 0 && millis <= 86_400_000 => Ok(Duration::from_millis(millis)),
        _ => Err(Error::invalid(
            "the option startup_wait takes a duration of at most a day: 12s, 500ms, 2m, 0s",
        )),
    }
}

/// Decodes percent-encoding.
fn decoded(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(malformed("a '%' is not followed by two hexadecimal digits"));
        };
        bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
    }
    let text =
        String::from_utf8(bytes).map_err(|_| malformed("what is percent-encoded is not UTF-8"))?;
    if text.contains('\0') {
        return Err(malformed("it holds a NUL"));
    }
    Ok(text)
}

fn displayed(url: &StoreUrl<'_>, options: &[(&str, &str)]) -> String {
    let options: Vec<String> =
        options.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let query = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
    redact_url(&format!("{}:{}{query}", url.scheme, url.rest))
}
