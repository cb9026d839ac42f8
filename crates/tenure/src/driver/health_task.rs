//! The health task: runs the application's health check for as long as the driver runs.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::{DriverCommand, HandleInput, MachineId};
use crate::clock::Clock;
use crate::health::{Health, HealthGate, Hysteresis};

/// The reason of a candidate whose check has not returned yet.
pub(crate) const NOT_CHECKED: &str = "not checked yet";

type HealthCheck = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Health> + Send>> + Send + Sync>;

/// A health check and its schedule.
pub(crate) struct HealthTask {
    gate: HealthGate,
    check: HealthCheck,
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
        HealthTask { gate, check: Box::new(check) }
    }

    /// Notifies the machine when the candidate becomes healthy or unhealthy, and when the reason changes. A check that takes
    /// longer than the period has failed. The first failure after a success, or at the start, is logged.
    pub(crate) async fn watch(
        self,
        machine: MachineId,
        clock: Clock,
        commands: mpsc::UnboundedSender<DriverCommand>,
    ) {
        let mut hysteresis = Hysteresis::new(self.gate);
        let (mut failing, mut reported) = (false, None);
        while !commands.is_closed() {
            let next = clock.now() + self.gate.every;
            let health = tokio::select! {
                health = (self.check)() => health,
                () = clock.sleep(self.gate.every) => {
                    Health::Bad(format!("no result within {:?}", self.gate.every))
                }
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
                () = commands.closed() => return,
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
