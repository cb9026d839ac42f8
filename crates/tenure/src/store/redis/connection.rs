//! One connection for many calls at once, made when it is needed and replaced when it is not to be
//! trusted.
//!
//! Every call carries a guard. A call that is dropped before its answer came (the elector's own
//! time limit) or that ended in an I/O error leaves the connection *suspect*, and the next call
//! makes a new one: a half-open connection costs one time limit, not all of them. Calls already
//! under way on the old one may still be answered.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, Value};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::AbortHandle;

use super::server_info::ServerInfo;
use super::settings::{Place, Settings};
use super::trouble::Trouble;
use super::{examine, tls};
use crate::clock::Moment;
use crate::error::{Error, Kind, Result};
use crate::store::Grade;

/// The longest a connection may take, handshakes and log-in included.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The longest an answer may take. Whoever renews has a shorter limit of its own.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Where connections come from. The handle on a store has one, and so one connection.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) settings: Arc<Settings>,
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
    /// Where the host's name led last: for when it cannot be resolved.
    known: Mutex<Vec<SocketAddr>>,
}

/// A connection that has logged in.
pub(super) struct Link {
    settings: Arc<Settings>,
    connection: MultiplexedConnection,
    driver: AbortHandle,
    suspect: AtomicBool,
    password: Option<String>,
    /// The configuration says that every write is on disk before it is acknowledged, as far as this user may read it.
    fsyncs_every_write: AtomicBool,
    /// When the server was last asked about itself.
    examined_at: Mutex<Moment>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({:?}, suspect: {:?})", self.settings, self.suspect)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Else it would wait for answers to calls nobody remembers.
        self.driver.abort();
    }
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

impl Connector {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        Connector { settings, link: tokio::sync::Mutex::default(), known: Mutex::default() }
    }

    /// The connection, a new one if there is none that can be trusted.
    pub(super) async fn link(&self) -> Result<Arc<Link>> {
        let mut slot = self.link.lock().await;
        if let Some(link) = slot.as_ref().filter(|link| link.is_good()) {
            return Ok(Arc::clone(link));
        }
        *slot = None;
        let link = Arc::new(self.within_limit(Box::pin(self.log_in())).await?);
        *slot = Some(Arc::clone(&link));
        Ok(link)
    }

    /// A connection of its own, for listening.
    pub(super) async fn pubsub(&self) -> Result<PubSub> {
        self.within_limit(Box::pin(async {
            let stream = self.stream().await?;
            let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
            let password = self.password().await?;
            if let Some(password) = &password {
                login = login.set_password(password);
            }
            if let Some(user) = &self.settings.user {
                login = login.set_username(user);
            }
            let pubsub = PubSub::new(&login, stream).await;
            pubsub.map_err(|error| self.settings.trouble(&error, password.as_deref()).error)
        }))
        .await
    }

    async fn within_limit<T>(&self, connecting: impl Future<Output = Result<T>>) -> Result<T> {
        match tokio::time::timeout(CONNECT_LIMIT, connecting).await {
            Ok(result) => result,
            Err(_) => Err(self.why_silent().await),
        }
    }

    /// A plaintext server may wait for ever for the end of what it takes for a line in our TLS
    /// greeting.
    async fn why_silent(&self) -> Error {
        let silent = self.settings.silent("connecting", CONNECT_LIMIT);
        if self.settings.tls.is_none() {
            return silent;
        }
        let probe = async {
            let mut stream = self.tcp().await.ok()?;
            stream.write_all(b"PING\r\n").await.ok()?;
            let mut first = [0];
            stream.read_exact(&mut first).await.ok()?;
            matches!(first, [b'+' | b'-']).then_some(())
        };
        match tokio::time::timeout(Duration::from_secs(1), probe).await {
            Ok(Some(())) => Error::denied(format!(
                "will not talk to {}: it speaks without TLS. Give it a TLS port, or write redis://",
                self.settings
            )),
            _ => silent,
        }
    }

    async fn password(&self) -> Result<Option<String>> {
        let settings = Arc::clone(&self.settings);
        off_the_runtime(move || settings.password()).await
    }

    async fn log_in(&self) -> Result<Link> {
        let settings = &self.settings;
        let stream = self.stream().await?;
        let bare = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_LIMIT));
        let made = MultiplexedConnection::new_with_config(&bare, stream, config).await;
        let (connection, driver) = made.map_err(|error| settings.trouble(&error, None).error)?;
        let link = Link {
            settings: Arc::clone(settings),
            connection,
            driver: tokio::spawn(driver).abort_handle(),
            suspect: AtomicBool::new(false),
            password: self.password().await?,
            fsyncs_every_write: AtomicBool::new(false),
            examined_at: Mutex::default(),
        };
        link.greet().await?;
        link.examine_server().await?;
        Ok(link)
    }

    async fn stream(&self) -> Result<Box<dyn Io>> {
        let settings = &self.settings;
        match (&settings.place, &settings.tls) {
            (Place::Socket(path), _) => {
                let stream = UnixStream::connect(path).await;
                Ok(Box::new(stream.map_err(|error| settings.unreachable(&error))?))
            }
            (Place::Tcp { .. }, None) => {
                let stream = self.tcp().await;
                Ok(Box::new(stream.map_err(|error| settings.unreachable(&error))?))
            }
            (Place::Tcp { host, .. }, Some(_)) => {
                let secure = {
                    let settings = Arc::clone(settings);
                    off_the_runtime(move || tls::connector(&settings)).await?
                };
                let name = tls::server_name(host)?;
                let stream = self.tcp().await.map_err(|error| settings.unreachable(&error))?;
                let stream = async { heard(secure.connect(name, stream).await?).await };
                Ok(Box::new(stream.await.map_err(|error| settings.insecure(&error))?))
            }
        }
    }

    /// The first address that answers. The name is resolved anew for every connection, off this
    /// thread.
    async fn tcp(&self) -> io::Result<TcpStream> {
        let Place::Tcp { host, port } = &self.settings.place else {
            return Err(io::Error::other("not a host"));
        };
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses: Vec<SocketAddr> = match lookup_host((host.as_str(), *port)).await {
            Ok(addresses) => addresses.collect(),
            // A name service that is down is no reason to lose a lease.
            Err(error) if known().is_empty() => return Err(error),
            Err(_) => known().clone(),
        };
        let mut last = io::Error::other("the name has no address");
        for address in &addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    *known() = addresses;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Waits for the first answer over TLS. A server that refuses our certificate says so only after
/// the handshake, and what it says would be lost on whoever writes before reading.
async fn heard<S: Io>(mut stream: S) -> io::Result<S> {
    let written = stream.write_all(b"PING\r\n").await;
    let mut byte = [0];
    // Whatever it is (+PONG, -NOAUTH, -LOADING), it is one line.
    for _ in 0..1_000 {
        if stream.read(&mut byte).await? == 0 {
            written?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if byte == *b"\n" {
            return Ok(stream);
        }
    }
    Err(io::Error::other("its first line does not end"))
}

/// Reading a file may block, and the renewals' thread must not.
async fn off_the_runtime<T: Send + 'static>(
    read: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(read).await {
        Ok(result) => result,
        Err(error) => {
            Err(Error::unavailable(format!("cannot read the connection's files: {error}")))
        }
    }
}

impl Link {
    fn is_good(&self) -> bool {
        !self.suspect.load(Ordering::Relaxed) && !self.driver.is_finished()
    }

    /// Sends one command and waits for its answer.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, Trouble> {
        let mut flight = Flight { link: self, landed: false };
        let answer = self.connection.clone().send_packed_command(command).await;
        match answer.and_then(Value::extract_error) {
            Ok(value) => {
                flight.landed = true;
                Ok(value)
            }
            Err(error) => {
                let trouble = self.settings.trouble(&error, self.password.as_deref());
                flight.landed = !trouble.broken;
                Err(trouble)
            }
        }
    }

    /// Logs in, and finds out whether the server is ready: PING is answered by one that is loading,
    /// with LOADING.
    async fn greet(&self) -> Result<()> {
        let mut commands = Vec::new();
        if let Some(password) = &self.password {
            let mut auth = redis::cmd("AUTH");
            if let Some(user) = &self.settings.user {
                auth.arg(user);
            }
            auth.arg(password);
            commands.push(auth);
        }
        if self.settings.database != 0 {
            commands.push(redis::cmd("SELECT").arg(self.settings.database).to_owned());
        }
        commands.push(redis::cmd("PING"));
        for command in &commands {
            self.send(command).await.map_err(|trouble| match trouble.error.kind() {
                Kind::Unavailable if trouble.broken && self.settings.tls.is_none() => {
                    let hint = "before it said anything. If it wants TLS, write rediss://";
                    Error::unavailable(format!("{}, {hint}", trouble.error))
                }
                _ => trouble.error,
            })?;
        }
        Ok(())
    }

    /// Asks the server about itself.
    ///
    /// # Errors
    /// It is a replica. Denied if no primary was ever found there; Unavailable during what may be a failover.
    async fn examine_server(&self) -> Result<()> {
        let (settings, info) = (&self.settings, ServerInfo::read(self).await);
        if let Some(primary) = info.primary() {
            let message = format!(
                "{settings} is a replica of {primary}, and leases written to a replica are lost: \
                 name its primary instead"
            );
            return Err(match settings.found_primary.load(Ordering::Relaxed) {
                true => Error::unavailable(message),
                false => Error::denied(message),
            });
        }
        settings.found_primary.store(true, Ordering::Relaxed);
        self.fsyncs_every_write.store(info.fsyncs_every_write(), Ordering::Relaxed);
        let is_b = examine::grade(&info) == Grade::B;
        settings.grade_b.store(is_b, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the server was last asked about itself `age` ago, or earlier. If so, it counts as asked now.
    pub(super) fn is_due_for_examination(&self, now: Moment, age: Duration) -> bool {
        let mut examined_at = self.examined_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = now.since(*examined_at) >= age;
        if is_due {
            *examined_at = now;
        }
        is_due
    }

    /// Asks the server about itself again: an operator can switch durability off, or make it a replica, at run time.
    pub(super) async fn examine_again(&self) {
        if let Err(error) = self.examine_server().await {
            tracing::debug!(%error, "the connection is given up");
            self.suspect.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn fsyncs_every_write(&self) -> bool {
        self.fsyncs_every_write.load(Ordering::Relaxed)
    }
}

/// Marks the connection suspect unless an answer came.
struct Flight<'a> {
    link: &'a Link,
    landed: bool,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.landed {
            self.link.suspect.store(true, Ordering::Relaxed);
        }
    }
}
