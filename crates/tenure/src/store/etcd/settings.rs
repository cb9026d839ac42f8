//! The settings of an etcd URL.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::error::{Error, Result};
use crate::lease::{Name, check};
use crate::store::endpoint::{Endpoint, Password, StoreUrl, UrlForm};
use crate::store::http::HttpTarget;
use crate::store::tls;

/// The variables are those of `etcdctl`.
static FORM: UrlForm = UrlForm {
    service: "etcd",
    form: "etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]",
    default_port: 2379,
    several_hosts: true,
    options: &["prefix", "tls", "ca", "cert", "key", "password_file"],
    environment: &[
        ("ETCDCTL_ENDPOINTS", "hosts"),
        ("ETCDCTL_USER", "login"),
        ("ETCDCTL_PASSWORD", "password"),
        ("ETCDCTL_CACERT", "ca"),
        ("ETCDCTL_CERT", "cert"),
        ("ETCDCTL_KEY", "key"),
    ],
};

/// The longest prefix of the keys.
const MAX_PREFIX_BYTES: usize = 100;

/// What follows the key of a lease in the key of its record. No name contains `#`, and it sorts before every character of a
/// name: so a range from a key to before `KEY$` has the two keys of one lease and no other.
const RECORD_SUFFIX: &str = "#tenure";

pub(super) struct EtcdSettings {
    pub(super) target: Arc<HttpTarget>,
    pub(super) user: Option<String>,
    pub(super) password: Option<Password>,
    /// What every key begins with.
    pub(super) prefix: String,
    /// Whether the server was examined and had grade A; false if it was not examined.
    pub(super) grade_a: AtomicBool,
}

impl fmt::Debug for EtcdSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.target.url)
    }
}

impl EtcdSettings {
    pub(super) fn from_url(url: &StoreUrl<'_>) -> Result<Self> {
        let endpoint = Endpoint::from_url(url, &FORM)?;
        endpoint.first_host()?;
        if !endpoint.path.is_empty() {
            return Err(endpoint.malformed("there is a path after the hosts"));
        }
        let has_files = ["ca", "cert", "key"].iter().any(|key| endpoint.options.is_given(key));
        let is_tls = match endpoint.options.flag("tls")? {
            Some(false) if has_files => {
                return Err(Error::invalid(
                    "the options ca, cert and key are for TLS, and tls=0 switches it off",
                ));
            }
            given => given.unwrap_or(has_files),
        };
        let tls = tls::from_options(&endpoint.options, is_tls, "these options need tls=1")?;
        if endpoint.user.is_some() != endpoint.password.is_some() {
            return Err(Error::invalid(
                "a user of etcd needs a password, and a password needs a user: write etcd://USER:PASSWORD@HOST",
            ));
        }
        let prefix = endpoint.options.text("prefix")?.unwrap_or_default();
        if !prefix.is_empty() {
            check("the prefix", &prefix, MAX_PREFIX_BYTES, "")?;
        }
        let (hosts, url) = (endpoint.hosts, endpoint.url);
        Ok(EtcdSettings {
            target: Arc::new(HttpTarget { service: "etcd", hosts, tls, url }),
            user: endpoint.user,
            password: endpoint.password,
            prefix,
            grade_a: AtomicBool::new(false),
        })
    }

    /// The key that holds the holder's id.
    pub(super) fn visible_key(&self, name: &Name) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The key of the record.
    pub(super) fn record_key(&self, name: &Name) -> String {
        format!("{}{name}{RECORD_SUFFIX}", self.prefix)
    }

    /// The name that a key belongs to, and whether it is the key of the record. `None` if it is no key of a lease.
    pub(super) fn name_of(&self, key: &[u8]) -> Option<(Name, bool)> {
        let key = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        let (name, is_record) = match key.strip_suffix(RECORD_SUFFIX) {
            Some(name) => (name, true),
            None => (key, false),
        };
        Some((Name::stored(name).ok()?, is_record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Result<EtcdSettings> {
        EtcdSettings::from_url(&StoreUrl::parse(url)?)
    }

    #[test]
    fn a_url_names_members_and_a_prefix() {
        let settings = settings("etcd://u:p@a,b:1?prefix=/app/").unwrap();
        let hosts: Vec<String> = settings.target.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["a:2379", "b:1"]);
        assert_eq!(settings.target.url, "etcd://u:***@a,b:1?prefix=/app/");
        let name = Name::new("job").unwrap();
        assert_eq!(settings.record_key(&name), "/app/job#tenure");
        assert_eq!(settings.name_of(b"/app/job#tenure"), Some((name.clone(), true)));
        assert_eq!(settings.name_of(b"/app/job"), Some((name, false)));
        assert_eq!(settings.name_of(b"/other/job"), None);
        assert_eq!(settings.name_of(b"/app/a b"), None);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for (url, says) in [
            ("etcd://", "the host is missing"),
            ("etcd://a/path", "a path after the hosts"),
            ("etcd://u@a", "needs a password"),
            ("etcd://:p@a", "needs a user"),
            ("etcd://a?tls=0&ca=/x", "tls=0 switches it off"),
            ("etcd://a?prefix=a b", "the prefix"),
            ("etcd://a?db=1", "has no option 'db'"),
        ] {
            let error = settings(url).unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
        }
    }
}
