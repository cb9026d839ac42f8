//! Starts a driver on a thread of its own.

use std::sync::Arc;

use super::{Driver, DriverEvents};
use crate::blocking::spawn_runtime;
use crate::error::{Error, Result};
use crate::store::Scope;

/// Starts the driver on its own thread and runtime, so that a busy application cannot starve it.
pub(crate) fn spawn(
    events: Arc<dyn DriverEvents>,
    scope: Scope,
    driver: impl FnOnce() -> Driver + Send + 'static,
) -> Result<()> {
    let over = EndedOnDrop(events);
    let spawned = spawn_runtime("tenure", move |runtime| {
        let _over = over;
        runtime.block_on(driver().run(scope));
    });
    match spawned {
        Ok(_detached) => Ok(()),
        Err(error) => {
            let message = format!("cannot start a thread to renew on: {error}");
            Err(Error::unavailable(message).caused_by(error))
        }
    }
}

/// Reports the end of the driver even if it panics: a term without renewals must not seem alive.
struct EndedOnDrop(Arc<dyn DriverEvents>);

impl Drop for EndedOnDrop {
    fn drop(&mut self) {
        self.0.driver_ended();
    }
}
