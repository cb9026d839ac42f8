//! PURE: the URL of a server, `SCHEME://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...][/PATH][?OPTIONS]`.
//!
//! A store describes its URLs with a [`UrlForm`] and gets an [`Endpoint`]. Errors name the part that is wrong and never repeat
//! it: a password that should have been percent-encoded can end up in any part.

use std::ffi::OsString;
use std::fmt;

use super::credentials::{Password, Secret};
use super::environment;
use super::options::{Options, percent_decoded};
use super::{StoreUrl, redact_url};
use crate::error::{Error, Result};

/// Advice for errors about a part of the URL that may belong to a password.
const ENCODING_ADVICE: &str = "and in user and password / ? # @ : % as %2F %3F %23 %40 %3A %25";

/// Why a URL without a host is refused.
const NO_HOST: &str = "the host is missing or is not a name or an address";

/// What the URLs of one store look like.
#[derive(Debug)]
pub(in crate::store) struct UrlForm {
    /// The name of the service: `Redis`.
    pub(in crate::store) service: &'static str,
    /// The form that errors show: `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`.
    pub(in crate::store) form: &'static str,
    /// The port of a host without one.
    pub(in crate::store) default_port: u16,
    /// Whether a URL may name several hosts, separated by commas.
    pub(in crate::store) several_hosts: bool,
    /// All options that exist.
    pub(in crate::store) options: &'static [&'static str],
    /// Variables of the service's own client, each with what it sets where the URL does not: `hosts`, `port`, `user`,
    /// `password`, `login` (`USER:PASSWORD`), `path`, or an option. See [`environment`].
    pub(in crate::store) environment: &'static [(&'static str, &'static str)],
}

impl UrlForm {
    /// The error for a URL that cannot be parsed. `reason` must not contain a part of the URL.
    pub(in crate::store) fn malformed(&self, reason: &str) -> Error {
        let UrlForm { service, form, .. } = self;
        Error::invalid(format!(
            "the {service} URL cannot be read: {reason}. Write {form}, {ENCODING_ADVICE}"
        ))
    }
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct Host {
    /// A name or an address; an IPv6 address has no brackets.
    pub(in crate::store) name: String,
    pub(in crate::store) port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// Where a store is and how to log in there.
#[derive(Debug)]
pub(in crate::store) struct Endpoint<'a> {
    /// The servers, in the order of the URL; empty if neither the URL nor a variable names one.
    pub(in crate::store) hosts: Vec<Host>,
    pub(in crate::store) user: Option<String>,
    pub(in crate::store) password: Option<Password>,
    /// What follows the first `/` after the hosts: a database, a namespace.
    pub(in crate::store) path: String,
    pub(in crate::store) options: Options<'a>,
    /// The URL for messages, without secrets.
    pub(in crate::store) url: String,
    form: &'static UrlForm,
}

/// The parts of an endpoint before defaults are filled in.
pub(super) struct UrlParts<'a> {
    /// Each host with its port, if it has one.
    pub(super) hosts: Vec<(String, Option<u16>)>,
    pub(super) default_port: u16,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) path: String,
    pub(super) options: Options<'a>,
}

impl<'a> Endpoint<'a> {
    /// The endpoint that the URL names, completed from the variables of this process that `form` lists.
    pub(in crate::store) fn from_url(url: &StoreUrl<'a>, form: &'static UrlForm) -> Result<Self> {
        Self::parse(url, form, &|variable| std::env::var_os(variable))
    }

    pub(super) fn parse(
        url: &StoreUrl<'a>,
        form: &'static UrlForm,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self> {
        let malformed = |reason: &str| form.malformed(reason);
        let options = url.options(form.options).map_err(|error| {
            // A '?' in a password makes the rest of it look like an option.
            match error.to_string().contains('@') {
                true => malformed("an option holds an '@'"),
                false => error,
            }
        })?;
        let Some(rest) = url.rest.strip_prefix("//") else {
            return Err(malformed("there is no '//' after the scheme"));
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        // A '/' in a password makes the rest of it look like a path.
        if path.contains('@') {
            return Err(malformed("the part after the host holds an '@'"));
        }
        let (user, password) = match login.strip_suffix('@') {
            Some(login) => parse_login(login).map_err(malformed)?,
            None => (None, None),
        };
        let mut parts = UrlParts {
            hosts: parse_hosts(hosts, form.several_hosts).map_err(malformed)?,
            default_port: form.default_port,
            user,
            password,
            path: percent_decoded(path.strip_prefix('/').unwrap_or(path)).map_err(malformed)?,
            options,
        };
        environment::fill_in(&mut parts, form, variable)?;
        let shown_hosts = if hosts.is_empty() { parts.joined_hosts() } else { hosts.to_owned() };
        let scheme = url.scheme;
        let query = parts.options.query();
        Ok(Endpoint {
            url: redact_url(&format!("{scheme}://{login}{shown_hosts}{path}{query}")),
            hosts: parts.resolved_hosts(),
            password: password_source(parts.password, &parts.options)?,
            user: parts.user,
            path: parts.path,
            options: parts.options,
            form,
        })
    }

    /// The error for a part that the store itself parses. `reason` must not contain a part of the URL.
    pub(in crate::store) fn malformed(&self, reason: &str) -> Error {
        self.form.malformed(reason)
    }

    /// The first host.
    ///
    /// # Errors
    /// Invalid if there is none.
    pub(in crate::store) fn first_host(&self) -> Result<&Host> {
        self.hosts.first().ok_or_else(|| self.malformed(NO_HOST))
    }
}

impl UrlParts<'_> {
    fn resolved_hosts(&self) -> Vec<Host> {
        let hosts = self.hosts.iter();
        hosts
            .map(|(name, port)| Host {
                name: name.clone(),
                port: port.unwrap_or(self.default_port),
            })
            .collect()
    }

    fn joined_hosts(&self) -> String {
        let hosts: Vec<String> = self.resolved_hosts().iter().map(Host::to_string).collect();
        hosts.join(",")
    }
}

fn password_source(given: Option<Secret>, options: &Options<'_>) -> Result<Option<Password>> {
    match (given, options.path("password_file")?) {
        (Some(_), Some(_)) => {
            Err(Error::invalid("a password in the URL and a password_file: give one of them"))
        }
        (Some(password), None) => Ok(Some(Password::Given(password))),
        (None, Some(path)) => Ok(Some(Password::File(path))),
        (None, None) => Ok(None),
    }
}

/// Parses `USER[:PASSWORD]`. An empty user counts as none.
fn parse_login(login: &str) -> Result<(Option<String>, Option<Secret>), &'static str> {
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(Secret::new(&percent_decoded(password)?))),
        None => (login, None),
    };
    let user = percent_decoded(user)?;
    Ok((Some(user).filter(|user| !user.is_empty()), password))
}

/// Parses the hosts; the empty text names none.
pub(super) fn parse_hosts(
    text: &str,
    several: bool,
) -> Result<Vec<(String, Option<u16>)>, &'static str> {
    match (text, several) {
        ("", _) => Ok(Vec::new()),
        (several, true) => several.split(',').map(parse_host).collect(),
        (one, false) => Ok(vec![parse_host(one)?]),
    }
}

/// Parses `HOST[:PORT]` or `[IPV6][:PORT]`.
fn parse_host(text: &str) -> Result<(String, Option<u16>), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("']' is missing")?;
            match port.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if port.is_empty() => (host, None),
                None => return Err("after ']' comes ':PORT' or nothing"),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let named = |c: char| c.is_ascii_alphanumeric() || "._-:%".contains(c);
    if host.is_empty() || !host.chars().all(named) {
        return Err(NO_HOST);
    }
    Ok((host.to_owned(), port.map(parse_port).transpose()?))
}

pub(super) fn parse_port(text: &str) -> Result<u16, &'static str> {
    let port = text.parse().ok().filter(|port| *port != 0);
    port.ok_or("the port is not a number from 1 to 65535")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    static FORM: UrlForm = UrlForm {
        service: "Test",
        form: "test://[USER[:PASSWORD]@]HOST[:PORT][,...][/PATH]",
        default_port: 99,
        several_hosts: true,
        options: &["password_file", "wait"],
        environment: &[],
    };

    fn parse(url: &str) -> Result<Endpoint<'_>> {
        Endpoint::parse(&StoreUrl::parse(url).unwrap(), &FORM, &|_| None)
    }

    fn hosts(url: &str) -> Vec<String> {
        parse(url).unwrap().hosts.iter().map(Host::to_string).collect()
    }

    #[test]
    fn one_or_several_hosts_are_parsed() {
        assert_eq!(hosts("test://h"), ["h:99"]);
        assert_eq!(
            hosts("test://h:1,[::1],[fe80::1%25eth0]:2,10.0.0.1:3"),
            ["h:1", "[::1]:99", "[fe80::1%25eth0]:2", "10.0.0.1:3"]
        );
        assert_eq!(hosts("test://"), [""; 0]);
        assert!(parse("test://").unwrap().first_host().is_err());
    }

    #[test]
    fn login_path_and_options_are_decoded() {
        let endpoint = parse("test://us%40er:p%2Fw%2C@h,i/a%20b?wait=1s").unwrap();
        assert_eq!(endpoint.user.as_deref(), Some("us@er"));
        assert_eq!(endpoint.password, Some(Password::Given(Secret::new("p/w,"))));
        assert_eq!(endpoint.path, "a b");
        assert_eq!(endpoint.url, "test://us%40er:***@h,i/a%20b?wait=1s");
        assert!(!format!("{endpoint:?}").contains("p/w"));
        let endpoint = parse("test://:@h").unwrap();
        assert_eq!((endpoint.user, endpoint.path.as_str()), (None, ""));
        assert_eq!(endpoint.password, Some(Password::Given(Secret::new(""))));
        let endpoint = parse("test://u@h/?password_file=/run/p").unwrap();
        assert_eq!(endpoint.password, Some(Password::File("/run/p".into())));
        assert_eq!(endpoint.url, "test://u@h/?password_file=/run/p");
    }

    #[test]
    fn malformed_urls_are_invalid_and_show_no_part_of_a_password() {
        for (url, says) in [
            ("test:h", "'//'"),
            ("test://h:0", "the port"),
            ("test://h,", "the host is missing"),
            ("test://,h", "the host is missing"),
            ("test://a b", "the host is missing"),
            ("test://[::1", "']' is missing"),
            ("test://[::1]7", "after ']'"),
            ("test://:%sec@h", "hexadecimal"),
            ("test://:%ff@h", "UTF-8"),
            ("test://:%00@h", "NUL"),
            ("test://u:1/sec@h", "the part after the host holds an '@'"),
            ("test://u:sec/x@h", "the part after the host holds an '@'"),
            ("test://u:1?sec@h", "an option holds an '@'"),
            ("test://u:sec#@h/%", "hexadecimal"),
            ("test://:sec@h?password_file=/x", "give one of them"),
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{url}");
            assert!(error.to_string().contains(says), "{url}: {error}");
            assert!(!error.to_string().contains("sec"), "{url}: {error}");
        }
        let error = parse("test://h:0").unwrap_err().to_string();
        let begins = "the Test URL cannot be read: the port is not a number from 1 to 65535. Write \
                      test://[USER[:PASSWORD]@]HOST[:PORT][,...][/PATH], and in user";
        assert!(error.starts_with(begins), "{error}");
    }
}
