//! Limits a problem that recurs many times a minute to one log line a minute.

use std::cell::Cell;
use std::time::Duration;

use tenure::Moment;

/// How long a lasting problem is not logged again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// Remembers when a recurring problem was last logged.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    logged_at: Cell<Option<Moment>>,
}

impl Throttle {
    /// Whether the problem that occurs at `now` should be logged.
    pub(crate) fn admits(&self, now: Moment) -> bool {
        let admits = self.logged_at.get().is_none_or(|at| now.since(at) >= REPEAT_INTERVAL);
        if admits {
            self.logged_at.set(Some(now));
        }
        admits
    }

    /// The problem is over: the next one is logged at once.
    pub(crate) fn reset(&self) {
        self.logged_at.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_logged_once_and_then_every_minute_until_it_is_over() {
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
        let throttle = Throttle::default();
        let logged: Vec<u64> = (0..150).filter(|second| throttle.admits(at(*second))).collect();
        assert_eq!(logged, [0, 60, 120]);
        throttle.reset();
        assert!(throttle.admits(at(151)));
        assert!(!throttle.admits(at(152)));
    }
}
