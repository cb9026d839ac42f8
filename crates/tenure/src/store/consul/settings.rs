//! The settings of a Consul URL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::lease::{Name, check};
use crate::store::endpoint::{Endpoint, Password, StoreUrl, UrlForm, percent_encoded};
use crate::store::http::HttpTarget;
use crate::store::tls;

/// The variables are those of the command `consul`.
static FORM: UrlForm = UrlForm {
    service: "Consul",
    form: "consul://[:TOKEN@]HOST[:PORT]",
    default_port: 8500,
    several_hosts: false,
    options: &["prefix", "dc", "lock_delay", "tls", "ca", "cert", "key", "password_file"],
    environment: &[
        ("CONSUL_HTTP_ADDR", "hosts"),
        ("CONSUL_HTTP_TOKEN", "password"),
        ("CONSUL_HTTP_TOKEN_FILE", "password_file"),
        ("CONSUL_HTTP_SSL", "tls"),
        ("CONSUL_CACERT", "ca"),
        ("CONSUL_CLIENT_CERT", "cert"),
        ("CONSUL_CLIENT_KEY", "key"),
    ],
};

/// Every key under the prefix counts as a lease, so Tenure has a prefix of its own.
const DEFAULT_PREFIX: &str = "tenure/";

/// The longest prefix of the keys.
const MAX_PREFIX_BYTES: usize = 100;

/// Consul's own maximum of a lock-delay.
pub(super) const MAX_LOCK_DELAY: Duration = Duration::from_secs(60);

pub(super) struct ConsulSettings {
    pub(super) target: Arc<HttpTarget>,
    pub(super) token: Option<Password>,
    /// What every key begins with.
    pub(super) prefix: String,
    /// The datacenter; `None`: the agent's own.
    pub(super) datacenter: Option<String>,
    /// The lock-delay of every session; `None`: its TTL.
    lock_delay: Option<Duration>,
}

impl fmt::Debug for ConsulSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.target.url)
    }
}

impl ConsulSettings {
    pub(super) fn from_url(url: &StoreUrl<'_>) -> Result<Self> {
        let endpoint = Endpoint::from_url(url, &FORM)?;
        endpoint.first_host()?;
        if !endpoint.path.is_empty() {
            return Err(endpoint.malformed("there is a path after the host"));
        }
        if endpoint.user.is_some() {
            return Err(Error::invalid(
                "Consul has no users: write the token as the password, consul://:TOKEN@HOST",
            ));
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
        let prefix = endpoint.options.text("prefix")?.unwrap_or(DEFAULT_PREFIX.to_owned());
        if !prefix.is_empty() {
            check("the prefix", &prefix, MAX_PREFIX_BYTES, "")?;
        }
        let lock_delay = match endpoint.options.text("lock_delay")?.as_deref() {
            Some("0") => Some(Duration::ZERO),
            _ => endpoint.options.duration("lock_delay")?,
        };
        if lock_delay.is_some_and(|delay| delay > MAX_LOCK_DELAY) {
            return Err(Error::invalid("lock_delay is at most 60s: Consul has no longer one"));
        }
        let datacenter = endpoint.options.text("dc")?.filter(|name| !name.is_empty());
        let (hosts, url) = (endpoint.hosts, endpoint.url);
        Ok(ConsulSettings {
            target: Arc::new(HttpTarget { service: "Consul", hosts, tls, url }),
            token: endpoint.password,
            prefix,
            datacenter,
            lock_delay,
        })
    }

    /// The key of a lease.
    pub(super) fn key(&self, name: &Name) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The name that a key belongs to; `None` if it is no key of a lease.
    pub(super) fn name_of(&self, key: &str) -> Option<Name> {
        Name::stored(key.strip_prefix(&self.prefix)?).ok()
    }

    /// The lock-delay of a session with this TTL.
    pub(super) fn lock_delay(&self, ttl: Duration) -> Duration {
        self.lock_delay.unwrap_or(ttl).min(MAX_LOCK_DELAY)
    }

    /// The longest TTL that the lock-delay covers.
    pub(super) fn covered_ttl(&self) -> Duration {
        self.lock_delay(MAX_LOCK_DELAY)
    }

    /// The path of a request for a key, or for the keys below it. Consul redirects a path with `//` or `/.` to another key, and
    /// refuses one with a control character: then this is the path of the longest usable prefix, and the second value is false.
    pub(super) fn key_path(key: &str) -> (String, bool) {
        let text = format!("/{key}");
        let not_printed = key.find(|c: char| !c.is_ascii_graphic());
        let unusable = [text.find("//"), text.find("/."), not_printed].into_iter().flatten().min();
        let usable = unusable.map_or(key, |at| &key[..at]);
        (format!("/v1/kv/{}", percent_encoded(usable)), unusable.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Result<ConsulSettings> {
        ConsulSettings::from_url(&StoreUrl::parse(url)?)
    }

    #[test]
    fn a_url_names_an_agent_a_token_and_a_prefix() {
        let found = settings("consul://:geheim@a?prefix=app/&dc=east").unwrap();
        assert_eq!(found.target.hosts[0].to_string(), "a:8500");
        assert_eq!(found.target.url, "consul://:***@a?prefix=app/&dc=east");
        assert_eq!(found.datacenter.as_deref(), Some("east"));
        let name = Name::new("job").unwrap();
        assert_eq!(found.key(&name), "app/job");
        assert_eq!(found.name_of("app/job"), Some(name.clone()));
        assert_eq!(found.name_of("other/job"), None);
        assert_eq!(settings("consul://a").unwrap().key(&name), "tenure/job");
        assert_eq!(settings("consul://a?prefix=").unwrap().key(&name), "job");
    }

    #[test]
    fn the_lock_delay_is_the_ttl_up_to_consuls_maximum() {
        let seconds = Duration::from_secs;
        let default = settings("consul://a").unwrap();
        assert_eq!(default.lock_delay(seconds(15)), seconds(15));
        assert_eq!(default.lock_delay(seconds(100)), seconds(60));
        assert_eq!(default.covered_ttl(), seconds(60));
        for zero in ["0", "0s"] {
            let none = settings(&format!("consul://a?lock_delay={zero}")).unwrap();
            assert_eq!(none.covered_ttl(), Duration::ZERO);
        }
    }

    #[test]
    fn a_path_names_the_key_or_a_usable_prefix() {
        for (key, path, exact) in [
            ("t/a", "/v1/kv/t%2Fa", true),
            ("t/a%20b", "/v1/kv/t%2Fa%2520b", true),
            ("t/", "/v1/kv/t%2F", true),
            ("t//", "/v1/kv/t%2F", false),
            ("t/a/../b", "/v1/kv/t%2Fa%2F", false),
            ("/", "/v1/kv/", false),
            ("..", "/v1/kv/", false),
            ("t/a\n", "/v1/kv/t%2Fa", false),
            ("", "/v1/kv/", true),
        ] {
            assert_eq!(ConsulSettings::key_path(key), (path.to_owned(), exact), "{key}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for (url, says) in [
            ("consul://", "the host is missing"),
            ("consul://a,b", "the host is missing"),
            ("consul://a/path", "a path after the host"),
            ("consul://u:t@a", "has no users"),
            ("consul://a?tls=0&ca=/x", "tls=0 switches it off"),
            ("consul://a?prefix=a b", "the prefix"),
            ("consul://a?lock_delay=61s", "at most 60s"),
            ("consul://a?lock_delay=x", "takes a duration"),
            ("consul://a?db=1", "has no option 'db'"),
        ] {
            let error = settings(url).unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
        }
    }
}
