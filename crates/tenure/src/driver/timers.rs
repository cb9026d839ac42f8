//! PURE: who is to be woken when. One wheel for all the places of a driver, whether that is one or a hundred thousand.
//!
//! Places that were dealt with together are due together, so a moment is mostly shared by many.

use std::collections::BTreeMap;

use super::MachineId;
use crate::clock::Moment;

/// Places by the moment they want to be woken at. One that has changed its mind is woken all the same, and finds nothing to do.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: BTreeMap<Moment, Vec<MachineId>>,
}

impl Timers {
    pub(super) fn set(&mut self, at: Moment, place: MachineId) {
        self.due.entry(at).or_default().push(place);
    }

    /// When somebody is due next.
    pub(super) fn next(&self) -> Option<Moment> {
        self.due.first_key_value().map(|(at, _)| *at)
    }

    /// Takes one lot that is due.
    pub(super) fn turn(&mut self, now: Moment) -> Option<Vec<MachineId>> {
        let lot = self.due.first_entry().filter(|lot| *lot.key() <= now)?;
        Some(lot.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    #[test]
    fn those_that_are_due_come_in_order_and_no_others() {
        let mut wheel = Timers::default();
        for (nanos, place) in [(30, 3), (10, 1), (20, 2), (10, 4)] {
            wheel.set(at(nanos), place);
        }
        assert_eq!(wheel.next(), Some(at(10)));
        assert_eq!(wheel.turn(at(20)), Some(vec![1, 4]));
        assert_eq!(wheel.turn(at(20)), Some(vec![2]));
        assert_eq!(wheel.turn(at(20)), None);
        assert_eq!(wheel.next(), Some(at(30)));
    }
}
