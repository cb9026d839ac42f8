//! Which requests are accepted: Host and Origin of every request, and the secret of control requests.
//!
//! A page in a user's browser can send requests to this machine, and the page's owner can make a DNS name point to this
//! machine (DNS rebinding). But such a request always carries that name as its Host. So where only this machine can
//! connect, the server accepts only host names that no other party can own. Where other machines can connect, probes use
//! addresses, and only control requests are protected: they need the secret and must not come from another site's page.
//!
//! The secret is read once, from a file that only its owner can read.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Uri};
use subtle::ConstantTimeEq;
use tenure::{Error, Result};

use crate::settings::{TrustRule, UntrustedReason, read_trusted};

/// Longer than any typed secret, and still cheap to compare.
const MAX_SECRET_BYTES: u64 = 1024;
const TOO_LONG: &str = "it is longer than 1024 bytes";
/// The bytes that may follow the secret: CR and LF.
const LINE_END_BYTES: u64 = 2;

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

/// The secret that a client must send.
pub(crate) struct ControlSecret(Vec<u8>);

impl ControlSecret {
    /// Reads the secret from a file.
    ///
    /// # Errors
    /// Invalid: the file cannot be read, is empty, or others could read it.
    pub(crate) fn read(path: &Path) -> Result<ControlSecret> {
        let wrong = |reason: String| {
            Error::invalid(format!("cannot use the control secret in {}: {reason}", path.display()))
        };
        let read = read_trusted(path, TrustRule::Secret, MAX_SECRET_BYTES + LINE_END_BYTES);
        let file = read.map_err(|refusal| match refusal {
            UntrustedReason::NotRegular => wrong("it is no file".to_owned()),
            UntrustedReason::Mode { mode, .. } => wrong(format!(
                "others may read or change it (mode {mode:03o}): run 'chmod 600 {}'",
                path.display()
            )),
            UntrustedReason::TooLarge(_) => wrong(TOO_LONG.to_owned()),
            UntrustedReason::Io(error) => wrong(error.to_string()),
            refusal => wrong(format!("it {refusal}")),
        })?;
        ControlSecret::new(file.bytes).map_err(|reason| wrong(reason.to_owned()))
    }

    fn new(mut bytes: Vec<u8>) -> Result<ControlSecret, &'static str> {
        // Editors append a newline that is not part of the secret.
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        if bytes.is_empty() {
            return Err("it is empty");
        }
        if bytes.len() as u64 > MAX_SECRET_BYTES {
            return Err(TOO_LONG);
        }
        if !bytes.iter().all(u8::is_ascii_graphic) {
            return Err(
                "it must be one line of letters, digits and signs, which a header can carry",
            );
        }
        Ok(ControlSecret(bytes))
    }

    /// Whether `authorization`, the header, carries the secret. The comparison takes constant time.
    pub(crate) fn is_in(&self, authorization: &[u8]) -> bool {
        let Some((scheme, given)) = authorization.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(given.ct_eq(&self.0))
    }
}

impl fmt::Debug for ControlSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use tenure_rig::servers::Scratch;

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

    #[test]
    fn only_the_whole_secret_is_accepted() {
        let secret = ControlSecret::new(b"sesame\n".to_vec()).unwrap();
        assert!(secret.is_in(b"Bearer sesame"));
        assert!(secret.is_in(b"bearer sesame"));
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer sesam", "Bearer sesames", "Basic sesame", "sesame"]
        {
            assert!(!secret.is_in(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{secret:?}"), "Secret(***)");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let scratch = Scratch::new();
        let path = scratch.path().join("secret");
        let read = |mode, text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            ControlSecret::read(&path).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(read(0o600, "sesame\r\n"), Ok(()));
        for (mode, text, says) in [
            (0o640, "sesame", "mode 640"),
            (0o604, "sesame", "chmod 600"),
            (0o620, "sesame", "others may read or change it"),
            (0o600, "", "empty"),
            (0o600, "\n", "empty"),
            (0o600, "two\nlines", "one line"),
            (0o600, &"x".repeat(2000), "longer than 1024"),
        ] {
            let error = read(mode, text).unwrap_err();
            assert!(error.contains(says) && !error.contains("sesame"), "{error}");
        }
        let error = ControlSecret::read(scratch.path()).unwrap_err().to_string();
        assert!(error.contains("no file"), "{error}");
        let error = ControlSecret::read(&scratch.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }
}
