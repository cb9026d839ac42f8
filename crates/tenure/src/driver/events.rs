//! [`DriverEvents`]: the callbacks of a driver.

use std::time::Duration;

use super::MachineId;
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::health::HealthResult;
use crate::lease::{Answer, Lease, StartupWait, Token};
use crate::machine::{Phase, TermEnd, TermStart};

/// The callbacks of a driver, which inform the application. The driver calls them on its own thread, so they must not block.
pub(crate) trait DriverEvents: Send + Sync {
    fn lead(&self, id: MachineId, lead: TermStart);
    /// The lease was granted in this term. The candidate does not lead before the wait is over.
    fn starting(&self, id: MachineId, token: Token, wait: StartupWait);
    fn extend(&self, id: MachineId, deadline: Moment);
    /// Returns whether there is no work that has to end first.
    fn end(&self, id: MachineId, ending: TermEnd) -> bool;
    /// Another candidate holds the lease, or none does; and whether the holder leads.
    fn holder_changed(&self, id: MachineId, holder: Option<String>, leads: bool);
    fn unreachable(&self, id: MachineId, error: Error);
    /// The store answers again.
    fn store_back(&self, id: MachineId);
    /// The store has released the lease of this term.
    fn released(&self, id: MachineId, token: Token);
    /// A second living candidate with the same id holds the lease.
    fn same_id(&self, id: MachineId);
    fn warn(&self, id: MachineId, warning: &str);
    /// The driver has removed the machine, because it has stopped, was abandoned, or the driver has ended. Nothing is renewed
    /// for it any more.
    fn ended(&self, _id: MachineId) {}

    // The following callbacks are for status and metrics only: the election does not depend on them.

    /// The store has answered without an error.
    fn answered(&self, _id: MachineId) {}
    /// The phase of the machine after every step, and whether the candidate is drained.
    fn stepped(&self, _id: MachineId, _phase: Phase, _drained: bool) {}
    /// The phase of the machine has changed.
    fn phase_changed(&self, _id: MachineId, _phase: Phase) {}
    /// The store has answered with this lease.
    fn observed(&self, _id: MachineId, _lease: &Lease) {}
    /// A renewal has ended with this answer, after this time.
    fn renewal(&self, _id: MachineId, _took: Duration, _answer: &Result<Answer>) {}
    /// The candidate became healthy or unhealthy.
    fn health_changed(&self, _id: MachineId, _healthy: bool) {}
    /// The health check gave this result.
    fn checked(&self, _id: MachineId, _result: &HealthResult) {}
}
