//! Store URLs: what every store shares in reading and showing them.
//!
//! [`StoreUrl`] splits a URL into its scheme, the part after the scheme, and its options. [`redact_url`] removes secrets. A
//! store that is a server reads the rest with [`Endpoint`]: hosts, user, password, path, and options with types. What the URL
//! leaves out, the variables of the service's own client may set (`PGHOST`, `CONSUL_HTTP_ADDR`).
//!
//! Nothing here connects, and a password file is read only when a store asks for the password.

// Redis uses all of it, other stores a part.
#[cfg(feature = "_server")]
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
mod credentials;
#[cfg(feature = "_server")]
mod environment;
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
mod options;
#[cfg(feature = "_server")]
mod server;

#[cfg(feature = "_server")]
pub use credentials::Credentials;
#[cfg(feature = "_server")]
pub(super) use credentials::Password;
#[cfg(all(feature = "_server", feature = "tls"))]
pub(super) use credentials::read_small;
#[cfg(feature = "redis")]
pub(super) use credentials::{CredentialsProvider, Secret};
#[cfg(feature = "redis")]
pub(super) use options::MAX_DURATION;
pub(super) use options::Options;
#[cfg(any(feature = "redis", feature = "consul"))]
pub(super) use options::percent_encoded;
#[cfg(feature = "_server")]
pub(super) use server::{Endpoint, Host, UrlForm};

use std::fmt;

use crate::error::{Error, Result};

/// The URL for logs and messages: without its password, and without the value of any option that holds a secret.
pub fn redact_url(url: &str) -> String {
    // Everything before the last '@' may be a password, which may itself contain '@', '/' or '?'. This may hide more than the
    // password, never less.
    let url = match url
        .split_once("://")
        .and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?)))
    {
        Some((scheme, (user, host))) => match user.split_once(':') {
            Some((user, _password)) => format!("{scheme}://{user}:***@{host}"),
            None => format!("{scheme}://{user}@{host}"),
        },
        None => url.to_owned(),
    };
    let Some((head, query)) = url.split_once('?') else { return url };
    let options: Vec<String> = query
        .split('&')
        .map(|option| match option.split_once('=') {
            Some((key, _)) if is_secret(key) => format!("{key}=***"),
            _ => option.to_owned(),
        })
        .collect();
    format!("{head}?{}", options.join("&"))
}

fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    (key.contains("pass") || key.contains("secret") || key.contains("token"))
        && !key.ends_with("file")
}

/// A parsed URL: `scheme:rest?options`.
pub(crate) struct StoreUrl<'a> {
    pub(crate) scheme: &'a str,
    /// The part between the colon and the question mark.
    pub(crate) rest: &'a str,
    query: &'a str,
}

impl fmt::Debug for StoreUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreUrl { scheme, rest, query } = self;
        f.write_str(&redact_url(&format!("{scheme}:{rest}?{query}")))
    }
}

impl<'a> StoreUrl<'a> {
    pub(crate) fn parse(url: &'a str) -> Result<Self> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Error::invalid(format!(
                "'{}' is not a store URL: write file:DIR, redis://HOST:PORT/0, ...",
                redact_url(url).escape_debug()
            )));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        Ok(StoreUrl { scheme, rest, query })
    }

    /// The options. An option that is not in `known`, or is given twice, is refused.
    pub(super) fn options(&self, known: &[&str]) -> Result<Options<'a>> {
        let mut options = Options::default();
        for option in self.query.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            if !known.contains(&key) {
                let scheme = self.scheme;
                return Err(Error::invalid(match known {
                    [] => format!("'{scheme}:' takes no options, and here is '{key}'"),
                    _ => {
                        format!("'{scheme}:' has no option '{key}'; it has {}", known.join(", "))
                    }
                }));
            }
            options.add(key, value)?;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_urls_contain_no_password() {
        for (url, safe) in [
            ("redis://:geheim@h:1/0", "redis://:***@h:1/0"),
            ("redis://u:ge@he:im@h:1/0", "redis://u:***@h:1/0"),
            ("redis://:a?b/c#d@h:1", "redis://:***@h:1"),
            ("etcd://u:geheim@h:1,h:2", "etcd://u:***@h:1,h:2"),
            ("rediss://u@h", "rediss://u@h"),
            ("redis://h?password=x&db=1", "redis://h?password=***&db=1"),
            ("redis://h?password_file=/run/x", "redis://h?password_file=/run/x"),
            ("file:/a@b:c", "file:/a@b:c"),
        ] {
            assert_eq!(redact_url(url), safe);
        }
    }

    #[test]
    fn unknown_and_repeated_options_are_refused() {
        let refused = |url: &str, known: &[&str]| {
            StoreUrl::parse(url).unwrap().options(known).unwrap_err().to_string()
        };
        assert_eq!(refused("x:?b=1", &["a", "c"]), "'x:' has no option 'b'; it has a, c");
        assert_eq!(refused("x:?b=1", &[]), "'x:' takes no options, and here is 'b'");
        assert_eq!(refused("x:?a=1&a=1", &["a"]), "option 'a' is given twice");
        assert!(StoreUrl::parse("x:?&a&&").unwrap().options(&["a"]).is_ok());
    }
}
