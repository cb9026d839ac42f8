//! Asks the application for its health, for as long as the driver runs.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::{DriverCommand, HandleInput, MachineId};
use crate::clock::Clock;
use crate::health::{Health, HealthGate, Hysteresis};

/// The reason of a candidate whose check has not returned yet.
pub(crate) const NOT_CHECKED: &str = "not checked yet";

type HealthCheck = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Health> + Send>> + Send + Sync>;

/// What is asked, and how often.
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

    /// Tells the machine at this place when the candidate becomes healthy or unhealthy, and when the reason changes. A
    /// check that takes longer than the period has failed. The first failure after a success, or at the start, is logged.
    pub(crate) async fn watch(
        self,
        place: MachineId,
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
            let said = match health {
                Health::Good if changed.is_some() => Some(Ok(())),
                Health::Bad(reason) if !hysteresis.is_healthy() => Some(Err(Arc::from(reason))),
                _ => None,
            };
            if said.is_some() && said != reported {
                reported.clone_from(&said);
                let said = said.map(|said| DriverCommand::Tell(place, HandleInput::Health(said)));
                if said.is_some_and(|said| commands.send(said).is_err()) {
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
