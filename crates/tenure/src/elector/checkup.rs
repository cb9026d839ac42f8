//! Asks the application for its health, for as long as the driver runs.

use std::pin::Pin;

use tokio::sync::mpsc;

use super::{Command, PlaceId, Said};
use crate::clock::Clock;
use crate::health::{HealthGate, Hysteresis};

/// What is asked, and how often.
pub(crate) struct Checkup {
    gate: HealthGate,
    check: Box<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>,
}

impl Checkup {
    pub(crate) fn new<F, R>(gate: HealthGate, check: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = bool> + Send + 'static,
    {
        Checkup { gate, check: Box::new(move || Box::pin(check())) }
    }

    /// Tells the machine at this place whenever the answer has come to mean something else. An answer that takes longer
    /// than the period is a bad one.
    pub(crate) async fn watch(
        self,
        place: PlaceId,
        clock: Clock,
        commands: mpsc::UnboundedSender<Command>,
    ) {
        let mut hysteresis = Hysteresis::new(self.gate);
        while !commands.is_closed() {
            let next = clock.now() + self.gate.every;
            let good = tokio::select! {
                good = (self.check)() => good,
                () = clock.sleep(self.gate.every) => false,
            };
            if let Some(fit) = hysteresis.take(good)
                && commands.send(Command::Tell(place, Said::Health(fit))).is_err()
            {
                return;
            }
            tokio::select! {
                () = clock.sleep_until(next) => {}
                () = commands.closed() => return,
            }
        }
    }
}
