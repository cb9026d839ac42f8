//! Scheduled work: when there is something to run, and what has been run.
//!
//! PURE: time is an argument everywhere. [`Schedule`] knows the slots, [`Ledger`] is what the leader
//! leaves for its successor, [`Planner`] says what to do next.
//!
//! A **slot** is one time at which the work is due. It is named by a number that every node finds for
//! itself: ⌊unix time / period⌋ with `--every`, the unix seconds of the instant with `--cron`.

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
pub(crate) use planner::{
    Interrupted, Missed, Policy, SchedulePlanner, ScheduleStep, UpcomingRuns,
};

/// No schedule goes beyond 4900-01-01: soon after it the calendar of `croner` ends, and it would search
/// for long. A clock that is there is wrong.
const LAST_MS: u64 = 92_461_910_400_000;

/// One time at which the work is due.
///
/// Slots are compared by when they begin. For one schedule that is the order of their numbers; when
/// the schedule was changed, numbers of the old one and the new one say nothing about each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    /// When it begins, in Unix milliseconds.
    pub(crate) at: u64,
    /// What it is called.
    pub(crate) number: u64,
}

/// When the work is due.
#[derive(Clone, Debug)]
pub(crate) enum Schedule {
    /// Every so many milliseconds, counted from 1970-01-01T00:00:00Z.
    Every(u64),
    Cron(Box<Cron>),
}

impl Schedule {
    /// `--every D`.
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

    /// `--cron EXPR --timezone TZ`; `None` is the time zone of this machine.
    pub(crate) fn cron(expression: &str, timezone: Option<&str>) -> Result<Schedule> {
        let zone = zone::find(timezone)?;
        Ok(Schedule::Cron(Box::new(Cron::new(expression, zone)?)))
    }

    /// The newest slot that began at `now` or before.
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

    /// The slot of that number.
    pub(crate) fn slot(&self, number: u64) -> Option<Slot> {
        let unit = match self {
            Schedule::Every(period) => *period,
            Schedule::Cron(_) => 1_000,
        };
        Some(Slot { at: number.checked_mul(unit)?, number })
    }

    /// How many slots begin after `from` and at `to` or before.
    ///
    /// A cron schedule has to be walked: it counts `most` of them and no more.
    pub(crate) fn count(&self, from: u64, to: u64, most: u64) -> u64 {
        match self {
            Schedule::Every(period) => (to / period).saturating_sub(from / period),
            Schedule::Cron(_) => {
                let (mut count, mut last) = (0, from);
                while count < most
                    && let Some(slot) = self.next(last).filter(|slot| slot.at <= to)
                {
                    (count, last) = (count + 1, slot.at);
                }
                count
            }
        }
    }
}
