//! TLS for `rediss://`: rustls with ring, TLS 1.2 or later, the system's root certificates or a given CA. No check can be
//! skipped.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::settings::{RedisSettings, Tls, read_small};
use crate::error::{Error, Result};

/// Reads the files again for every connection: certificates are replaced on disk while the process runs.
pub(super) fn connector(settings: &RedisSettings) -> Result<TlsConnector> {
    let Some(tls) = &settings.tls else {
        return Err(Error::invalid("not a rediss:// URL"));
    };
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::denied(format!("cannot set up TLS: {error}")))?
        .with_root_certificates(roots(tls)?);
    let config = match &tls.identity {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates(cert)?;
            let secret = PrivateKeyDer::from_pem_slice(&read_small(key)?)
                .map_err(|error| unusable(key, "private key", &error.to_string()))?;
            config.with_client_auth_cert(chain, secret).map_err(|error| {
                unusable(key, "private key for the certificate", &error.to_string())
            })?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The name that the server's certificate must contain.
pub(super) fn server_name(host: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(host.to_owned()).map_err(|_| {
        Error::invalid(format!("'{}' is not a host name TLS can check", host.escape_debug()))
    })
}

fn roots(tls: &Tls) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &tls.ca {
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
