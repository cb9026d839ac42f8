//! The interface of `tls.rs` in a build without the feature `tls`: everything that needs TLS is refused.

use std::io;

use tokio::net::TcpStream;

use super::endpoint::Options;
use crate::error::{Error, Result};

/// There is no TLS client in this build.
pub(super) use std::convert::Infallible as TlsClient;
/// There is no server to speak TLS with in this build.
pub(super) use std::convert::Infallible as TlsTarget;

/// No TLS client, for a URL without TLS.
///
/// # Errors
/// Invalid if the URL needs TLS; with the message `without_tls` if a URL without TLS has an option that needs it.
pub(super) fn from_options(
    options: &Options<'_>,
    is_tls: bool,
    without_tls: &str,
) -> Result<Option<TlsClient>> {
    if is_tls {
        return Err(not_compiled_in("this URL"));
    }
    match ["ca", "cert", "key"].iter().any(|option| options.is_given(option)) {
        true => Err(Error::invalid(without_tls)),
        false => Ok(None),
    }
}

/// # Errors
/// Always: there is no TLS client in this build.
pub(super) fn with_system_roots() -> Result<TlsClient> {
    Err(not_compiled_in("this client"))
}

fn not_compiled_in(what: &str) -> Error {
    Error::invalid(format!(
        "{what} needs TLS, which is not compiled in: build with the feature 'tls'"
    ))
}

pub(super) async fn prepare(client: &TlsClient, _host: &str) -> Result<TlsTarget> {
    match *client {}
}

pub(super) async fn handshake(target: &TlsTarget, _stream: TcpStream) -> io::Result<TcpStream> {
    match *target {}
}

/// An HTTP client without TLS.
#[cfg(feature = "_http")]
pub(super) fn configure(
    builder: reqwest::ClientBuilder,
    client: Option<&TlsClient>,
) -> Result<reqwest::ClientBuilder> {
    match client {
        None => Ok(builder),
        Some(client) => match *client {},
    }
}

/// No error is about TLS.
pub(super) fn explain(_error: &io::Error, _plaintext: &str) -> Option<String> {
    None
}
