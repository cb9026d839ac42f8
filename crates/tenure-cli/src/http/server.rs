//! The server thread, its connections, and the resources that clients may use.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tenure::supervise::spawn_runtime;
use tenure::{Clock, Error, Result, Store};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::AbortHandle;

use super::cached_read::StoreThread;
use super::connection::{Connection, IdleSince, ResponseBody, UnreadSince};
use super::control::Peer;
use super::events::EventLog;
use super::listener::Listener;
use super::participant::Participant;
use super::routes::{App, router};
use crate::{open_files, store_access};

/// The longest request body in bytes; the longest content is a candidate's id.
pub(super) const MAX_BODY_BYTES: usize = 4 * 1024;
/// The longest request head in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// The most header lines of a request.
const MAX_HEADERS: usize = 64;
/// A response with more bytes counts as large.
pub(super) const LARGE_RESPONSE_BYTES: usize = 64 * 1024;
/// The pause before the next accept when no connection can be accepted, for lack of memory or open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The limits on everything that a client can make this process keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpLimits {
    /// The most connections. Beyond this a new connection replaces the connection that has waited longest for a request, or is
    /// closed at once.
    pub(crate) connections: usize,
    /// The most subscribers of `/events`; more are refused.
    pub(crate) subscribers: usize,
    /// The time in which the head of a request must arrive, and the longest idle time between two requests.
    pub(crate) header_timeout: Duration,
    /// A connection is replaced only after it has waited this long for a request.
    pub(crate) replace_after: Duration,
    /// The time in which the body of a request must arrive.
    pub(crate) body_timeout: Duration,
    /// A connection whose client has not read for this long is closed.
    pub(crate) stall_timeout: Duration,
    /// How often subscribers of `/events` get a keepalive.
    pub(crate) keepalive_interval: Duration,
    /// How long `/leases` waits for the store.
    pub(crate) store_timeout: Duration,
    /// How long `/fleet`, which reads more, waits for the store.
    pub(crate) fleet_timeout: Duration,
    /// The most large responses in flight: each stays in memory until its client has read it.
    pub(crate) large: usize,
}

impl HttpLimits {
    /// The limits of a member that polls over HTTP and needs as many connections for that.
    pub(crate) fn beside_polls() -> HttpLimits {
        let limit = open_files::limit();
        HttpLimits::of(connections(limit).min(open_files::for_polls(limit)))
    }

    fn of(connections: usize) -> HttpLimits {
        HttpLimits {
            connections,
            // Subscribers stay connected, so half of the connections is left for requests.
            subscribers: (connections / 2).clamp(1, 1024),
            header_timeout: Duration::from_secs(5),
            replace_after: Duration::from_millis(100),
            body_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(10),
            keepalive_interval: Duration::from_secs(15),
            store_timeout: Duration::from_secs(2),
            fleet_timeout: store_access::STORE_TIMEOUT,
            large: 32,
        }
    }
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits::of(connections(open_files::limit()))
    }
}

/// How many connections leave enough open files for this process: the store's next connection needs one.
fn connections(files: Option<u64>) -> usize {
    open_files::for_connections(files, 2048)
}

/// A running server. After it is dropped it ends soon by itself.
#[derive(Debug)]
pub(crate) struct HttpServer {
    #[allow(dead_code, reason = "the tests ask")]
    address: SocketAddr,
    #[allow(dead_code, reason = "the tests ask")]
    event_log: Arc<EventLog>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Serves at `listener` for a candidate or a member, on a separate thread. `store` is used by requests that need more than
    /// this process knows, on another thread and over separate connections.
    pub(crate) fn start(
        listener: Listener,
        participant: impl Into<Participant>,
        store: &Arc<dyn Store>,
        limits: HttpLimits,
    ) -> Result<HttpServer> {
        let failed = |error| Error::denied(format!("cannot start the HTTP server: {error}"));
        let address = listener.address();
        let (store_thread, participant) =
            (StoreThread::start().map_err(failed)?, participant.into());
        let (end, ended) = oneshot::channel();
        let (event_log, store) = (Arc::clone(participant.event_log()), Arc::clone(store));
        let started = spawn_runtime("tenure-http", move |runtime| {
            runtime.block_on(async {
                tokio::select! {
                    _ = ended => {}
                    () = serve(listener, participant, &*store, store_thread, limits) => {}
                }
            });
            // A blocking call that hangs in a file system or a name server must not delay the end.
            runtime.shutdown_background();
        });
        let thread = Some(started.map_err(failed)?.1);
        Ok(HttpServer { address, event_log, end: Some(end), thread })
    }

    /// The address on which the server listens.
    #[allow(dead_code, reason = "the tests ask")]
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes every connection, and returns when the server holds no reference to the participant any more.
    pub(crate) fn stop(mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the HTTP server had panicked");
        }
    }

    #[cfg(test)]
    pub(super) fn event_log(&self) -> &EventLog {
        &self.event_log
    }
}

async fn serve(
    listener: Listener,
    participant: Participant,
    store: &dyn Store,
    store_thread: StoreThread,
    limits: HttpLimits,
) {
    let Listener { listener, auth, secret, .. } = listener;
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot answer over HTTP"),
    };
    let clock = participant.clock().clone();
    tokio::spawn(participant.clone().follow());
    tokio::spawn(send_keepalives(
        clock.clone(),
        Arc::clone(participant.event_log()),
        limits.keepalive_interval,
    ));
    let app = App::new(participant, auth, secret, store, store_thread, limits);
    accept(&listener, &router(Arc::new(app)), &clock, limits).await;
}

async fn send_keepalives(clock: Clock, event_log: Arc<EventLog>, every: Duration) {
    loop {
        clock.sleep(every).await;
        event_log.send_keepalive();
    }
}

async fn accept(listener: &TcpListener, router: &Router, clock: &Clock, limits: HttpLimits) {
    let permits = Arc::new(Semaphore::new(limits.connections));
    let mut open: Vec<OpenConnection> = Vec::new();
    // Often enough that no connection stays much longer than allowed.
    let check_interval = limits.stall_timeout / 4;
    let mut next_check = Box::pin(clock.sleep(check_interval));
    let mut can_accept = true;
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut next_check => {
                open.retain(|connection| !is_over(connection, clock, limits.stall_timeout));
                next_check.set(clock.sleep(check_interval));
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                can_accept = true;
                // A task that has ended takes memory until its entry is removed.
                let connected = limits.connections - permits.available_permits();
                if open.len() > 2 * connected + 64 {
                    open.retain(|connection| !connection.task.is_finished());
                }
                // Without a permit, too many requests are in flight: the new connection is closed at once, so that they can
                // finish.
                if let Some(permit) = connection_permit(&permits, &open, clock, limits).await {
                    // Events are small and urgent.
                    let _ = stream.set_nodelay(true);
                    let (unread, idle) = (UnreadSince::default(), IdleSince::new(clock.now()));
                    let connection = Connection::new(stream, clock.clone(), unread.clone());
                    let service = ServedConnection {
                        router: router.clone(),
                        idle: idle.clone(),
                        clock: clock.clone(),
                    };
                    let task =
                        tokio::spawn(handle_connection(connection, peer, service, limits, permit));
                    open.push(OpenConnection { task: task.abort_handle(), unread, idle });
                }
            }
            // The client disconnected before its connection was accepted.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Logged once, until accepting succeeds again.
                if std::mem::take(&mut can_accept) {
                    tracing::warn!(%error, "cannot accept connections over HTTP");
                }
                clock.sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// A connection, as the accept loop tracks it.
struct OpenConnection {
    task: AbortHandle,
    unread: UnreadSince,
    idle: IdleSince,
}

/// Returns a permit for one more connection. If there is none, it closes the connection that has waited longest for a complete
/// request and takes its permit, so that clients that send their requests slowly or never do not keep the others out.
async fn connection_permit(
    permits: &Arc<Semaphore>,
    open: &[OpenConnection],
    clock: &Clock,
    limits: HttpLimits,
) -> Option<OwnedSemaphorePermit> {
    if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
        return Some(permit);
    }
    let waits = |connection: &&OpenConnection| {
        !connection.unread.is_unread() && !connection.task.is_finished()
    };
    let since =
        |connection: &OpenConnection| Some((connection.idle.since()?, connection.task.clone()));
    let longest = open.iter().filter(waits).filter_map(since).min_by_key(|(since, _)| *since);
    let (_, task) =
        longest.filter(|(since, _)| clock.now().since(*since) >= limits.replace_after)?;
    task.abort();
    // The permit is free as soon as the task has been dropped.
    Arc::clone(permits).acquire_owned().await.ok()
}

/// Whether a connection has ended; closes it if its client has not read for too long.
fn is_over(connection: &OpenConnection, clock: &Clock, limit: Duration) -> bool {
    if connection.unread.longer_than(limit, clock.now()) {
        connection.task.abort();
    }
    connection.task.is_finished()
}

/// The service that answers the requests of one connection.
struct ServedConnection {
    router: Router,
    idle: IdleSince,
    clock: Clock,
}

async fn handle_connection(
    connection: Connection,
    peer: SocketAddr,
    served: ServedConnection,
    limits: HttpLimits,
    _permit: OwnedSemaphorePermit,
) {
    let ServedConnection { router, idle, clock } = served;
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        let in_flight = idle.request(&clock);
        let response = router.call(request);
        async move {
            let body = |body| Body::new(ResponseBody { body, _in_flight: in_flight });
            Ok::<_, Infallible>(response.await?.map(body))
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        // Restarted for every request, so it is also how long a connection may be idle.
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(connection), service);
    if let Err(error) = served.await {
        tracing::trace!(%peer, %error, "a connection broke off");
    }
}

#[cfg(test)]
mod tests {
    use super::connections;

    #[test]
    fn open_files_are_left_for_the_store() {
        for (files, left) in
            [(None, 2048), (Some(1 << 20), 2048), (Some(1024), 768), (Some(256), 64), (Some(0), 1)]
        {
            assert_eq!(connections(files), left);
        }
    }
}
