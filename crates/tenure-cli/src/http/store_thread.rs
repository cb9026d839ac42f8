//! A separate thread for HTTP requests that need the store.
//!
//! A fleet may have a hundred thousand leases. Reading, sorting and encoding them takes a good part of a second, and other
//! requests must not wait for that.

use std::io;

use tenure::blocking::spawn_runtime;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A handle on the thread. After it is dropped the thread ends soon, and cancels what is in flight.
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
