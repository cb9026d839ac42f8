//! The port and who may come in, settled before anything begins: a port that is taken is a mistake to hear of at once.

use std::io;
use std::net::{SocketAddr, TcpListener};

use tenure::{Error, Result};

use super::auth::Auth;
use super::options::{HttpArgs, Listen};
use super::secret::Secret;

/// So many clients may come at the same moment.
const WAITING: i32 = 1024;

/// A port that is ours, and not answered on yet.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(super) listener: TcpListener,
    pub(super) gate: Auth,
    pub(super) secret: Option<Secret>,
    address: SocketAddr,
}

impl Listener {
    /// Opens what `args` ask for, else `default`; `None`: neither wants one. `host` is `TENURE_HTTP_HOST`.
    ///
    /// # Errors
    /// Invalid, each in one sentence: the port is taken, the host is none of ours, the secret cannot be used.
    pub(crate) fn open(
        args: &HttpArgs,
        default: Option<Listen>,
        host: Option<&str>,
    ) -> Result<Option<Listener>> {
        let Some(listen) = args.http.clone().or(default) else { return Ok(None) };
        let secret = args.control_secret_file.as_deref().map(Secret::read).transpose()?;
        let host = listen.host(host);
        let bound = TcpListener::bind((host, listen.port)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            // Saying it again changes how many may wait to be let in; by itself it is 128, and whoever comes when
            // all places are taken tries again after a whole second.
            rustix::net::listen(&listener, WAITING)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let (listener, address) = bound.map_err(|error| refused(host, listen.port, &error))?;
        let gate = Auth::new(address.ip(), &args.allow_host);
        Ok(Some(Listener { listener, gate, secret, address }))
    }

    /// Where it is; the port also where any was asked for.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether other machines can connect.
    pub(crate) fn is_open_to_others(&self) -> bool {
        !self.gate.is_loopback()
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
    fn what_cannot_be_opened_is_told_in_one_sentence() {
        assert!(Listener::open(&HttpArgs::default(), None, None).unwrap().is_none());
        let door = open("0").unwrap().unwrap();
        assert!(door.address().ip().is_loopback() && !door.is_open_to_others());
        let said = open(&door.address().port().to_string()).unwrap_err();
        assert_eq!(said.kind(), tenure::Kind::Invalid);
        let said = said.to_string();
        assert!(said.contains("is taken") && said.contains("--http PORT"), "{said}");
        // Set aside for documents, so nobody has it.
        let said = open("192.0.2.1:0").unwrap_err().to_string();
        assert!(said.contains("no address of this machine"), "{said}");
        let any = open("0.0.0.0:0").unwrap().unwrap();
        assert!(any.is_open_to_others());
        let default = Some(Listen::port(0));
        let any = Listener::open(&HttpArgs::default(), default, Some("0.0.0.0")).unwrap().unwrap();
        assert!(any.is_open_to_others());
    }
}
