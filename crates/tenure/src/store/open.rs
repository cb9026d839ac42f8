//! Opens a store by URL: one `match` on the scheme.

use std::sync::Arc;

use super::{Store, memory::MemoryStore};
use crate::error::{Error, Result};

/// Every known scheme and the Cargo feature that enables it; `None`: always compiled in.
const SCHEMES: &[(&str, Option<&str>)] = &[
    ("memory", None),
    ("file", Some("file")),
    ("redis", Some("redis")),
    ("rediss", Some("redis")),
];

/// Opens a store by URL.
///
/// Refuses only what cannot succeed later: an unknown scheme, an unknown option, a store that is not compiled in, a directory
/// that this process must not write to. A server that is down is not an error here: it may come back.
///
/// ```
/// # async fn example() -> tenure::Result<()> {
/// let store = tenure::open("memory:").await?;
/// let here = tenure::open("file:/var/lib/myapp?force=0").await?;
/// # Ok(()) }
/// ```
pub async fn open(url: &str) -> Result<Arc<dyn Store>> {
    let url = StoreUrl::parse(url)?;
    match url.scheme {
        "memory" => {
            url.options(&[])?;
            if !url.rest.is_empty() {
                return Err(Error::invalid("'memory:' takes nothing after the colon"));
            }
            Ok(Arc::new(MemoryStore::of_this_process()))
        }
        #[cfg(feature = "file")]
        "file" => Ok(Arc::new(super::file::FileStore::from_url(&url).await?)),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => Ok(Arc::new(super::redis::RedisStore::from_url(&url)?)),
        scheme => Err(unknown_scheme(scheme)),
    }
}

/// Opens a store by URL for a command that only reads or makes requests: it creates no directory. While the directory is
/// missing, there are no leases; once it exists, its leases are visible.
///
/// # Errors
/// The same as [`open`].
pub async fn open_existing(url: &str) -> Result<Arc<dyn Store>> {
    match StoreUrl::parse(url)? {
        #[cfg(feature = "file")]
        parsed if parsed.scheme == "file" => {
            Ok(Arc::new(super::file::FileStore::existing_from_url(&parsed).await?))
        }
        _ => open(url).await,
    }
}

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

fn unknown_scheme(scheme: &str) -> Error {
    if let Some((_, Some(feature))) = SCHEMES.iter().find(|(known, _)| *known == scheme) {
        return Error::invalid(format!(
            "this build has no store for '{scheme}:': build with the feature '{feature}'"
        ));
    }
    let known: Vec<String> = SCHEMES.iter().map(|(scheme, _)| format!("{scheme}:")).collect();
    Error::invalid(format!(
        "there is no store '{}:'; there are {}",
        scheme.escape_debug(),
        known.join(" ")
    ))
}

/// A parsed URL: `scheme:rest?options`.
#[derive(Debug)]
pub(crate) struct StoreUrl<'a> {
    pub(crate) scheme: &'a str,
    /// The part between the colon and the question mark.
    pub(crate) rest: &'a str,
    query: &'a str,
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

    /// The options as `(key, value)` pairs. An option that is not in `known`, or is given twice, is refused.
    #[cfg_attr(not(any(feature = "file", feature = "redis")), allow(dead_code))]
    pub(crate) fn options(&self, known: &[&str]) -> Result<Vec<(&'a str, &'a str)>> {
        let mut options: Vec<(&str, &str)> = Vec::new();
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
            if options.iter().any(|(before, _)| *before == key) {
                return Err(Error::invalid(format!("the option '{key}' stands there twice")));
            }
            options.push((key, value));
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn shown_urls_contain_no_password() {
        for (url, safe) in [
            ("redis://:geheim@h:1/0", "redis://:***@h:1/0"),
            ("redis://u:ge@he:im@h:1/0", "redis://u:***@h:1/0"),
            ("redis://:a?b/c#d@h:1", "redis://:***@h:1"),
            ("rediss://u@h", "rediss://u@h"),
            ("redis://h?password=x&db=1", "redis://h?password=***&db=1"),
            ("redis://h?password_file=/run/x", "redis://h?password_file=/run/x"),
            ("file:/a@b:c", "file:/a@b:c"),
        ] {
            assert_eq!(redact_url(url), safe);
        }
    }

    #[tokio::test]
    async fn invalid_urls_are_refused_and_the_error_lists_the_alternatives() {
        for (url, says) in [
            ("nowhere", "is not a store URL"),
            ("zookeeper://h", "memory: file: redis: rediss:"),
            ("memory:?x=1", "takes no options"),
            ("memory:abc", "nothing after the colon"),
        ] {
            let error = open(url).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains(says), "{url}: {error}");
        }
    }
}
