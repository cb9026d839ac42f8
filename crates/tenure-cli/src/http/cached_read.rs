//! A cached read of the store that all clients share: however often clients request it, the store is read at most once per
//! period.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use tenure::{Clock, Moment};
use tokio::sync::{Notify, watch};

use super::response::HttpError;
use super::store_thread::StoreThread;

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
    /// Starts the task that reads. A result is valid for `max_age`, and the next read begins no sooner. The task reads on
    /// behalf of all clients, so a client that disconnects causes no second read.
    pub(super) fn start<R>(
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
