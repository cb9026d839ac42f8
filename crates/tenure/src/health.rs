//! PURE: the health gate of a candidate, with hysteresis, so that a single failed check changes nothing.

use std::sync::Arc;
use std::time::Duration;

/// How often health is checked, and how many consecutive failures or successes change the health of the candidate.
///
/// ```
/// use std::time::Duration;
/// use tenure::HealthGate;
///
/// let mut gate = HealthGate::default();
/// gate.fails = 5;
/// assert_eq!(gate, HealthGate::new(Duration::from_secs(2), 5, 2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthGate {
    /// The interval between checks, and the timeout of a check; 2 s.
    pub every: Duration,
    /// Consecutive failures before this candidate is unhealthy; 3.
    pub fails: u32,
    /// Consecutive successes before this candidate is healthy again; 2.
    pub passes: u32,
}

impl HealthGate {
    /// Creates a gate: a check `every` so often, `fails` consecutive failures to become unhealthy, `passes` consecutive successes
    /// to become healthy again.
    pub const fn new(every: Duration, fails: u32, passes: u32) -> Self {
        HealthGate { every, fails, passes }
    }
}

impl Default for HealthGate {
    fn default() -> Self {
        HealthGate::new(Duration::from_secs(2), 3, 2)
    }
}

/// The result of one health check. A failure can have a reason.
///
/// ```
/// use tenure::Health;
///
/// assert_eq!(Health::from(true), Health::Good);
/// assert_eq!(Health::from(Err("exit 1".to_owned())), Health::Bad("exit 1".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The check succeeded.
    Good,
    /// The check failed, with this reason.
    Bad(String),
}

impl From<bool> for Health {
    fn from(good: bool) -> Health {
        if good { Health::Good } else { Health::Bad("it failed".to_owned()) }
    }
}

impl From<Result<(), String>> for Health {
    fn from(result: Result<(), String>) -> Health {
        match result {
            Ok(()) => Health::Good,
            Err(reason) => Health::Bad(reason),
        }
    }
}

/// The result of a health check as the machine gets it: a failure has a reason.
pub(crate) type HealthResult = std::result::Result<(), Arc<str>>;

/// Counts check results. A candidate starts unhealthy, and the first result counts at once: no candidate leads before its first
/// check.
#[derive(Debug)]
pub(crate) struct Hysteresis {
    gate: HealthGate,
    checked: bool,
    healthy: bool,
    /// Consecutive results that differ from the current health.
    opposite: u32,
}

impl Hysteresis {
    pub(crate) fn new(gate: HealthGate) -> Self {
        Hysteresis { gate, checked: false, healthy: false, opposite: 0 }
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy
    }

    /// Processes one result. Returns the new health if it changed.
    pub(crate) fn take(&mut self, good: bool) -> Option<bool> {
        if good == self.healthy {
            self.checked = true;
            self.opposite = 0;
            return None;
        }
        self.opposite += 1;
        if !std::mem::replace(&mut self.checked, true) {
            (self.healthy, self.opposite) = (good, 0);
            return Some(good);
        }
        let needed = if self.healthy { self.gate.fails } else { self.gate.passes };
        if self.opposite < needed.max(1) {
            return None;
        }
        self.healthy = good;
        self.opposite = 0;
        Some(good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_result_counts_at_once() {
        let mut gate = Hysteresis::new(HealthGate::default());
        let answers = [false, true, false, true, true];
        let changes: Vec<_> = answers.iter().map(|good| gate.take(*good)).collect();
        assert_eq!(changes, [None, None, None, None, Some(true)]);
    }

    #[test]
    fn three_failures_or_two_successes_in_a_row_change_the_health() {
        let mut gate = Hysteresis::new(HealthGate::default());
        let answers =
            [true, false, false, true, false, false, false, false, true, false, true, true];
        let changes: Vec<_> = answers.iter().map(|good| gate.take(*good)).collect();
        let mut expected = [None; 12];
        expected[0] = Some(true);
        expected[6] = Some(false);
        expected[11] = Some(true);
        assert_eq!(changes, expected);
    }
}
