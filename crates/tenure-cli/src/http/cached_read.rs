//! `/leases` and `/fleet`: reads of the store, each shared by all clients. However often clients request one, the store is
//! read at most once per period.
//!
//! The reads run on a separate thread. A fleet may have a hundred thousand leases: reading, sorting and encoding them takes a
//! good part of a second, and other requests must not wait for that.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Bytes;
use tenure::fleet::observe_fleet;
use tenure::presence::nodes;
use tenure::supervise::spawn_runtime;
use tenure::{Clock, Lease, Moment, Store};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;

use super::participant::HttpMember;
use super::response::HttpError;
use crate::fleet::FleetJson;
use crate::selector::Selector;
use crate::status::LeaseJson;
use crate::store_access;

/// How long a read of the leases is valid: it is read at most four times per second.
const LEASES_MAX_AGE: Duration = Duration::from_millis(250);
/// How long a read of the fleet is valid. A read is expensive for the store, because it observes every shard.
const FLEET_MAX_AGE: Duration = Duration::from_secs(2);
/// A result that no client has requested for this long is dropped, because it may be large.
const IDLE_CACHE_LIFETIME: Duration = Duration::from_secs(10);

/// The latest result of one kind of read.
#[derive(Debug)]
pub(super) struct CachedRead {
    clock: Clock,
    max_age: Duration,
    read_requests: Arc<Notify>,
    latest: watch::Receiver<Option<ReadResult>>,
}

#[derive(Clone, Debug)]
struct ReadResult {
    at: Moment,
    found: Result<Bytes, HttpError>,
}

impl CachedRead {
    /// Starts a read of all leases, for `/leases`.
    pub(super) fn of_leases(
        store_thread: &StoreThread,
        clock: &Clock,
        store: Arc<dyn Store>,
        timeout: Duration,
    ) -> CachedRead {
        CachedRead::start(store_thread, clock, LEASES_MAX_AGE, move || {
            let store = Arc::clone(&store);
            async move { read_leases(&*store, timeout).await }
        })
    }

    /// Starts a read of the member's fleet, for `/fleet`. It holds a weak reference, so that dropping the member does not wait
    /// for a read.
    pub(super) fn of_fleet(
        store_thread: &StoreThread,
        clock: &Clock,
        store: Arc<dyn Store>,
        timeout: Duration,
        member: Weak<HttpMember>,
    ) -> CachedRead {
        CachedRead::start(store_thread, clock, FLEET_MAX_AGE, move || {
            let (member, store) = (member.clone(), Arc::clone(&store));
            async move { read_fleet(&member, &*store, timeout).await }
        })
    }

    /// Starts the task that reads. A result is valid for `max_age`, and the next read begins no sooner. The task reads on
    /// behalf of all clients, so a client that disconnects causes no second read.
    fn start<R>(
        store_thread: &StoreThread,
        clock: &Clock,
        max_age: Duration,
        read: impl Fn() -> R + Send + 'static,
    ) -> CachedRead
    where
        R: Future<Output = Result<Bytes, HttpError>> + Send,
    {
        let (latest, results) = watch::channel(None);
        let read_requests = Arc::new(Notify::new());
        let (requested, task_clock) = (Arc::clone(&read_requests), clock.clone());
        store_thread.spawn(async move {
            loop {
                let kept = latest.borrow().is_some();
                tokio::select! {
                    () = requested.notified() => {}
                    () = task_clock.sleep(IDLE_CACHE_LIFETIME), if kept => {
                        latest.send_replace(None);
                        continue;
                    }
                }
                let next = task_clock.now() + max_age;
                let found = read().await;
                // The client may be gone, and this instance may be ending.
                let _ = latest.send(Some(ReadResult { at: task_clock.now(), found }));
                task_clock.sleep_until(next).await;
            }
        });
        CachedRead { clock: clock.clone(), max_age, read_requests, latest: results }
    }

    pub(super) async fn get(&self) -> Result<Bytes, HttpError> {
        let mut latest = self.latest.clone();
        let oldest = self.clock.now().before(self.max_age);
        loop {
            if let Some(read) = &*latest.borrow_and_update()
                && read.at >= oldest
            {
                return read.found.clone();
            }
            self.read_requests.notify_one();
            if latest.changed().await.is_err() {
                // The reading task ends only while this instance shuts down.
                return Err(HttpError::busy("this instance is about to end"));
            }
        }
    }
}

/// Reads all leases of the store.
async fn read_leases(store: &dyn Store, timeout: Duration) -> Result<Bytes, HttpError> {
    let all = Selector::all();
    let scope = all.scope();
    let found = store_access::with_timeout(&store.url(), timeout, store.observe(&scope)).await;
    let found = found.map_err(|error| HttpError::of(&error))?;
    // Data that is not a lease is left out; `tenure doctor` reports it.
    let mut leases: Vec<Lease> = found.into_iter().filter_map(Result::ok).collect();
    let candidates = store.limits().presence.then(|| nodes(&leases));
    leases.retain(|lease| all.shows(&lease.name));
    leases.sort_by(|a, b| a.name.cmp(&b.name));
    let row = |lease| LeaseJson::from(lease).with_candidates(candidates.as_deref());
    let rows: Vec<LeaseJson> = leases.iter().map(row).collect();
    let body = serde_json::to_vec(&rows);
    body.map(Bytes::from).map_err(|_| HttpError::busy("the leases cannot be written as JSON"))
}

/// Reads the members and the owners of all shards: from the store, which knows the shards of every member and not only of this
/// one, plus the shards that the source names and that no member has ever owned.
async fn read_fleet(
    member: &Weak<HttpMember>,
    store: &dyn Store,
    timeout: Duration,
) -> Result<Bytes, HttpError> {
    let gone = || HttpError::busy("this instance is about to end");
    let (name, source) =
        member.upgrade().map(|member| member.name_and_shards()).ok_or_else(gone)?;
    let known = source.shards().iter().cloned();
    let found =
        store_access::with_timeout(&store.url(), timeout, observe_fleet(store, &name, known)).await;
    let mut found = found.map_err(|error| HttpError::of(&error))?;
    for shard in source.paused() {
        found.shards.entry(shard.clone()).or_default().paused = true;
    }
    let body = serde_json::to_vec(&FleetJson::new(&name, &found));
    body.map(Bytes::from).map_err(|_| HttpError::busy("the fleet cannot be written as JSON"))
}

/// The thread for HTTP requests that need the store. After the handle is dropped, the thread ends soon and
/// cancels what is in flight.
#[derive(Debug)]
pub(super) struct StoreThread {
    runtime: Handle,
    _end: oneshot::Sender<()>,
}

impl StoreThread {
    pub(super) fn start() -> io::Result<StoreThread> {
        let (end, ended) = oneshot::channel::<()>();
        let (runtime, _detached) = spawn_runtime("tenure-read", move |runtime| {
            // Nothing is ever sent: `ended` resolves when the sender is dropped.
            let _ = runtime.block_on(ended);
            // A call that hangs in a file system must not delay the end of the thread.
            runtime.shutdown_background();
        })?;
        Ok(StoreThread { runtime, _end: end })
    }

    /// Runs `task` on the thread. It continues if the caller stops waiting for it.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.spawn(task)
    }
}
