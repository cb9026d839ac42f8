//! PURE: the timers of all machines of a driver, for one machine or a hundred thousand.
//!
//! Machines that ran together are due together, so many machines usually share one moment.

use std::collections::BTreeMap;

use super::MachineId;
use crate::clock::Moment;

/// Machines by the moment at which they wake. A machine whose timer has changed is woken at the old moment too, and finds
/// nothing to do.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: BTreeMap<Moment, Vec<MachineId>>,
}

impl Timers {
    pub(super) fn set(&mut self, at: Moment, machine: MachineId) {
        self.due.entry(at).or_default().push(machine);
    }

    /// When the next machine is due.
    pub(super) fn next(&self) -> Option<Moment> {
        self.due.first_key_value().map(|(at, _)| *at)
    }

    /// Removes and returns the machines of the earliest moment that is due.
    pub(super) fn take_due(&mut self, now: Moment) -> Option<Vec<MachineId>> {
        let entry = self.due.first_entry().filter(|entry| *entry.key() <= now)?;
        Some(entry.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    #[test]
    fn only_due_machines_are_taken_and_in_order() {
        let mut timers = Timers::default();
        for (nanos, machine) in [(30, 3), (10, 1), (20, 2), (10, 4)] {
            timers.set(at(nanos), machine);
        }
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.take_due(at(20)), Some(vec![1, 4]));
        assert_eq!(timers.take_due(at(20)), Some(vec![2]));
        assert_eq!(timers.take_due(at(20)), None);
        assert_eq!(timers.next(), Some(at(30)));
    }
}
