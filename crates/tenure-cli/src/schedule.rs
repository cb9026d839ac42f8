//! Scheduled work: when a run is due, and which runs have been done.
//!
//! PURE: time is an argument everywhere. [`Schedule`] computes the slots, [`ScheduleCheckpoint`] is what the leader saves for
//! its successor, [`SchedulePlanner`] decides what to do next.
//!
//! A **slot** is one time at which the work is due. Its name is a number that every node computes by itself: ⌊unix time /
//! period⌋ with `--every`, the unix seconds of the instant with `--cron`.

mod checkpoint;
mod cron;
mod cron_error;
mod options;
mod planner;
mod zone;

#[cfg(test)]
mod planner_tests;
#[cfg(test)]
mod schedule_tests;

use std::time::Duration;

use tenure::{Error, Result};

pub(crate) use checkpoint::{RunOutcome, RunRecord, ScheduleCheckpoint};
use cron::Cron;
pub(crate) use options::ScheduleArgs;
pub(crate) use planner::{ClockAhead, Interrupted, Missed, Policy, SchedulePlanner, ScheduleStep};

/// No schedule goes beyond 4900-01-01: the calendar of `croner` ends soon after it, and a search would take long. A clock that
/// shows a later time is wrong.
const LAST_MS: u64 = 92_461_910_400_000;

/// One time at which the work is due.
///
/// Slots are ordered by when they begin. For one schedule that is the order of their numbers. After the schedule has changed,
/// the numbers of the old and the new schedule cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    /// When it begins, in Unix milliseconds.
    pub(crate) at: u64,
    /// Its name.
    pub(crate) number: u64,
}

/// When the work is due.
#[derive(Clone, Debug)]
pub(crate) enum Schedule {
    /// A period in milliseconds, counted from 1970-01-01T00:00:00Z.
    Every(u64),
    Cron(Box<Cron>),
}

impl Schedule {
    /// The schedule of `--every D`.
    pub(crate) fn every(period: Duration) -> Result<Schedule> {
        if period.is_zero() {
            return Err(Error::invalid("--every must not be zero: give a period like 5s"));
        }
        match u64::try_from(period.as_millis()) {
            Ok(ms @ 1..) if period == Duration::from_millis(ms) => Ok(Schedule::Every(ms)),
            _ => Err(Error::invalid(
                "--every must be a whole number of milliseconds: give a period like 5s",
            )),
        }
    }

    /// The schedule of `--cron EXPR --timezone TZ`; `None` is the time zone of this machine.
    pub(crate) fn cron(expression: &str, timezone: Option<&str>) -> Result<Schedule> {
        let zone = zone::find(timezone)?;
        Ok(Schedule::Cron(Box::new(Cron::new(expression, zone)?)))
    }

    /// The newest slot that begins at `now` or before.
    pub(crate) fn current(&self, now: u64) -> Option<Slot> {
        if now > LAST_MS {
            return None;
        }
        match self {
            Schedule::Every(period) => self.slot(now / period),
            Schedule::Cron(cron) => cron.current(now / 1_000).and_then(|at| self.slot(at)),
        }
    }

    /// The first slot that begins after `now`. It begins at [`Slot::at`].
    pub(crate) fn next(&self, now: u64) -> Option<Slot> {
        if now > LAST_MS {
            return None;
        }
        let number = match self {
            Schedule::Every(period) => now / period + 1,
            Schedule::Cron(cron) => cron.next(now / 1_000)?,
        };
        self.slot(number).filter(|slot| slot.at <= LAST_MS)
    }

    /// The slot with this number.
    pub(crate) fn slot(&self, number: u64) -> Option<Slot> {
        let unit = match self {
            Schedule::Every(period) => *period,
            Schedule::Cron(_) => 1_000,
        };
        Some(Slot { at: number.checked_mul(unit)?, number })
    }

    /// How many slots begin after `from` and at `to` or before.
    ///
    /// The slots of a cron schedule are found one by one, so at most `limit` of them are counted.
    pub(crate) fn count(&self, from: u64, to: u64, limit: u64) -> u64 {
        match self {
            Schedule::Every(period) => (to / period).saturating_sub(from / period),
            Schedule::Cron(_) => {
                let (mut count, mut last) = (0, from);
                while count < limit
                    && let Some(slot) = self.next(last).filter(|slot| slot.at <= to)
                {
                    (count, last) = (count + 1, slot.at);
                }
                count
            }
        }
    }
}
