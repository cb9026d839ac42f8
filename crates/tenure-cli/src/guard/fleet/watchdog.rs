//! The member's watchdog: when a member no longer waits for its guard. It keeps the same kill schedules, a little longer.
//!
//! A frozen guard ends nothing. The member detects that a command should be gone and is not, or that the guard does not
//! acknowledge deadlines ([`Watchdog`]). It then kills the guard and every process that the guard leaves. As this ends every
//! command of the member, it happens only when a deadline is about to pass, or long after an order to stop.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::{Clock, Moment};
use tokio::sync::Notify;

use super::super::kill_schedule::{KillSchedule, reserve};
use super::super::watchdog::{GUARD_REACTION_TIME, Watchdog};

/// How long a guard may take to confirm that a command it has killed is gone, if the deadline allows.
const GUARD_KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a guard may take to end a command after a refused renewal: the lease is lost already, and no deadline can be met
/// any more.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct WatchedCommand {
    schedule: KillSchedule,
    /// When the guard was last ordered to end the command early; [`Moment::PAST`] before the first order.
    ordered_at: Moment,
}

impl WatchedCommand {
    fn overdue_at(&self) -> Moment {
        if self.schedule.deadline() == Moment::PAST {
            return self.ordered_at + REFUSAL_TIMEOUT;
        }
        let last = self.schedule.deadline().before(reserve(self.schedule.stop_within()) / 2);
        (self.schedule.kills_at() + GUARD_KILL_TIMEOUT)
            .min(last)
            .max(self.ordered_at + GUARD_REACTION_TIME)
    }
}

#[derive(Debug)]
struct WatchdogState {
    deadlines: HashMap<u32, Moment>,
    running: BTreeMap<u32, WatchedCommand>,
    watchdog: Watchdog,
    abandoned: bool,
}

/// When the guard should have ended which command.
#[derive(Debug)]
pub(super) struct MemberWatchdog {
    stop_within: Duration,
    clock: Clock,
    known: Mutex<WatchdogState>,
    changed: Notify,
}

impl MemberWatchdog {
    pub(super) fn new(stop_within: Duration, clock: Clock) -> MemberWatchdog {
        let known = WatchdogState {
            deadlines: HashMap::new(),
            running: BTreeMap::new(),
            watchdog: Watchdog::new(stop_within),
            abandoned: false,
        };
        MemberWatchdog { stop_within, clock, known: Mutex::new(known), changed: Notify::new() }
    }

    fn known(&self) -> MutexGuard<'_, WatchdogState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hold(&self, id: u32, deadline: Moment) {
        self.known().deadlines.insert(id, deadline);
    }

    /// The number that the guard must acknowledge; `None` if it will refuse to start the command.
    pub(super) fn run(&self, id: u32) -> Option<u64> {
        let mut known = self.known();
        let deadline = known.deadlines.get(&id).copied()?;
        let mut schedule = KillSchedule::new(deadline, self.stop_within);
        let now = self.clock.now();
        if schedule.due(now).is_some() {
            // The guard starts no command this late.
            return None;
        }
        // An earlier command of this hold has ended, or the guard refuses this one.
        known.running.entry(id).or_insert(WatchedCommand { schedule, ordered_at: Moment::PAST });
        self.changed.notify_one();
        Some(known.watchdog.send(now, deadline))
    }

    /// The number that the guard must acknowledge.
    pub(super) fn extend(&self, deadlines: &[(u32, Moment)]) -> Option<u64> {
        let (now, mut known) = (self.clock.now(), self.known());
        let mut earliest: Option<Moment> = None;
        for (id, deadline) in deadlines {
            if let Some(known) = known.deadlines.get_mut(id) {
                *known = *deadline;
                if *deadline != Moment::PAST {
                    earliest = Some(earliest.map_or(*deadline, |other| other.min(*deadline)));
                }
            }
            if let Some(watched) = known.running.get_mut(id) {
                watched.schedule.extend(*deadline);
                if *deadline == Moment::PAST {
                    watched.ordered_at = now;
                }
            }
        }
        self.changed.notify_one();
        Some(known.watchdog.send(now, earliest?))
    }

    pub(super) fn acknowledged(&self, number: u64) {
        self.known().watchdog.acknowledged(number);
    }

    pub(super) fn stop(&self, id: u32, kill_at: Moment) {
        let mut known = self.known();
        if let Some(watched) = known.running.get_mut(&id) {
            watched.schedule.stop(kill_at);
            watched.ordered_at = self.clock.now();
        }
        self.changed.notify_one();
    }

    /// No process of the command is left, or the guard has reported why it cannot end it.
    pub(super) fn gone(&self, id: u32) {
        self.known().running.remove(&id);
    }

    pub(super) fn forget(&self, id: u32) {
        self.known().deadlines.remove(&id);
    }

    /// The member kills the guard at once, in any state.
    pub(super) fn abandon(&self) {
        self.known().abandoned = true;
        self.changed.notify_one();
    }

    /// When the guard counts as dead.
    fn expires_at(&self) -> Option<Moment> {
        let known = self.known();
        if known.abandoned {
            return Some(Moment::PAST);
        }
        let running = known.running.values().map(WatchedCommand::overdue_at);
        running.chain(known.watchdog.expires_at()).min()
    }

    /// Returns when the member must kill the guard.
    pub(super) async fn expired(&self) {
        loop {
            let Some(at) = self.expires_at() else {
                self.changed.notified().await;
                continue;
            };
            if self.clock.now() >= at {
                return;
            }
            tokio::select! {
                () = self.changed.notified() => {}
                () = self.clock.sleep_until(at) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOP: Duration = Duration::from_secs(6);
    const SECOND: Duration = Duration::from_secs(1);

    /// Runs a command under a guard that acknowledges.
    fn run(watchdog: &MemberWatchdog, id: u32) {
        if let Some(number) = watchdog.run(id) {
            watchdog.acknowledged(number);
        }
    }

    #[test]
    fn nothing_is_overdue_while_nothing_runs() {
        let watchdog = MemberWatchdog::new(STOP, Clock::manual());
        watchdog.hold(1, watchdog.clock.now() + SECOND);
        assert_eq!(watchdog.expires_at(), None);
        assert_eq!(watchdog.run(2), None);
        assert_eq!(watchdog.expires_at(), None, "such a hold is unknown");
    }

    #[test]
    fn a_command_is_overdue_shortly_before_its_own_deadline() {
        let watchdog = MemberWatchdog::new(STOP, Clock::manual());
        let now = watchdog.clock.now();
        for id in [1, 2] {
            watchdog.hold(id, now + 30 * SECOND);
            run(&watchdog, id);
        }
        let early = Duration::from_millis(250);
        assert_eq!(watchdog.expires_at(), Some((now + 30 * SECOND).before(early)));
        let number = watchdog.extend(&[(1, now + 40 * SECOND), (3, now)]);
        watchdog.acknowledged(number.unwrap());
        assert_eq!(watchdog.expires_at(), Some((now + 30 * SECOND).before(early)));
        watchdog.gone(2);
        assert_eq!(watchdog.expires_at(), Some((now + 40 * SECOND).before(early)));
    }

    #[test]
    fn a_guard_that_does_not_acknowledge_is_overdue() {
        let watchdog = MemberWatchdog::new(STOP, Clock::manual());
        let now = watchdog.clock.now();
        for id in [1, 2] {
            watchdog.hold(id, now + 27 * SECOND);
        }
        let number = watchdog.run(1).unwrap();
        assert_eq!(watchdog.expires_at(), Some((now + 27 * SECOND).before(STOP)));
        watchdog.acknowledged(number);
        watchdog.clock.advance(10 * SECOND);
        watchdog.extend(&[(1, now + 37 * SECOND), (2, now + 36 * SECOND)]);
        watchdog.clock.advance(10 * SECOND);
        watchdog.extend(&[(1, now + 47 * SECOND), (2, now + 46 * SECOND)]);
        assert_eq!(
            watchdog.expires_at(),
            Some((now + 36 * SECOND).before(STOP)),
            "the first is not answered"
        );
    }

    #[test]
    fn a_stop_and_a_refusal_have_their_own_timeouts() {
        let watchdog = MemberWatchdog::new(STOP, Clock::manual());
        let now = watchdog.clock.now();
        watchdog.hold(1, now + 30 * SECOND);
        run(&watchdog, 1);
        watchdog.stop(1, now + 5 * SECOND);
        assert_eq!(watchdog.expires_at(), Some(now + 5 * SECOND + GUARD_KILL_TIMEOUT));
        watchdog.clock.advance(SECOND);
        watchdog.extend(&[(1, Moment::PAST)]);
        assert_eq!(watchdog.expires_at(), Some(now + SECOND + REFUSAL_TIMEOUT));
    }

    #[test]
    fn an_order_never_extends_the_deadline_but_leaves_time_to_react() {
        let watchdog = MemberWatchdog::new(SECOND / 2, Clock::manual());
        let now = watchdog.clock.now();
        let last = (now + SECOND).before(SECOND / 8);
        watchdog.hold(1, now + SECOND);
        run(&watchdog, 1);
        watchdog.stop(1, now + SECOND);
        assert_eq!(watchdog.expires_at(), Some(last));
        watchdog.clock.advance(last.since(now));
        watchdog.stop(1, now);
        assert_eq!(watchdog.expires_at(), Some(last + GUARD_REACTION_TIME));
        watchdog.hold(2, now + SECOND);
        run(&watchdog, 2);
        watchdog.gone(1);
        assert_eq!(watchdog.expires_at(), None, "the guard refuses to begin it");
    }

    #[test]
    fn an_abandoned_guard_expires_at_once() {
        let watchdog = MemberWatchdog::new(STOP, Clock::manual());
        watchdog.abandon();
        assert_eq!(watchdog.expires_at(), Some(Moment::PAST));
    }
}
