//! PURE: when the command is asked to stop, and when it is killed.
//!
//! The leader's deadline is the guard's too: it is extended with every renewal, and what has not been extended burns down.
//! So the command of a leader that is frozen ends before anybody else may lead, and nobody has to notice the freeze.

use std::time::Duration;

use tenure::Moment;

/// The time between SIGKILL and the deadline: dying takes a moment, and must be over by then.
pub(crate) fn reserve(stop_within: Duration) -> Duration {
    (stop_within / 2).clamp(Duration::from_millis(20), Duration::from_millis(500))
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// SIGTERM.
    Ask,
    /// SIGKILL.
    Kill,
}

/// Burns down to the end of the command.
#[derive(Clone, Debug)]
pub(crate) struct KillSchedule {
    deadline: Moment,
    stop_within: Duration,
    /// Somebody wants it to stop: then it is killed at this moment, however far the deadline is.
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

    /// The lease was renewed, or refused: then the deadline is [`Moment::NEVER`].
    pub(crate) fn extend(&mut self, deadline: Moment) {
        self.deadline = deadline;
    }

    /// It is to stop, and has until `kill_at`.
    pub(crate) fn stop(&mut self, kill_at: Moment) {
        self.kill_at = Some(self.kill_at.map_or(kill_at, |before| before.min(kill_at)));
    }

    /// It is to end now.
    pub(crate) fn cut(&mut self) {
        self.kill_at = Some(Moment::NEVER);
    }

    /// Whether it was asked to stop, by whomever, or killed.
    pub(crate) fn burnt(&self) -> bool {
        self.done.is_some()
    }

    /// What is due at `now`; each is said once, except that killing is repeated until nothing is left.
    pub(crate) fn due(&mut self, now: Moment) -> Option<Due> {
        let due = if now >= self.kills_at() {
            Due::Kill
        } else if now >= self.asks_at() && self.done.is_none() {
            Due::Ask
        } else {
            return None;
        };
        self.done = Some(due);
        Some(due)
    }

    /// When to ask again what is due.
    pub(crate) fn burns_until(&self) -> Moment {
        match self.done {
            None => self.asks_at(),
            Some(_) => self.kills_at(),
        }
    }

    fn asks_at(&self) -> Moment {
        match self.kill_at {
            Some(_) => Moment::NEVER,
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
    fn what_is_not_extended_is_asked_and_then_killed_before_the_deadline() {
        let mut fuse = KillSchedule::new(at(4_000), STOP);
        assert_eq!(fuse.burns_until(), at(3_200));
        assert_eq!(fuse.due(at(3_199)), None);
        assert_eq!(fuse.due(at(3_200)), Some(Due::Ask));
        assert_eq!(fuse.due(at(3_300)), None, "asked once");
        assert_eq!(fuse.burns_until(), at(3_600));
        assert_eq!(fuse.due(at(3_600)), Some(Due::Kill));
        assert_eq!(fuse.due(at(3_601)), Some(Due::Kill), "killed until nothing is left");
    }

    #[test]
    fn a_renewal_moves_both() {
        let mut fuse = KillSchedule::new(at(4_000), STOP);
        fuse.extend(at(5_300));
        assert_eq!(fuse.due(at(4_400)), None);
        assert_eq!(fuse.due(at(4_500)), Some(Due::Ask));
    }

    #[test]
    fn a_refusal_kills_at_once() {
        let mut fuse = KillSchedule::new(at(4_000), STOP);
        fuse.extend(Moment::NEVER);
        assert_eq!(fuse.due(at(1)), Some(Due::Kill));
    }

    #[test]
    fn an_order_to_stop_gives_its_time_but_never_more_than_the_lease() {
        let mut fuse = KillSchedule::new(at(4_000), STOP);
        fuse.stop(at(11_000));
        assert_eq!(fuse.due(at(1_000)), Some(Due::Ask));
        assert_eq!(fuse.burns_until(), at(3_600));
        fuse.extend(at(14_000));
        assert_eq!(fuse.burns_until(), at(11_000));
        fuse.stop(at(12_000));
        assert_eq!(fuse.burns_until(), at(11_000), "a later order is no reprieve");
        fuse.cut();
        assert_eq!(fuse.due(at(1_001)), Some(Due::Kill));
    }

    #[test]
    fn also_without_any_time_to_stop_it_is_gone_before_the_deadline() {
        let mut fuse = KillSchedule::new(at(4_000), Duration::ZERO);
        assert_eq!(fuse.due(at(3_979)), None);
        assert_eq!(fuse.due(at(3_980)), Some(Due::Kill));
    }

    #[test]
    fn after_a_long_freeze_it_is_killed_and_not_asked() {
        let mut fuse = KillSchedule::new(at(4_000), STOP);
        assert_eq!(fuse.due(at(60_000)), Some(Due::Kill));
    }
}
