//! When a member no longer waits for its guard: the same fuses, a little longer.
//!
//! A guard that is frozen ends nothing. The member sees that a command should be gone and is not, or that the guard does not
//! acknowledge deadlines ([`Watchdog`]), kills the guard, and ends what that leaves. As this ends every command of the
//! member, it comes only when the deadline is about to pass, or long after an order to stop.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::{Clock, Moment};
use tokio::sync::Notify;

use super::super::kill_schedule::{KillSchedule, reserve};
use super::super::watchdog::{GUARD_REACTS, Watchdog};

/// A guard has so long to see a command gone which it has killed, if the deadline allows.
const GUARD_KILLS: Duration = Duration::from_secs(2);
/// The lease is lost already, and no deadline can be kept any more.
const GUARD_REFUSED: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct WatchedDeadline {
    fuse: KillSchedule,
    /// When it was last told to be quick.
    told_at: Moment,
}

impl WatchedDeadline {
    fn overdue_at(&self) -> Moment {
        if self.fuse.deadline() == Moment::NEVER {
            return self.told_at + GUARD_REFUSED;
        }
        let last = self.fuse.deadline().before(reserve(self.fuse.stop_within()) / 2);
        (self.fuse.kills_at() + GUARD_KILLS).min(last).max(self.told_at + GUARD_REACTS)
    }
}

#[derive(Debug)]
struct WatchedCommand {
    deadlines: HashMap<u32, Moment>,
    running: BTreeMap<u32, WatchedDeadline>,
    watchdog: Watchdog,
    abandoned: bool,
}

/// What the guard should have done by when.
#[derive(Debug)]
pub(super) struct MemberWatchdog {
    stop_within: Duration,
    clock: Clock,
    known: Mutex<WatchedCommand>,
    changed: Notify,
}

impl MemberWatchdog {
    pub(super) fn new(stop_within: Duration, clock: Clock) -> MemberWatchdog {
        let known = WatchedCommand {
            deadlines: HashMap::new(),
            running: BTreeMap::new(),
            watchdog: Watchdog::new(stop_within),
            abandoned: false,
        };
        MemberWatchdog { stop_within, clock, known: Mutex::new(known), changed: Notify::new() }
    }

    fn known(&self) -> MutexGuard<'_, WatchedCommand> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hold(&self, id: u32, deadline: Moment) {
        self.known().deadlines.insert(id, deadline);
    }

    /// The number that the guard is to acknowledge, if it may begin this at all.
    pub(super) fn run(&self, id: u32) -> Option<u64> {
        let mut known = self.known();
        let deadline = known.deadlines.get(&id).copied()?;
        let mut fuse = KillSchedule::new(deadline, self.stop_within);
        let now = self.clock.now();
        if fuse.due(now).is_some() {
            // The guard begins nothing as late as this.
            return None;
        }
        // One that ran before has ended, or the guard refuses this one.
        known.running.entry(id).or_insert(WatchedDeadline { fuse, told_at: Moment::NEVER });
        self.changed.notify_one();
        Some(known.watchdog.send(now, deadline))
    }

    /// The number that the guard is to acknowledge.
    pub(super) fn extend(&self, deadlines: &[(u32, Moment)]) -> Option<u64> {
        let (now, mut known) = (self.clock.now(), self.known());
        let mut earliest: Option<Moment> = None;
        for (id, deadline) in deadlines {
            if let Some(known) = known.deadlines.get_mut(id) {
                *known = *deadline;
                if *deadline != Moment::NEVER {
                    earliest = Some(earliest.map_or(*deadline, |other| other.min(*deadline)));
                }
            }
            if let Some(watched) = known.running.get_mut(id) {
                watched.fuse.extend(*deadline);
                if *deadline == Moment::NEVER {
                    watched.told_at = now;
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
            watched.fuse.stop(kill_at);
            watched.told_at = self.clock.now();
        }
        self.changed.notify_one();
    }

    /// Nothing of the command is left, or the guard has reported why it cannot end it.
    pub(super) fn gone(&self, id: u32) {
        self.known().running.remove(&id);
    }

    pub(super) fn forget(&self, id: u32) {
        self.known().deadlines.remove(&id);
    }

    /// The guard is to go, whatever it does.
    pub(super) fn abandon(&self) {
        self.known().abandoned = true;
        self.changed.notify_one();
    }

    /// When the guard is not doing its duty.
    fn at(&self) -> Option<Moment> {
        let known = self.known();
        if known.abandoned {
            return Some(Moment::NEVER);
        }
        let running = known.running.values().map(WatchedDeadline::overdue_at);
        running.chain(known.watchdog.expires_at()).min()
    }

    /// Returns when it is time to do without the guard.
    pub(super) async fn come(&self) {
        loop {
            let Some(at) = self.at() else {
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

    /// Runs a command under a guard that answers.
    fn run(overdue: &MemberWatchdog, id: u32) {
        if let Some(number) = overdue.run(id) {
            overdue.acknowledged(number);
        }
    }

    #[test]
    fn nothing_is_overdue_while_nothing_runs() {
        let overdue = MemberWatchdog::new(STOP, Clock::manual());
        overdue.hold(1, overdue.clock.now() + SECOND);
        assert_eq!(overdue.at(), None);
        assert_eq!(overdue.run(2), None);
        assert_eq!(overdue.at(), None, "of such a hold nobody knows");
    }

    #[test]
    fn a_command_is_overdue_shortly_before_its_own_deadline() {
        let overdue = MemberWatchdog::new(STOP, Clock::manual());
        let now = overdue.clock.now();
        for id in [1, 2] {
            overdue.hold(id, now + 30 * SECOND);
            run(&overdue, id);
        }
        let early = Duration::from_millis(250);
        assert_eq!(overdue.at(), Some((now + 30 * SECOND).before(early)));
        let number = overdue.extend(&[(1, now + 40 * SECOND), (3, now)]);
        overdue.acknowledged(number.unwrap());
        assert_eq!(overdue.at(), Some((now + 30 * SECOND).before(early)));
        overdue.gone(2);
        assert_eq!(overdue.at(), Some((now + 40 * SECOND).before(early)));
    }

    #[test]
    fn a_guard_that_does_not_acknowledge_is_overdue() {
        let overdue = MemberWatchdog::new(STOP, Clock::manual());
        let now = overdue.clock.now();
        for id in [1, 2] {
            overdue.hold(id, now + 27 * SECOND);
        }
        let number = overdue.run(1).unwrap();
        assert_eq!(overdue.at(), Some((now + 27 * SECOND).before(STOP)));
        overdue.acknowledged(number);
        overdue.clock.advance(10 * SECOND);
        overdue.extend(&[(1, now + 37 * SECOND), (2, now + 36 * SECOND)]);
        overdue.clock.advance(10 * SECOND);
        overdue.extend(&[(1, now + 47 * SECOND), (2, now + 46 * SECOND)]);
        assert_eq!(
            overdue.at(),
            Some((now + 36 * SECOND).before(STOP)),
            "the first is not answered"
        );
    }

    #[test]
    fn a_stop_and_a_refusal_have_their_time() {
        let overdue = MemberWatchdog::new(STOP, Clock::manual());
        let now = overdue.clock.now();
        overdue.hold(1, now + 30 * SECOND);
        run(&overdue, 1);
        overdue.stop(1, now + 5 * SECOND);
        assert_eq!(overdue.at(), Some(now + 5 * SECOND + GUARD_KILLS));
        overdue.clock.advance(SECOND);
        overdue.extend(&[(1, Moment::NEVER)]);
        assert_eq!(overdue.at(), Some(now + SECOND + GUARD_REFUSED));
    }

    #[test]
    fn no_order_is_waited_for_past_the_deadline_while_there_is_time_to_react() {
        let overdue = MemberWatchdog::new(SECOND / 2, Clock::manual());
        let now = overdue.clock.now();
        let last = (now + SECOND).before(SECOND / 8);
        overdue.hold(1, now + SECOND);
        run(&overdue, 1);
        overdue.stop(1, now + SECOND);
        assert_eq!(overdue.at(), Some(last));
        overdue.clock.advance(last.since(now));
        overdue.stop(1, now);
        assert_eq!(overdue.at(), Some(last + GUARD_REACTS));
        overdue.hold(2, now + SECOND);
        run(&overdue, 2);
        overdue.gone(1);
        assert_eq!(overdue.at(), None, "the guard refuses to begin it");
    }

    #[test]
    fn an_abandoned_guard_is_waited_for_no_more() {
        let overdue = MemberWatchdog::new(STOP, Clock::manual());
        overdue.abandon();
        assert_eq!(overdue.at(), Some(Moment::NEVER));
    }
}
