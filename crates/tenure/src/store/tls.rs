//! TLS for every store: rustls with ring, TLS 1.2 or later, the system's root certificates or a given CA, and the server's name
//! in its certificate. No check can be skipped.
//!
//! A URL names files with the options `ca=`, `cert=` and `key=`. Only their paths are kept: the files are read again for every
//! connection, because certificates are replaced on disk while the process runs. An application can give its own configuration
//! instead. Without the feature `tls`, `tls_disabled.rs` takes the place of this module.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::endpoint::{Options, read_small};
use crate::blocking;
use crate::error::{Error, Result};

/// The configuration of a TLS client.
#[derive(Clone)]
pub(super) enum TlsClient {
    /// From these files, which are read for every connection.
    Files(TlsFiles),
    /// The application's own.
    Given(Arc<ClientConfig>),
}

/// The TLS client that the options `ca`, `cert` and `key` describe; `None` for a URL without TLS.
///
/// # Errors
/// Invalid with the message `without_tls` if a URL without TLS has such an option: its author expects TLS.
pub(super) fn from_options(
    options: &Options<'_>,
    is_tls: bool,
    without_tls: &str,
) -> Result<Option<TlsClient>> {
    Ok(TlsFiles::from_options(options, is_tls, without_tls)?.map(TlsClient::Files))
}

/// A TLS client that trusts the system's root certificates.
///
/// # Errors
/// None in this build; without the feature `tls` it is Invalid.
pub(super) fn with_system_roots() -> Result<TlsClient> {
    Ok(TlsClient::Files(TlsFiles { ca: None, identity: None }))
}

/// What a handshake needs: the client's configuration and the name of the server.
pub(super) struct TlsTarget {
    connector: TlsConnector,
    server: ServerName<'static>,
}

/// Prepares the handshake with `host`.
///
/// # Errors
/// Denied if a file cannot be read or is not what it should be; Invalid if `host` is not a name that TLS can check.
pub(super) async fn prepare(client: &TlsClient, host: &str) -> Result<TlsTarget> {
    let config = match client.clone() {
        TlsClient::Files(files) => Arc::new(blocking::run(move || files.client_config()).await??),
        TlsClient::Given(config) => config,
    };
    Ok(TlsTarget { connector: TlsConnector::from(config), server: server_name(host)? })
}

/// Gives an HTTP client this configuration. May block. Without TLS the client gets one that trusts no server: it must not choose
/// one by itself.
#[cfg(feature = "_http")]
pub(super) fn configure(
    builder: reqwest::ClientBuilder,
    client: Option<&TlsClient>,
) -> Result<reqwest::ClientBuilder> {
    let config = match client {
        None => {
            config_builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
        }
        Some(TlsClient::Files(files)) => files.client_config()?,
        Some(TlsClient::Given(config)) => (**config).clone(),
    };
    Ok(builder.tls_backend_preconfigured(config))
}

fn config_builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::denied(format!("cannot set up TLS: {error}")))
}

/// Makes the handshake on a new stream.
///
/// # Errors
/// [`explain`] says which errors are about TLS.
pub(super) async fn handshake(
    target: &TlsTarget,
    stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    target.connector.connect(target.server.clone(), stream).await
}

/// The files of a TLS client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TlsFiles {
    /// The certificates that the server's certificate must be signed with; `None`: the system's root certificates.
    ca: Option<PathBuf>,
    /// The client's certificate and its private key.
    identity: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    fn from_options(
        options: &Options<'_>,
        is_tls: bool,
        without_tls: &str,
    ) -> Result<Option<Self>> {
        let (ca, cert, key) = (options.path("ca")?, options.path("cert")?, options.path("key")?);
        if !is_tls {
            return match (ca, cert, key) {
                (None, None, None) => Ok(None),
                _ => Err(Error::invalid(without_tls)),
            };
        }
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                return Err(Error::invalid("the options cert and key come together or not at all"));
            }
        };
        Ok(Some(TlsFiles { ca, identity }))
    }

    /// Reads the files, which may block.
    ///
    /// # Errors
    /// Denied if a file cannot be read or is not what it should be.
    fn client_config(&self) -> Result<ClientConfig> {
        let config = config_builder()?.with_root_certificates(self.roots()?);
        let Some((cert, key)) = &self.identity else {
            return Ok(config.with_no_client_auth());
        };
        let chain = certificates(cert)?;
        let secret = PrivateKeyDer::from_pem_slice(&read_small(key)?)
            .map_err(|error| unusable(key, "private key", &error.to_string()))?;
        config
            .with_client_auth_cert(chain, secret)
            .map_err(|error| unusable(key, "private key for the certificate", &error.to_string()))
    }

    fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        if let Some(ca) = &self.ca {
            for certificate in certificates(ca)? {
                roots.add(certificate).map_err(|error| unusable(ca, "CA", &error.to_string()))?;
            }
            return Ok(roots);
        }
        // Some of the system's certificates may not be parsable; only having none at all is an error.
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err(Error::denied(
                "this system has no root certificates to check a server with: install \
                 ca-certificates, or give ca=FILE",
            ));
        }
        Ok(roots)
    }
}

/// The name that the server's certificate must contain.
fn server_name(host: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(host.to_owned()).map_err(|_| {
        Error::invalid(format!("'{}' is not a host name TLS can check", host.escape_debug()))
    })
}

/// Why TLS with a server failed, and what to do; `None` if `error` is not about TLS. `plaintext` is what to do if the server has
/// no TLS: `use redis://`.
pub(super) fn explain(error: &io::Error, plaintext: &str) -> Option<String> {
    Some(match tls_error(error)? {
        rustls::Error::InvalidCertificate(reason) => format!(
            "its certificate is not accepted ({reason}). Check its name and dates, and the CA that \
             the client trusts (ca=FILE)"
        ),
        rustls::Error::AlertReceived(alert) => format!(
            "it refuses our side of TLS ({alert:?}). Check the certificate of the client (cert=FILE \
             and key=FILE)"
        ),
        rustls::Error::InvalidMessage(_) => {
            format!("the server does not speak TLS; {plaintext}")
        }
        other => format!("TLS failed ({other})"),
    })
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    let cause = error.get_ref()?;
    // An HTTP client wraps the error of the handshake in another one.
    cause.downcast_ref().or_else(|| tls_error(cause.downcast_ref::<io::Error>()?))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read_small(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unusable(path, "certificate in PEM", "there is none in it")),
        Err(error) => Err(unusable(path, "certificate in PEM", &error.to_string())),
    }
}

fn unusable(path: &Path, what: &str, reason: &str) -> Error {
    Error::denied(format!("'{}' is no usable {what}: {reason}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::endpoint::StoreUrl;
    use super::*;
    use crate::error::Kind;

    fn files(url: &str, is_tls: bool) -> Result<Option<TlsFiles>> {
        let options = StoreUrl::parse(url).unwrap().options(&["ca", "cert", "key"]).unwrap();
        TlsFiles::from_options(&options, is_tls, "these options need TLS")
    }

    #[test]
    fn files_without_tls_and_half_an_identity_are_refused() {
        let all = files("x:?ca=/a&cert=/b&key=/c", true).unwrap().unwrap();
        let identity = Some((PathBuf::from("/b"), PathBuf::from("/c")));
        assert_eq!(all, TlsFiles { ca: Some("/a".into()), identity });
        let none = files("x:", true).unwrap();
        assert_eq!(none, Some(TlsFiles { ca: None, identity: None }));
        assert_eq!(files("x:", false), Ok(None));
        for (url, is_tls, says) in [
            ("x:?ca=/a", false, "these options need TLS"),
            ("x:?key=/a", false, "these options need TLS"),
            ("x:?cert=/a", true, "come together"),
            ("x:?key=/a", true, "come together"),
            ("x:?ca", true, "the path of a file"),
        ] {
            let error = files(url, is_tls).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains(says), "{url}: {error}");
        }
    }

    #[test]
    fn files_are_read_for_every_configuration() {
        let number = crate::entropy::random_u128();
        let path = |name: &str| std::env::temp_dir().join(format!("tenure-{number:032x}-{name}"));
        let (ca, cert, key) = (path("ca"), path("cert"), path("key"));
        let files = TlsFiles { ca: Some(ca.clone()), identity: Some((cert.clone(), key.clone())) };
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (pem, secret) = (made.cert.pem(), made.signing_key.serialize_pem());
        let denied = |says: &str| {
            let error = files.client_config().unwrap_err();
            assert_eq!(error.kind(), Kind::Denied);
            assert!(error.to_string().contains(says), "{error}");
        };
        denied("cannot read");
        std::fs::write(&ca, "nothing").unwrap();
        denied("is no usable certificate in PEM: there is none in it");
        std::fs::write(&ca, &pem).unwrap();
        std::fs::write(&cert, &pem).unwrap();
        std::fs::write(&key, &pem).unwrap();
        denied("is no usable private key");
        std::fs::write(&key, &secret).unwrap();
        files.client_config().unwrap();
        let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&key, other.signing_key.serialize_pem()).unwrap();
        denied("is no usable private key for the certificate");
        for file in [ca, cert, key] {
            std::fs::remove_file(file).unwrap();
        }
    }

    #[test]
    fn the_server_name_is_a_host_name_or_an_address() {
        for host in ["localhost", "a.example", "127.0.0.1", "::1"] {
            assert!(server_name(host).is_ok(), "{host}");
        }
        assert!(server_name("a b").unwrap_err().to_string().contains("not a host name"));
    }
}
