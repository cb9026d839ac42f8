//! The health task: runs the application's health check on the application's runtime, timed by the driver's thread.

use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::{DriverCommand, HandleInput, MachineId};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::health::{Health, HealthGate, Hysteresis};

/// The reason of a candidate whose check has not returned yet.
pub(crate) const NOT_CHECKED: &str = "not checked yet";

type HealthCheck = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Health> + Send>> + Send + Sync>;

/// A health check and its schedule.
pub(crate) struct HealthTask {
    gate: HealthGate,
    check: HealthCheck,
}

/// A health task and the runtime on which the check runs.
pub(crate) struct PlacedHealthTask {
    task: HealthTask,
    application: Handle,
}

impl HealthTask {
    pub(crate) fn new<F, R>(gate: HealthGate, check: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output: Into<Health>> + Send + 'static,
    {
        let check = move || -> Pin<Box<dyn Future<Output = Health> + Send>> {
            let result = check();
            Box::pin(async move { result.await.into() })
        };
        HealthTask { gate, check: Arc::new(check) }
    }

    /// Runs the check on the runtime that calls this.
    ///
    /// # Errors
    /// Invalid outside a runtime.
    pub(crate) fn on_this_runtime(self) -> Result<PlacedHealthTask> {
        let application = Handle::try_current().map_err(|_| {
            Error::invalid("a health check needs a tokio runtime: start the candidate inside one")
        })?;
        Ok(PlacedHealthTask { task: self, application })
    }
}

impl PlacedHealthTask {
    /// Notifies the machine when the candidate becomes healthy or unhealthy, and when the reason changes. A check that takes
    /// longer than the period has failed, and so has one that the application's runtime does not run. The first failure after a
    /// success, or at the start, is logged.
    ///
    /// Runs on the driver's runtime, until `ended` returns.
    pub(crate) async fn watch(
        self,
        machine: MachineId,
        clock: Clock,
        commands: mpsc::UnboundedSender<DriverCommand>,
        ended: impl Future<Output = ()> + Send + 'static,
    ) {
        let gate = self.task.gate;
        let mut hysteresis = Hysteresis::new(gate);
        let (mut failing, mut reported) = (false, None);
        let mut ended = std::pin::pin!(ended);
        loop {
            let next = clock.now() + gate.every;
            let health = tokio::select! {
                health = self.check(&clock) => health,
                () = &mut ended => return,
            };
            log(&health, &mut failing);
            let changed = hysteresis.take(health == Health::Good);
            let result = match health {
                Health::Good if changed.is_some() => Some(Ok(())),
                Health::Bad(reason) if !hysteresis.is_healthy() => Some(Err(Arc::from(reason))),
                _ => None,
            };
            if result.is_some() && result != reported {
                reported.clone_from(&result);
                let input = result.map(HandleInput::Health);
                let command = input.map(|input| DriverCommand::Input(machine, input));
                if command.is_some_and(|command| commands.send(command).is_err()) {
                    return;
                }
            }
            tokio::select! {
                () = clock.sleep_until(next) => {}
                () = &mut ended => return,
            }
        }
    }

    /// One check.
    async fn check(&self, clock: &Clock) -> Health {
        let every = self.task.gate.every;
        let check = self.task.check.clone();
        // The closure itself runs there too: it may take long before it returns a future.
        let mut check = self.application.spawn(async move { check().await });
        tokio::select! {
            result = &mut check => match result {
                Ok(health) => health,
                Err(error) if error.is_panic() => Health::Bad("the health check panicked".to_owned()),
                Err(_) => Health::Bad("the runtime of the health check has ended".to_owned()),
            },
            () = clock.sleep(every) => {
                check.abort();
                Health::Bad(format!("no result within {every:?}"))
            }
        }
    }
}

/// Logs the first failure and the first success after it, so that a check that keeps failing does not fill the log.
fn log(health: &Health, failing: &mut bool) {
    match health {
        Health::Bad(reason) if !*failing => tracing::warn!("health check failed: {reason}"),
        Health::Good if *failing => tracing::info!("health check succeeded again"),
        _ => {}
    }
    *failing = *health != Health::Good;
}
