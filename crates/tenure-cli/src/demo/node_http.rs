//! The HTTP status of one process of the demo.

use std::sync::Arc;
use std::time::Duration;

use tenure::{Checkpoint, Clock, Election, Result, Store, StoreExt as _};
use tokio::task::JoinHandle;

use super::ports;
use crate::http::{HttpCandidate, HttpLimits, HttpServer, RunStats};

/// How often a follower reads the leader's count.
const OBSERVE_INTERVAL: Duration = Duration::from_millis(500);

/// The status of a process, and the server that publishes it.
pub(super) struct NodeStatus {
    work: Arc<RunStats>,
    clock: Clock,
    server: Option<HttpServer>,
    observer: JoinHandle<()>,
}

impl NodeStatus {
    /// Serves HTTP on `port` or the next free port, and returns that port. Without a server the process continues all the
    /// same.
    pub(super) fn open(
        port: u16,
        election: &Arc<Election>,
        store: &Arc<dyn Store>,
    ) -> (NodeStatus, Result<u16>) {
        let work = Arc::<RunStats>::default();
        let instance = HttpCandidate::new(Arc::clone(election), Arc::clone(&work), None);
        let serve = |listener| {
            HttpServer::start(listener, Arc::clone(&instance), store, HttpLimits::default())
        };
        let server = ports::listen_from(port).and_then(serve);
        let port = server.as_ref().map(|server| server.address().port()).map_err(Clone::clone);
        let observer = observe_count(Arc::clone(election), store.detached(), Arc::clone(&work));
        let observer = tokio::spawn(observer);
        (NodeStatus { work, clock: Clock::boot(), server: server.ok(), observer }, port)
    }

    /// Records that a term starts at this count.
    pub(super) fn leads(&self, count: u64) {
        self.work.known(Some(count), None);
    }

    /// Records a count of this process, and how long it took.
    pub(super) fn counted(&self, count: u64, took: Duration) {
        self.work.began(self.clock.minting_micros() / 1_000);
        self.work.known(Some(count), None);
        self.work.ended("ok", took);
    }

    /// Stops the server.
    pub(super) fn close(self) {
        self.observer.abort();
        if let Some(server) = self.server {
            server.stop();
        }
    }
}

/// Reads the leader's count from the store while another process leads: the leader itself knows a newer count.
async fn observe_count(election: Arc<Election>, store: Arc<dyn Store>, work: Arc<RunStats>) {
    let clock = Clock::boot();
    loop {
        if !election.is_leader()
            && let Ok(Some(lease)) = store.observe_one(election.name()).await
            && let Some(count) = lease.checkpoint.as_ref().and_then(count)
            && !election.is_leader()
        {
            work.known(Some(count), None);
        }
        clock.sleep(OBSERVE_INTERVAL).await;
    }
}

/// The count in a leader's checkpoint.
pub(super) fn count(checkpoint: &Checkpoint) -> Option<u64> {
    str::from_utf8(checkpoint.as_bytes()).ok()?.parse().ok()
}
