//! Opens a store by URL: one `match` on the scheme. Only this module and the stores themselves know the schemes.

use std::path::Path;
use std::sync::Arc;

use super::endpoint::StoreUrl;
use super::{Store, Visibility, memory::MemoryStore};
use crate::error::{Error, Result};

/// A known scheme.
struct Scheme {
    name: &'static str,
    /// The Cargo features that enable it; none: always compiled in.
    features: &'static [&'static str],
    /// The visibility that its stores have in their [`Limits`](super::Limits).
    visibility: Visibility,
}

const SCHEMES: &[Scheme] = &[
    Scheme { name: "memory", features: &[], visibility: Visibility::Process },
    Scheme { name: "file", features: &["file"], visibility: Visibility::Machine },
    Scheme { name: "redis", features: &["redis"], visibility: Visibility::Network },
    Scheme { name: "rediss", features: &["redis", "tls"], visibility: Visibility::Network },
    Scheme { name: "kubernetes", features: &["kubernetes"], visibility: Visibility::Network },
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
    let parsed = StoreUrl::parse(url)?;
    match parsed.scheme {
        "memory" => {
            parsed.options(&[])?;
            if !parsed.rest.is_empty() {
                return Err(Error::invalid("'memory:' takes nothing after the colon"));
            }
            Ok(Arc::new(MemoryStore::of_this_process()))
        }
        #[cfg(feature = "file")]
        "file" => Ok(Arc::new(super::file::FileStore::from_url(&parsed).await?)),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => super::redis::RedisStore::builder(url).build(),
        #[cfg(feature = "kubernetes")]
        "kubernetes" => super::kubernetes::open(&parsed).await,
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

/// The candidates that can share the store of this URL, without opening it. `None` if the URL names no known store: then
/// [`open`] says what is wrong with it.
///
/// ```
/// use tenure::store::{Visibility, visibility_of};
///
/// assert_eq!(visibility_of("memory:"), Some(Visibility::Process));
/// assert_eq!(visibility_of("redis://127.0.0.1"), Some(Visibility::Network));
/// assert_eq!(visibility_of("/var/lib/myapp"), None);
/// ```
pub fn visibility_of(url: &str) -> Option<Visibility> {
    let url = StoreUrl::parse(url).ok()?;
    SCHEMES.iter().find(|scheme| scheme.name == url.scheme).map(|scheme| scheme.visibility)
}

/// The URL of the default store: a directory of this user on this machine.
pub const DEFAULT_URL: &str = "file:";

/// The URL of a store in this directory.
///
/// # Errors
/// Invalid if the path is empty, contains `?`, or is not UTF-8: then no URL can name it.
pub fn file_url(directory: &Path) -> Result<String> {
    // A question mark starts the options of a URL.
    match directory.to_str() {
        Some("") => Err(Error::invalid("the path of the directory must not be empty")),
        Some(path) if !path.contains('?') => Ok(format!("file:{path}")),
        _ => Err(Error::invalid(format!(
            "a directory with '?' or bytes that are not UTF-8 in its name cannot be used: {}",
            directory.display()
        ))),
    }
}

/// The URL with which another process of this machine opens `store`, which was opened from `url`. For a directory it names the
/// very directory that is open and refuses to create one, in case the directory was moved away.
pub(crate) fn url_of_existing(url: &str, store: &dyn Store) -> String {
    if !StoreUrl::parse(url).is_ok_and(|url| url.scheme == "file") {
        // The store's own URL has no password.
        return url.to_owned();
    }
    let url = store.url();
    let and = if url.contains('?') { '&' } else { '?' };
    format!("{url}{and}create=0")
}

fn unknown_scheme(scheme: &str) -> Error {
    let known = SCHEMES.iter().find(|known| known.name == scheme);
    if let Some(known) = known {
        let features = known.features.join("' and '");
        let noun = if known.features.len() == 1 { "feature" } else { "features" };
        return Error::invalid(format!(
            "this build has no store for '{scheme}:': build with the {noun} '{features}'"
        ));
    }
    let known: Vec<String> = SCHEMES.iter().map(|scheme| format!("{}:", scheme.name)).collect();
    Error::invalid(format!(
        "unknown store scheme '{}'; supported: {}",
        scheme.escape_debug(),
        known.join(" ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[tokio::test]
    async fn a_url_has_the_visibility_of_its_store() {
        let mut urls = vec!["memory:".to_owned()];
        if cfg!(feature = "redis") {
            urls.push("redis://127.0.0.1:1".to_owned());
        }
        if cfg!(all(feature = "redis", feature = "tls")) {
            urls.push("rediss://127.0.0.1:1".to_owned());
        }
        for url in urls {
            let limits = open(&url).await.unwrap().limits();
            assert_eq!(visibility_of(&url), Some(limits.visibility), "{url}");
        }
        // What a directory is visible to is tested with its store.
        assert_eq!(visibility_of("file:/x?force=1"), Some(Visibility::Machine));
        assert_eq!(visibility_of("zookeeper://h"), None);
    }

    #[tokio::test]
    async fn another_process_opens_the_same_store() {
        let store = open("memory:").await.unwrap();
        assert_eq!(url_of_existing("redis://u:pass@h", &*store), "redis://u:pass@h");
        assert_eq!(url_of_existing("file:", &*store), format!("{}?create=0", store.url()));
    }

    #[test]
    fn a_path_becomes_a_url_or_is_refused() {
        assert_eq!(file_url(Path::new("/var/lib/x")).unwrap(), "file:/var/lib/x");
        for path in ["", "/a?b"] {
            assert_eq!(file_url(Path::new(path)).unwrap_err().kind(), Kind::Invalid);
        }
    }

    #[tokio::test]
    async fn invalid_urls_are_refused_and_the_error_lists_the_alternatives() {
        for (url, says) in [
            ("nowhere", "is not a store URL"),
            (
                "zookeeper://h",
                "unknown store scheme 'zookeeper'; supported: memory: file: redis: rediss: kubernetes:",
            ),
            ("memory:?x=1", "takes no options"),
            ("memory:abc", "nothing after the colon"),
        ] {
            let error = open(url).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains(says), "{url}: {error}");
        }
    }
}
