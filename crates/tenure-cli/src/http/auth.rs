//! PURE: which requests are accepted, judged by their Host and Origin headers.
//!
//! A page in a user's browser can send requests to this machine, and the page's owner can make a DNS name point to this
//! machine (DNS rebinding). But such a request always carries that name as its Host. So where only this machine can
//! connect, the server accepts only host names that no other party can own. Where other machines can connect, probes use
//! addresses, and only control requests are protected: they need the secret and must not come from another site's page.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Uri};

/// The host names that the server accepts.
#[derive(Debug)]
pub(super) struct Auth {
    /// `None` accepts any.
    hosts: Option<Vec<String>>,
}

impl Auth {
    pub(super) fn new(address: IpAddr, allowed: &[String]) -> Auth {
        let address = address.to_canonical();
        if !address.is_loopback() {
            return Auth { hosts: None };
        }
        let own_names = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        let address = match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        let hosts = own_names.into_iter().chain([address]).chain(allowed.iter().cloned());
        Auth { hosts: Some(hosts.collect()) }
    }

    pub(super) fn is_loopback(&self) -> bool {
        self.hosts.is_some()
    }

    /// Whether the server accepts the Host of a request. The request target may name a host too, which must also match.
    pub(super) fn accepts_host(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let Some(hosts) = &self.hosts else { return true };
        let accepts =
            |host: &str| hosts.iter().any(|own| own.eq_ignore_ascii_case(without_port(host)));
        let target_accepted = uri.authority().map(|authority| accepts(authority.as_str()));
        single_header(headers, HOST.as_str()).is_some_and(accepts) && target_accepted != Some(false)
    }
}

/// Whether the request comes from a page of another site. Programs send no Origin.
pub(super) fn is_foreign(headers: &HeaderMap) -> bool {
    if !headers.contains_key(ORIGIN) {
        return false;
    }
    let origin = single_header(headers, ORIGIN.as_str())
        .and_then(|origin| Some(origin.split_once("://")?.1));
    match (origin, single_header(headers, HOST.as_str())) {
        (Some(origin), Some(host)) => !origin.eq_ignore_ascii_case(host),
        _ => true,
    }
}

/// The header's value, if the header occurs once and is readable.
fn single_header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?.to_str().ok()?;
    all.next().is_none().then_some(first)
}

/// A host without its port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn accepts_host(auth: &Auth, host: &str) -> bool {
        auth.accepts_host(&Uri::from_static("/status"), &headers(&[("host", host)]))
    }

    #[test]
    fn on_loopback_only_its_own_names_are_accepted() {
        let auth = Auth::new("127.0.0.1".parse().unwrap(), &["build-7".to_owned()]);
        for host in
            ["localhost", "LOCALHOST:3000", "127.0.0.1:3000", "[::1]", "[::1]:3000", "Build-7:1"]
        {
            assert!(accepts_host(&auth, host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "evil.example:3000",
            "localhost@evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.2",
            "localhost.",
            "::1",
            "localhost:x",
            "0.0.0.0",
        ] {
            assert!(!accepts_host(&auth, host), "{host}");
        }
        let none = Uri::from_static("/");
        assert!(!auth.accepts_host(&none, &headers(&[])));
        assert!(!auth.accepts_host(&none, &headers(&[("host", "localhost"), ("host", "evil")])));
        let local = headers(&[("host", "localhost")]);
        assert!(!auth.accepts_host(&Uri::from_static("http://evil.example/"), &local));
        assert!(auth.accepts_host(&Uri::from_static("http://localhost/"), &local));
        let other = Auth::new("127.0.0.5".parse().unwrap(), &[]);
        assert!(accepts_host(&other, "127.0.0.5:80"));
        let mapped = Auth::new("::ffff:127.0.0.1".parse().unwrap(), &[]);
        assert!(mapped.is_loopback());
    }

    #[test]
    fn on_other_addresses_any_host_is_accepted() {
        let auth = Auth::new("0.0.0.0".parse().unwrap(), &[]);
        assert!(accepts_host(&auth, "10.1.2.3:3000") && accepts_host(&auth, "evil.example"));
        assert!(auth.accepts_host(&Uri::from_static("/"), &headers(&[])));
    }

    #[test]
    fn a_page_of_another_site_is_foreign() {
        let foreign =
            |host: &str, origin: &str| is_foreign(&headers(&[("host", host), ("origin", origin)]));
        assert!(!is_foreign(&headers(&[("host", "localhost:3000")])));
        assert!(!foreign("localhost:3000", "http://localhost:3000"));
        assert!(!foreign("a.example", "https://A.example"));
        for origin in
            ["null", "", "http://localhost", "http://localhost:8080", "http://evil.example"]
        {
            assert!(foreign("localhost:3000", origin), "{origin}");
        }
        assert!(is_foreign(&headers(&[("origin", "http://a")])));
    }
}
