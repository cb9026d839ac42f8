//! The listening port, opened before anything else starts, so that a port already in use is reported at once.

use std::io;
use std::net::{SocketAddr, TcpListener};

use tenure::{Error, Result};

use super::auth::{Auth, ControlSecret};
use super::options::{HttpArgs, Listen};

/// The length of the accept queue: how many clients may connect at the same moment.
const ACCEPT_QUEUE: i32 = 1024;

/// A bound port that does not accept connections yet, with the rules for its clients.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(super) listener: TcpListener,
    pub(super) auth: Auth,
    pub(super) secret: Option<ControlSecret>,
    address: SocketAddr,
}

impl Listener {
    /// Opens the port that `args` name, or else `default`; `None` if neither names one. `host` is `TENURE_HTTP_HOST`.
    ///
    /// # Errors
    /// Invalid, each in one sentence: the port is in use, the host is not an address of this machine, or the secret cannot be
    /// used.
    pub(crate) fn open(
        args: &HttpArgs,
        default: Option<Listen>,
        host: Option<&str>,
    ) -> Result<Option<Listener>> {
        let Some(listen) = args.http.clone().or(default) else { return Ok(None) };
        let secret = args.control_secret_file.as_deref().map(ControlSecret::read).transpose()?;
        let host = listen.host(host);
        let bound = TcpListener::bind((host, listen.port)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            // A second `listen` changes the length of the accept queue, which is 128 by default. A client that finds the queue
            // full retries only after a whole second.
            rustix::net::listen(&listener, ACCEPT_QUEUE)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let (listener, address) = bound.map_err(|error| refused(host, listen.port, &error))?;
        let auth = Auth::new(address.ip(), &args.allow_host);
        Ok(Some(Listener { listener, auth, secret, address }))
    }

    /// The bound address, with the real port if port 0 was requested.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether other machines can connect.
    pub(crate) fn is_open_to_others(&self) -> bool {
        !self.auth.is_loopback()
    }
}

fn refused(host: &str, port: u16, error: &io::Error) -> Error {
    let host = host.escape_debug();
    Error::invalid(match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "port {port} on {host} is taken by another program: give another one with --http PORT, \
             or stop that one ('ss -ltnp' shows it)"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "may not listen on port {port} on {host}: ports below 1024 need a right of their own, \
             give a higher one with --http PORT"
        ),
        io::ErrorKind::AddrNotAvailable => format!(
            "cannot listen on {host}: it is no address of this machine; give one that is with --http HOST:PORT"
        ),
        _ => format!(
            "cannot listen on port {port} on {host}: {error}; give another place with --http HOST:PORT"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(text: &str) -> Result<Option<Listener>> {
        let args = HttpArgs { http: Some(text.parse().unwrap()), ..HttpArgs::default() };
        Listener::open(&args, None, None)
    }

    #[test]
    fn a_port_that_cannot_be_opened_is_reported_in_one_sentence() {
        assert!(Listener::open(&HttpArgs::default(), None, None).unwrap().is_none());
        let listener = open("0").unwrap().unwrap();
        assert!(listener.address().ip().is_loopback() && !listener.is_open_to_others());
        let error = open(&listener.address().port().to_string()).unwrap_err();
        assert_eq!(error.kind(), tenure::Kind::Invalid);
        let error = error.to_string();
        assert!(error.contains("is taken") && error.contains("--http PORT"), "{error}");
        // Reserved for documentation, so no machine has this address.
        let error = open("192.0.2.1:0").unwrap_err().to_string();
        assert!(error.contains("no address of this machine"), "{error}");
        let any = open("0.0.0.0:0").unwrap().unwrap();
        assert!(any.is_open_to_others());
        let default = Some(Listen::port(0));
        let any = Listener::open(&HttpArgs::default(), default, Some("0.0.0.0")).unwrap().unwrap();
        assert!(any.is_open_to_others());
    }
}
