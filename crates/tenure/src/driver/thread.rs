//! Starts a driver on a thread of its own.

use tokio::runtime::Handle;

use super::Driver;
use crate::blocking::spawn_runtime;
use crate::error::{Error, Result};

/// Starts the driver on its own thread and runtime, so that a busy application cannot starve it. `ended` is called when the
/// driver has ended, even if it panics. Returns the handle of that runtime.
pub(crate) fn spawn(
    driver: impl FnOnce() -> Driver + Send + 'static,
    ended: impl FnOnce() + Send + 'static,
) -> Result<Handle> {
    let ended = CallOnDrop(Some(ended));
    let spawned = spawn_runtime("tenure", move |runtime| {
        let _ended = ended;
        runtime.block_on(driver().run());
    });
    match spawned {
        Ok((runtime, _detached)) => Ok(runtime),
        Err(error) => {
            let message = format!("cannot start a thread to renew on: {error}");
            Err(Error::unavailable(message).caused_by(error))
        }
    }
}

struct CallOnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for CallOnDrop<F> {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call();
        }
    }
}
