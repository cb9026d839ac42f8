//! A thread beside the one that answers: for whatever needs the store.
//!
//! A fleet may have a hundred thousand leases. To read them, sort them and write them down takes a good part of a second,
//! and nobody who asks for something else should wait for that.

use std::io;

use tenure::blocking::spawn_runtime;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Where it is done. Dropped, it ends by itself, soon, and whatever is under way with it.
#[derive(Debug)]
pub(super) struct StoreThread {
    runtime: Handle,
    _end: oneshot::Sender<()>,
}

impl StoreThread {
    pub(super) fn start() -> io::Result<StoreThread> {
        let (end, ended) = oneshot::channel::<()>();
        let (runtime, _detached) = spawn_runtime("tenure-read", move |runtime| {
            // Nothing is ever sent: the other end goes away.
            let _ = runtime.block_on(ended);
            // What hangs in a file system must not keep us here.
            runtime.shutdown_background();
        })?;
        Ok(StoreThread { runtime, _end: end })
    }

    /// Begins it there. Whoever waits for it may go away: it goes on.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        what: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.spawn(what)
    }
}
