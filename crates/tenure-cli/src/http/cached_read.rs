//! One reading of the store for everybody who asks, and no more often than it is worth, whoever asks how often.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use tenure::{Clock, Moment};
use tokio::sync::{Notify, watch};

use super::response::HttpError;
use super::store_thread::StoreThread;

/// What nobody has asked for again after so long is let go: it may be large.
const KEPT: Duration = Duration::from_secs(10);

/// What was read last, for those who ask now.
#[derive(Debug)]
pub(super) struct CachedRead {
    clock: Clock,
    fresh: Duration,
    wanted: Arc<Notify>,
    latest: watch::Receiver<Option<ReadFn>>,
}

#[derive(Clone, Debug)]
struct ReadFn {
    at: Moment,
    found: Result<Bytes, HttpError>,
}

impl CachedRead {
    /// A reading is good for `fresh`, and the next begins no sooner. A task of its own reads: a client that goes away in the
    /// middle makes nobody read again.
    pub(super) fn start<R>(
        aside: &StoreThread,
        clock: &Clock,
        fresh: Duration,
        read: impl Fn() -> R + Send + 'static,
    ) -> CachedRead
    where
        R: Future<Output = Result<Bytes, HttpError>> + Send,
    {
        let (latest, readings) = watch::channel(None);
        let wanted = Arc::new(Notify::new());
        let (asked, reading) = (Arc::clone(&wanted), clock.clone());
        aside.spawn(async move {
            loop {
                let kept = latest.borrow().is_some();
                tokio::select! {
                    () = asked.notified() => {}
                    () = reading.sleep(KEPT), if kept => {
                        latest.send_replace(None);
                        continue;
                    }
                }
                let next = reading.now() + fresh;
                let found = read().await;
                // The one who asks may be gone, and so may we soon.
                let _ = latest.send(Some(ReadFn { at: reading.now(), found }));
                reading.sleep_until(next).await;
            }
        });
        CachedRead { clock: clock.clone(), fresh, wanted, latest: readings }
    }

    pub(super) async fn get(&self) -> Result<Bytes, HttpError> {
        let mut latest = self.latest.clone();
        let oldest = self.clock.now().before(self.fresh);
        loop {
            if let Some(read) = &*latest.borrow_and_update()
                && read.at >= oldest
            {
                return read.found.clone();
            }
            self.wanted.notify_one();
            if latest.changed().await.is_err() {
                // Only while everything comes down.
                return Err(HttpError::busy("this instance is about to end"));
            }
        }
    }
}
