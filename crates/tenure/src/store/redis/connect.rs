//! Opens streams to the server: resolves its addresses, connects over TCP or a unix socket, and adds TLS.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::protocol_probe;
use super::settings::RedisSettings;
use super::target::RedisAddress;
use crate::blocking;
use crate::clock::Clock;
use crate::error::Result;
use crate::store::endpoint::Host;
use crate::store::resolver::{Addresses, lookup_addresses};
use crate::store::tls::{self, TlsClient};

/// The maximum duration of a connection attempt, including handshakes and log-in.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one address may take before the next one is tried in parallel.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// How long a server may leave a TLS handshake unanswered before the client checks whether it speaks plaintext: three round trips,
/// within these bounds.
const MIN_PROBE_DELAY: Duration = Duration::from_millis(300);
const MAX_PROBE_DELAY: Duration = Duration::from_secs(1);
/// The maximum duration of such a check.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// A stream to the server, of any kind.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Opens streams to the server that the settings name.
#[derive(Clone, Debug)]
pub(super) struct Dialer {
    pub(super) settings: Arc<RedisSettings>,
    addresses: Arc<Addresses>,
}

impl Dialer {
    pub(super) fn new(settings: Arc<RedisSettings>) -> Self {
        Dialer { settings, addresses: Arc::default() }
    }

    /// Runs `connecting` for at most [`CONNECT_TIMEOUT`].
    pub(super) async fn with_timeout<T>(
        &self,
        connecting: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(result) => result,
            Err(_) => Err(self.settings.no_answer("connecting", CONNECT_TIMEOUT)),
        }
    }

    pub(super) async fn stream(&self) -> Result<Box<dyn Io>> {
        let settings = &self.settings;
        match (&settings.address, &settings.tls) {
            (RedisAddress::Socket(path), _) => {
                let stream = UnixStream::connect(path).await;
                Ok(Box::new(stream.map_err(|error| settings.unreachable(&error))?))
            }
            (RedisAddress::Tcp(_), None) => {
                let stream = self.tcp().await;
                Ok(Box::new(stream.map_err(|error| settings.unreachable(&error))?))
            }
            (RedisAddress::Tcp(host), Some(client)) => self.tls_stream(client, host).await,
        }
    }

    async fn tls_stream(&self, client: &TlsClient, host: &Host) -> Result<Box<dyn Io>> {
        let (settings, clock) = (&self.settings, Clock::boot());
        let target = tls::prepare(client, &host.name).await?;
        let start = clock.now();
        let stream = self.tcp().await.map_err(|error| settings.unreachable(&error))?;
        let connected_in = clock.now().since(start);
        tokio::select! {
            biased;
            stream = tls::handshake(&target, stream) => {
                Ok(Box::new(stream.map_err(|error| settings.insecure(&error))?))
            }
            () = self.until_found_plaintext(3 * connected_in) => Err(settings.speaks_plaintext()),
        }
    }

    /// Returns if the server does not answer a handshake within `delay`, and speaks plaintext.
    async fn until_found_plaintext(&self, delay: Duration) {
        Clock::boot().sleep(delay.clamp(MIN_PROBE_DELAY, MAX_PROBE_DELAY)).await;
        if !self.probe(protocol_probe::speaks_plaintext).await {
            pending().await
        }
    }

    /// Whether the server, which closed a plaintext connection, speaks TLS.
    pub(super) async fn speaks_tls(&self) -> bool {
        let is_plaintext =
            matches!(self.settings.address, RedisAddress::Tcp(_)) && self.settings.tls.is_none();
        is_plaintext && self.probe(protocol_probe::speaks_tls).await
    }

    /// Asks the server over another connection. A server that was used with this URL before is not asked: it speaks what the
    /// URL says.
    async fn probe<F: Future<Output = bool>>(&self, ask: impl FnOnce(TcpStream) -> F) -> bool {
        if self.settings.found_primary.load(Ordering::Relaxed) {
            return false;
        }
        let asked = async {
            match self.tcp().await {
                Ok(stream) => ask(stream).await,
                Err(_) => false,
            }
        };
        tokio::time::timeout(PROBE_TIMEOUT, asked).await.unwrap_or(false)
    }

    /// Connects over TCP. The name is resolved again for every connection.
    async fn tcp(&self) -> io::Result<TcpStream> {
        let RedisAddress::Tcp(host) = &self.settings.address else {
            return Err(io::Error::other("not a host"));
        };
        let addresses = self.addresses.resolve(lookup_addresses(host.clone())).await?;
        let stream = first_to_accept(&addresses).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// The first address that accepts a connection. An address that does not answer delays the next one only by
/// [`NEXT_ADDRESS_AFTER`].
async fn first_to_accept(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let clock = Clock::boot();
    let mut untried = addresses.iter();
    let mut attempts = FuturesUnordered::new();
    let mut last = io::Error::other("the name has no address");
    loop {
        match untried.next() {
            Some(address) => attempts.push(TcpStream::connect(*address)),
            None if attempts.is_empty() => return Err(last),
            None => {}
        }
        tokio::select! {
            Some(attempt) = attempts.next() => match attempt {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            },
            () = clock.sleep(NEXT_ADDRESS_AFTER), if untried.len() > 0 => {}
        }
    }
}

/// Runs `read` on a blocking thread: reading a file may block, and the renewal thread must not.
pub(super) async fn run_blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    blocking::run(read).await?
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_delays_the_next_a_little() {
        // The kernel drops what does not fit into the backlog, like a host that is off.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(address(0)).unwrap();
        let silent = socket.listen(1).unwrap();
        let silent_address = silent.local_addr().unwrap();
        let mut backlog = Vec::new();
        let connect = || {
            let connecting = TcpStream::connect(silent_address);
            tokio::time::timeout(Duration::from_millis(200), connecting)
        };
        while let Ok(stream) = connect().await {
            backlog.push(stream.unwrap());
        }
        let listener = TcpListener::bind(address(0)).await.unwrap();
        let refused = {
            let closed = TcpListener::bind(address(0)).await.unwrap();
            closed.local_addr().unwrap()
        };
        let good = listener.local_addr().unwrap();
        let addresses = [refused, silent_address, good];
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, first_to_accept(&addresses)).await;
        assert_eq!(stream.expect("in time").unwrap().peer_addr().unwrap(), good);
        let error = first_to_accept(&[refused, refused]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
