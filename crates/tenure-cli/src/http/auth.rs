//! PURE: who may ask at all.
//!
//! A page in somebody's browser can make requests to this machine, and a name of its owner can be made to mean this
//! machine (DNS rebinding). What it cannot do is say another Host than that name. So where only this machine can connect,
//! we answer only to names that nobody else can own. Where others can connect, probes come by address, and only what
//! changes something is guarded: it needs the secret, and must not come from somebody else's page.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Uri};

/// Which names we answer to.
#[derive(Debug)]
pub(super) struct Auth {
    /// `None`: any.
    hosts: Option<Vec<String>>,
}

impl Auth {
    pub(super) fn new(address: IpAddr, allowed: &[String]) -> Auth {
        let address = address.to_canonical();
        if !address.is_loopback() {
            return Auth { hosts: None };
        }
        let ours = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        let address = match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        let hosts = ours.into_iter().chain([address]).chain(allowed.iter().cloned());
        Auth { hosts: Some(hosts.collect()) }
    }

    pub(super) fn is_loopback(&self) -> bool {
        self.hosts.is_some()
    }

    /// Whether a request that came for this Host is for us. The address of a request may name one too.
    pub(super) fn knows(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let Some(hosts) = &self.hosts else { return true };
        let known = |host: &str| hosts.iter().any(|ours| ours.eq_ignore_ascii_case(bare(host)));
        let asked = uri.authority().map(|authority| known(authority.as_str()));
        one(headers, HOST.as_str()).is_some_and(known) && asked != Some(false)
    }
}

/// Whether the request comes from a page that is not ours. Programs have no Origin.
pub(super) fn is_foreign(headers: &HeaderMap) -> bool {
    if !headers.contains_key(ORIGIN) {
        return false;
    }
    let origin = one(headers, ORIGIN.as_str()).and_then(|origin| Some(origin.split_once("://")?.1));
    match (origin, one(headers, HOST.as_str())) {
        (Some(origin), Some(host)) => !origin.eq_ignore_ascii_case(host),
        _ => true,
    }
}

/// The header, if it is there once and can be read.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?.to_str().ok()?;
    all.next().is_none().then_some(first)
}

/// A host without its port.
fn bare(host: &str) -> &str {
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

    fn knows(gate: &Auth, host: &str) -> bool {
        gate.knows(&Uri::from_static("/status"), &headers(&[("host", host)]))
    }

    #[test]
    fn on_this_machine_only_its_own_names_are_known() {
        let gate = Auth::new("127.0.0.1".parse().unwrap(), &["build-7".to_owned()]);
        for host in
            ["localhost", "LOCALHOST:3000", "127.0.0.1:3000", "[::1]", "[::1]:3000", "Build-7:1"]
        {
            assert!(knows(&gate, host), "{host}");
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
            assert!(!knows(&gate, host), "{host}");
        }
        let none = Uri::from_static("/");
        assert!(!gate.knows(&none, &headers(&[])));
        assert!(!gate.knows(&none, &headers(&[("host", "localhost"), ("host", "evil")])));
        let local = headers(&[("host", "localhost")]);
        assert!(!gate.knows(&Uri::from_static("http://evil.example/"), &local));
        assert!(gate.knows(&Uri::from_static("http://localhost/"), &local));
        let other = Auth::new("127.0.0.5".parse().unwrap(), &[]);
        assert!(knows(&other, "127.0.0.5:80"));
        let mapped = Auth::new("::ffff:127.0.0.1".parse().unwrap(), &[]);
        assert!(mapped.is_loopback());
    }

    #[test]
    fn elsewhere_probes_come_by_any_name() {
        let gate = Auth::new("0.0.0.0".parse().unwrap(), &[]);
        assert!(knows(&gate, "10.1.2.3:3000") && knows(&gate, "evil.example"));
        assert!(gate.knows(&Uri::from_static("/"), &headers(&[])));
    }

    #[test]
    fn a_page_of_somebody_else_is_foreign() {
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
