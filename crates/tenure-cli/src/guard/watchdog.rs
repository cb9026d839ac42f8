//! PURE: the leader's watchdog: whether the guard still responds.
//!
//! The leader numbers every deadline that it sends, and the guard acknowledges the number. A frozen guard does not, and nothing
//! else shows that it is frozen: it has nothing to do until a deadline passes. It counts as dead when it has not acknowledged a
//! deadline by the time at which it would have to stop the command under that very deadline. So on an overloaded machine the
//! guard may be late by nearly the whole term of a renewal; and a leader that lives still has the time in which a command is
//! stopped to kill the guard and end the command itself.

use std::collections::VecDeque;
use std::time::Duration;

use tenure::Moment;

/// The least time that a guard has to act on an order, however late the order is.
pub(crate) const GUARD_REACTION_TIME: Duration = Duration::from_millis(50);

/// The deadlines that were sent to one guard and not acknowledged yet.
#[derive(Debug)]
pub(crate) struct Watchdog {
    stop_within: Duration,
    /// The number of the last deadline that was sent.
    sent: u64,
    /// The number of each deadline, and when the guard would have to stop the command; in the order sent.
    pending: VecDeque<(u64, Moment)>,
}

impl Watchdog {
    pub(crate) fn new(stop_within: Duration) -> Watchdog {
        Watchdog { stop_within, sent: 0, pending: VecDeque::new() }
    }

    /// Records a deadline that is being sent. Returns its number.
    pub(crate) fn send(&mut self, now: Moment, deadline: Moment) -> u64 {
        self.sent += 1;
        // A refused renewal ends the command at once, and has its own timeout.
        if deadline != Moment::PAST {
            let stop_at = deadline.before(self.stop_within).max(now + GUARD_REACTION_TIME);
            self.pending.push_back((self.sent, stop_at));
        }
        self.sent
    }

    /// The guard has received this deadline, and so all earlier ones.
    pub(crate) fn acknowledged(&mut self, number: u64) {
        while self.pending.front().is_some_and(|(sent, _)| *sent <= number) {
            self.pending.pop_front();
        }
    }

    /// When the guard counts as dead, unless it acknowledges before.
    pub(crate) fn expires_at(&self) -> Option<Moment> {
        self.pending.front().map(|(_, stop_at)| *stop_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of a TTL of 1 s.
    const STOP: Duration = Duration::from_millis(200);
    const USABLE: Duration = Duration::from_millis(900);

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_guard_that_answers_never_expires() {
        let mut watchdog = Watchdog::new(STOP);
        assert_eq!(watchdog.expires_at(), None);
        for time in (1_000..9_000).step_by(333) {
            let number = watchdog.send(at(time), at(time) + USABLE);
            watchdog.acknowledged(number);
            assert_eq!(watchdog.expires_at(), None);
        }
    }

    #[test]
    fn a_guard_expires_when_it_would_have_to_stop_the_command() {
        let mut watchdog = Watchdog::new(STOP);
        let first = watchdog.send(at(1_000), at(1_900));
        assert_eq!(watchdog.expires_at(), Some(at(1_700)));
        // Renewals do not postpone it: only an acknowledgement does.
        let second = watchdog.send(at(1_333), at(2_233));
        let third = watchdog.send(at(1_666), at(2_566));
        assert_eq!(watchdog.expires_at(), Some(at(1_700)));
        watchdog.acknowledged(first);
        assert_eq!(watchdog.expires_at(), Some(at(2_033)));
        watchdog.acknowledged(third);
        assert_eq!(watchdog.expires_at(), None);
        watchdog.acknowledged(second);
        assert_eq!(watchdog.expires_at(), None, "an answer may come late");
    }

    #[test]
    fn a_guard_that_is_not_scheduled_for_600_ms_at_a_ttl_of_1_s_does_not_expire() {
        // The stall may begin at any time between two renewals.
        for stall in (0..333).map(|offset| 1_000 + offset) {
            let mut watchdog = Watchdog::new(STOP);
            let mut unread = Vec::new();
            for time in 900..3_000 {
                if (time - 900) % 333 == 0 {
                    unread.push(watchdog.send(at(time), at(time) + USABLE));
                }
                let stalled = (stall..stall + 600).contains(&time);
                if !stalled {
                    unread.drain(..).for_each(|number| watchdog.acknowledged(number));
                }
                let expired = watchdog.expires_at().is_some_and(|expires| at(time) >= expires);
                assert!(!expired, "stalled from {stall} ms, expired at {time} ms");
            }
        }
    }

    #[test]
    fn a_refused_renewal_is_not_waited_for() {
        let mut watchdog = Watchdog::new(STOP);
        watchdog.send(at(1_000), Moment::PAST);
        assert_eq!(watchdog.expires_at(), None);
    }

    #[test]
    fn a_late_renewal_leaves_the_time_to_answer() {
        let mut watchdog = Watchdog::new(STOP);
        watchdog.send(at(1_000), at(1_150));
        assert_eq!(watchdog.expires_at(), Some(at(1_050)));
    }
}
