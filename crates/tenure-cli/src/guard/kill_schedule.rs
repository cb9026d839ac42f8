//! PURE: when a command gets SIGTERM, and when it gets SIGKILL.
//!
//! The guard has the leader's deadline: every renewal extends it, and a deadline that is not extended ends the command. So the
//! command of a frozen leader ends before another candidate may lead, and no process has to detect the freeze.

use std::time::Duration;

use tenure::Moment;

/// The time between SIGKILL and the deadline: dying takes a moment, and must be complete at the deadline.
pub(crate) fn reserve(stop_within: Duration) -> Duration {
    (stop_within / 2).clamp(Duration::from_millis(20), Duration::from_millis(500))
}

/// The signal that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// SIGTERM, so that the command stops by itself.
    Terminate,
    /// SIGKILL, to the whole process tree.
    Kill,
}

/// The times at which one command is stopped and killed.
#[derive(Clone, Debug)]
pub(crate) struct KillSchedule {
    deadline: Moment,
    stop_within: Duration,
    /// Set by an order to stop: the command is killed at this moment, however far the deadline is.
    kill_at: Option<Moment>,
    done: Option<Due>,
}

impl KillSchedule {
    pub(crate) fn new(deadline: Moment, stop_within: Duration) -> KillSchedule {
        KillSchedule { deadline, stop_within, kill_at: None, done: None }
    }

    pub(crate) fn deadline(&self) -> Moment {
        self.deadline
    }

    pub(crate) fn stop_within(&self) -> Duration {
        self.stop_within
    }

    /// The lease was renewed, or the renewal was refused: then the deadline is [`Moment::PAST`].
    pub(crate) fn extend(&mut self, deadline: Moment) {
        self.deadline = deadline;
    }

    /// Stops the command now, and kills it at `kill_at`.
    pub(crate) fn stop(&mut self, kill_at: Moment) {
        self.kill_at = Some(self.kill_at.map_or(kill_at, |before| before.min(kill_at)));
    }

    /// Kills the command now.
    pub(crate) fn kill_now(&mut self) {
        self.kill_at = Some(Moment::PAST);
    }

    /// Whether a signal was due: by order or by deadline, SIGTERM or SIGKILL.
    pub(crate) fn is_stopping(&self) -> bool {
        self.done.is_some()
    }

    /// The signal that is due at `now`. SIGTERM is returned once; SIGKILL is repeated until the caller stops calling.
    pub(crate) fn due(&mut self, now: Moment) -> Option<Due> {
        let due = if now >= self.kills_at() {
            Due::Kill
        } else if now >= self.terminates_at() && self.done.is_none() {
            Due::Terminate
        } else {
            return None;
        };
        self.done = Some(due);
        Some(due)
    }

    /// When to call [`KillSchedule::due`] again.
    pub(crate) fn next_due_at(&self) -> Moment {
        match self.done {
            None => self.terminates_at(),
            Some(_) => self.kills_at(),
        }
    }

    fn terminates_at(&self) -> Moment {
        match self.kill_at {
            Some(_) => Moment::PAST,
            None => self.deadline.before(self.stop_within).min(self.kills_at()),
        }
    }

    pub(crate) fn kills_at(&self) -> Moment {
        let last = self.deadline.before(reserve(self.stop_within));
        self.kill_at.map_or(last, |at| at.min(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOP: Duration = Duration::from_millis(800);

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_deadline_that_is_not_extended_terminates_and_then_kills() {
        let mut schedule = KillSchedule::new(at(4_000), STOP);
        assert_eq!(schedule.next_due_at(), at(3_200));
        assert_eq!(schedule.due(at(3_199)), None);
        assert_eq!(schedule.due(at(3_200)), Some(Due::Terminate));
        assert_eq!(schedule.due(at(3_300)), None, "asked once");
        assert_eq!(schedule.next_due_at(), at(3_600));
        assert_eq!(schedule.due(at(3_600)), Some(Due::Kill));
        assert_eq!(schedule.due(at(3_601)), Some(Due::Kill), "killed until nothing is left");
    }

    #[test]
    fn a_renewal_postpones_both_signals() {
        let mut schedule = KillSchedule::new(at(4_000), STOP);
        schedule.extend(at(5_300));
        assert_eq!(schedule.due(at(4_400)), None);
        assert_eq!(schedule.due(at(4_500)), Some(Due::Terminate));
    }

    #[test]
    fn a_refusal_kills_at_once() {
        let mut schedule = KillSchedule::new(at(4_000), STOP);
        schedule.extend(Moment::PAST);
        assert_eq!(schedule.due(at(1)), Some(Due::Kill));
    }

    #[test]
    fn an_order_to_stop_is_bounded_by_the_deadline() {
        let mut schedule = KillSchedule::new(at(4_000), STOP);
        schedule.stop(at(11_000));
        assert_eq!(schedule.due(at(1_000)), Some(Due::Terminate));
        assert_eq!(schedule.next_due_at(), at(3_600));
        schedule.extend(at(14_000));
        assert_eq!(schedule.next_due_at(), at(11_000));
        schedule.stop(at(12_000));
        assert_eq!(schedule.next_due_at(), at(11_000), "a later order is no reprieve");
        schedule.kill_now();
        assert_eq!(schedule.due(at(1_001)), Some(Due::Kill));
    }

    #[test]
    fn with_no_time_to_stop_the_kill_still_precedes_the_deadline() {
        let mut schedule = KillSchedule::new(at(4_000), Duration::ZERO);
        assert_eq!(schedule.due(at(3_979)), None);
        assert_eq!(schedule.due(at(3_980)), Some(Due::Kill));
    }

    #[test]
    fn after_a_long_freeze_the_command_is_killed_at_once() {
        let mut schedule = KillSchedule::new(at(4_000), STOP);
        assert_eq!(schedule.due(at(60_000)), Some(Due::Kill));
    }
}
