//! What one process of the demo shows of itself over HTTP.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::Scope;
use tenure::{Checkpoint, Clock, Election, Result, Store};
use tokio::task::JoinHandle;

use super::ports;
use crate::http::{HttpCandidate, HttpLimits, HttpServer, RunStats};

/// How often a follower looks at how far the leader has counted.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Its status, and who gives it out.
pub(super) struct NodeStatus {
    work: Arc<RunStats>,
    clock: Clock,
    server: Option<HttpServer>,
    look: JoinHandle<()>,
}

impl NodeStatus {
    /// Answers on `port` or the next free one, and says which. Where nothing can be answered the process goes on all
    /// the same.
    pub(super) fn open(
        port: u16,
        election: &Arc<Election>,
        store: &Arc<dyn Store>,
    ) -> (NodeStatus, Result<u16>) {
        let work = Arc::<RunStats>::default();
        let instance = HttpCandidate::new(Arc::clone(election), Arc::clone(&work), None);
        let serve =
            |door| HttpServer::start(door, Arc::clone(&instance), store, HttpLimits::default());
        let server = ports::door(port).and_then(serve);
        let told = server.as_ref().map(|server| server.address().port()).map_err(Clone::clone);
        let look = look(Arc::clone(election), store.detached(), Arc::clone(&work));
        let look = tokio::spawn(look);
        (NodeStatus { work, clock: Clock::boot(), server: server.ok(), look }, told)
    }

    /// A term begins at this count.
    pub(super) fn leads(&self, count: u64) {
        self.work.known(Some(count), None);
    }

    /// This process has counted just now, and that took so long.
    pub(super) fn counted(&self, count: u64, took: Duration) {
        self.work.began(self.clock.minting_micros() / 1_000);
        self.work.known(Some(count), None);
        self.work.ended("ok", took);
    }

    /// Answers no more.
    pub(super) fn close(self) {
        self.look.abort();
        if let Some(server) = self.server {
            server.stop();
        }
    }
}

/// Reads how far the leader has counted, while that is somebody else: the leader itself knows it better.
async fn look(election: Arc<Election>, store: Arc<dyn Store>, work: Arc<RunStats>) {
    let clock = Clock::boot();
    let scope = Scope::name(election.name());
    loop {
        if !election.is_leader()
            && let Ok(mut leases) = store.observe(&scope).await
            && let Some(Ok(lease)) = leases.pop()
            && let Some(count) = lease.checkpoint.as_ref().and_then(count)
            && !election.is_leader()
        {
            work.known(Some(count), None);
        }
        clock.sleep(LOOK_EVERY).await;
    }
}

/// The count that a leader of the demo has left.
pub(super) fn count(checkpoint: &Checkpoint) -> Option<u64> {
    str::from_utf8(checkpoint.as_bytes()).ok()?.parse().ok()
}
