//! The thread that answers, the connections, and their limits.

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
use tenure::blocking::spawn_runtime;
use tenure::{Clock, Error, Result, Store};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::AbortHandle;

use super::connection::{Connection, IdleSince, ResponseBody, UnreadSince};
use super::control::Peer;
use super::events::EventLog;
use super::limits::{HEAD, HEADERS, HttpLimits};
use super::listener::Listener;
use super::participant::Participant;
use super::routes::{App, router};
use super::store_thread::StoreThread;

/// How long to wait when no connection can be accepted, for want of memory or open files.
const BREATH: Duration = Duration::from_millis(100);

/// A server at work. Dropped, it ends by itself, soon.
#[derive(Debug)]
pub(crate) struct HttpServer {
    #[allow(dead_code, reason = "the tests ask")]
    address: SocketAddr,
    #[allow(dead_code, reason = "the tests ask")]
    news: Arc<EventLog>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Answers at `door` for a candidate or a member, on a thread of its own. `store` is needed by what looks further than
    /// that one knows, on another thread and over connections of its own.
    pub(crate) fn start(
        door: Listener,
        subject: impl Into<Participant>,
        store: &Arc<dyn Store>,
        limits: HttpLimits,
    ) -> Result<HttpServer> {
        let failed = |error| Error::denied(format!("cannot start the HTTP server: {error}"));
        let address = door.address();
        let (aside, subject) = (StoreThread::start().map_err(failed)?, subject.into());
        let (end, ended) = oneshot::channel();
        let (news, store) = (Arc::clone(subject.news()), Arc::clone(store));
        let started = spawn_runtime("tenure-http", move |runtime| {
            runtime.block_on(async {
                tokio::select! {
                    _ = ended => {}
                    () = serve(door, subject, &*store, aside, limits) => {}
                }
            });
            // What hangs in a file system or a name server must not keep us here.
            runtime.shutdown_background();
        });
        let thread = Some(started.map_err(failed)?.1);
        Ok(HttpServer { address, news, end: Some(end), thread })
    }

    /// Where it answers.
    #[allow(dead_code, reason = "the tests ask")]
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes every connection, and returns when nothing of the instance is held any more.
    pub(crate) fn stop(mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the HTTP server had panicked");
        }
    }

    #[cfg(test)]
    pub(super) fn news(&self) -> &EventLog {
        &self.news
    }
}

async fn serve(
    door: Listener,
    subject: Participant,
    store: &dyn Store,
    aside: StoreThread,
    limits: HttpLimits,
) {
    let Listener { listener, gate, secret, .. } = door;
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot answer over HTTP"),
    };
    let clock = subject.clock().clone();
    tokio::spawn(subject.clone().follow());
    tokio::spawn(beat(clock.clone(), Arc::clone(subject.news()), limits.beat));
    let app = App::new(subject, gate, secret, store, aside, limits);
    accept(&listener, &router(Arc::new(app)), &clock, limits).await;
}

async fn beat(clock: Clock, news: Arc<EventLog>, every: Duration) {
    loop {
        clock.sleep(every).await;
        news.beat();
    }
}

async fn accept(listener: &TcpListener, router: &Router, clock: &Clock, limits: HttpLimits) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut open: Vec<Open> = Vec::new();
    // Often enough that nobody stays much longer than allowed.
    let look_every = limits.stall / 4;
    let mut look = Box::pin(clock.sleep(look_every));
    let mut can_accept = true;
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut look => {
                open.retain(|connection| !is_over(connection, clock, limits.stall));
                look.set(clock.sleep(look_every));
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                can_accept = true;
                // A task that has ended takes up room until it is let go.
                let here = limits.connections - places.available_permits();
                if open.len() > 2 * here + 64 {
                    open.retain(|connection| !connection.task.is_finished());
                }
                // Too many requests are being answered: the new connection is closed at once, so that these are.
                if let Some(place) = place(&places, &open, clock, limits).await {
                    // Events are small, and waited for.
                    let _ = stream.set_nodelay(true);
                    let (stuck, waiting) = (UnreadSince::default(), IdleSince::new(clock.now()));
                    let connection = Connection::new(stream, clock.clone(), stuck.clone());
                    let service = ServedConnection {
                        router: router.clone(),
                        waiting: waiting.clone(),
                        clock: clock.clone(),
                    };
                    let task = tokio::spawn(converse(connection, peer, service, limits, place));
                    open.push(Open { task: task.abort_handle(), stuck, waiting });
                }
            }
            // Of one that was gone before we came to it.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Told once, until it goes on.
                if std::mem::take(&mut can_accept) {
                    tracing::warn!(%error, "cannot accept connections over HTTP");
                }
                clock.sleep(BREATH).await;
            }
        }
    }
}

/// A connection, as the accept loop knows it.
struct Open {
    task: AbortHandle,
    stuck: UnreadSince,
    waiting: IdleSince,
}

/// A place for one more connection. If all are taken, it is that of the connection that has waited longest for a complete
/// request: clients that send theirs slowly or never do not keep the others out.
async fn place(
    places: &Arc<Semaphore>,
    open: &[Open],
    clock: &Clock,
    limits: HttpLimits,
) -> Option<OwnedSemaphorePermit> {
    if let Ok(place) = Arc::clone(places).try_acquire_owned() {
        return Some(place);
    }
    let waits = |connection: &&Open| !connection.stuck.is_stuck() && !connection.task.is_finished();
    let since = |connection: &Open| Some((connection.waiting.since()?, connection.task.clone()));
    let longest = open.iter().filter(waits).filter_map(since).min_by_key(|(since, _)| *since);
    let (_, task) =
        longest.filter(|(since, _)| clock.now().since(*since) >= limits.replace_after)?;
    task.abort();
    // Its place is free as soon as the task has been dropped.
    Arc::clone(places).acquire_owned().await.ok()
}

/// Whether a connection has ended; ends it if its client has not read for too long.
fn is_over(connection: &Open, clock: &Clock, limit: Duration) -> bool {
    if connection.stuck.longer_than(limit, clock.now()) {
        connection.task.abort();
    }
    connection.task.is_finished()
}

/// What answers the requests of one connection.
struct ServedConnection {
    router: Router,
    waiting: IdleSince,
    clock: Clock,
}

async fn converse(
    connection: Connection,
    peer: SocketAddr,
    served: ServedConnection,
    limits: HttpLimits,
    _place: OwnedSemaphorePermit,
) {
    let ServedConnection { router, waiting, clock } = served;
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        let in_flight = waiting.request(&clock);
        let response = router.call(request);
        async move {
            let body = |body| Body::new(ResponseBody { body, _in_flight: in_flight });
            Ok::<_, Infallible>(response.await?.map(body))
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        // Counted anew for every request, so it is also how long a connection may be idle.
        .header_read_timeout(limits.header_time)
        .max_buf_size(HEAD)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(connection), service);
    if let Err(error) = served.await {
        tracing::trace!(%peer, %error, "a connection broke off");
    }
}
