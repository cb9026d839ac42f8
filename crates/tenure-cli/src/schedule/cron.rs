//! `--cron`: the instants of a cron expression in a time zone.
//!
//! Five fields (minute, hour, day of month, month, day of week), or six with the second in front, and
//! `@hourly` `@daily` `@weekly` `@monthly` `@yearly`. `croner` reads them and finds dates on a calendar
//! without time zones. Which instants those are is decided here, because a clock that is put forward
//! leaves out an hour and one that is put back shows an hour twice:
//!
//! - An expression that names **every hour** (`15 * * * *`) goes by the time that passes: nothing is
//!   due in the hour that is left out, and both hours that look alike have theirs.
//! - In any other (`30 2 * * *`) every time of day comes **exactly once**: what is left out is due when
//!   the clock is put forward (all of it together, once), what is shown twice is due the first time.

use std::fmt;

use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use tenure::{Error, Result};

use super::cron_error;

#[derive(Clone)]
pub(crate) struct Cron {
    /// As it was typed.
    expression: String,
    pattern: croner::Cron,
    zone: TimeZone,
    /// It names every hour.
    hourly: bool,
}

/// A piece of time in which the clocks of a zone are not changed.
struct CronWindow {
    offset: Offset,
    /// When it begins, if that is known.
    from: Option<Timestamp>,
    /// When the next begins, if ever.
    until: Option<Timestamp>,
}

impl Cron {
    pub(super) fn new(expression: &str, zone: TimeZone) -> Result<Cron> {
        let pattern = cron_error::read_strictly(expression)?;
        let hourly = (0..24).all(|hour| pattern.pattern.hour_match(hour).unwrap_or(false));
        let cron = Cron { expression: expression.to_owned(), pattern, zone, hourly };
        if cron.after(DateTime::constant(2000, 1, 1, 0, 0, 0, 0), true).is_none() {
            let shown = expression.escape_debug();
            return Err(Error::invalid(format!(
                "--cron '{shown}' never comes: no month it names has such a day"
            )));
        }
        Ok(cron)
    }

    /// The newest instant at `now` or before; both in Unix seconds.
    pub(super) fn current(&self, now: u64) -> Option<u64> {
        let now = timestamp(now)?;
        let found = if self.hourly { self.last_passed(now) } else { self.last_shown(now) };
        seconds(found?)
    }

    /// The first instant after `now`; both in Unix seconds.
    pub(super) fn next(&self, now: u64) -> Option<u64> {
        let now = timestamp(now)?;
        let found = if self.hourly { self.next_passed(now) } else { self.next_shown(now) };
        seconds(found?)
    }

    /// By the time of day: instants are in the order of what the clock shows, so the first date that
    /// has not come yet is the next.
    fn next_shown(&self, now: Timestamp) -> Option<Timestamp> {
        let mut date = self.zone.to_datetime(now);
        loop {
            date = self.after(date, false)?;
            // Only in an hour that is shown again are there dates ahead that have been.
            let at = self.instant(date)?;
            if at > now {
                return Some(at);
            }
        }
    }

    fn last_shown(&self, now: Timestamp) -> Option<Timestamp> {
        let mut shown = self.zone.to_datetime(now);
        // In an hour that is shown again, all of it has been shown before.
        if let Some(change) = self.stretch(now).from {
            let before = self.zone.to_offset(change.checked_sub(SECOND).ok()?);
            shown = shown.max(before.to_datetime(change).checked_sub(SECOND).ok()?);
        }
        self.instant(self.before(shown)?)
    }

    /// When a clock of the zone shows `date` for the first time; if it never does, when it is put over it.
    fn instant(&self, date: DateTime) -> Option<Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(date);
        match ambiguous.offset() {
            AmbiguousOffset::Gap { before, .. } => {
                // As the old time would have had it, that is in the first moments of the new.
                let meant = before.to_timestamp(date).ok()?;
                self.stretch(meant).from
            }
            _ => ambiguous.earlier().ok(),
        }
    }

    /// By the time that passes: one stretch without a change of clocks after the other.
    fn next_passed(&self, now: Timestamp) -> Option<Timestamp> {
        let mut stretch = self.stretch(now);
        let mut found = self.after(stretch.offset.to_datetime(now), false);
        loop {
            let at = found.and_then(|date| stretch.offset.to_timestamp(date).ok());
            match (at, stretch.until) {
                (Some(at), Some(until)) if at < until => return Some(at),
                (at, None) => return at,
                (_, Some(until)) => {
                    stretch = self.stretch(until);
                    found = self.after(stretch.offset.to_datetime(until), true);
                }
            }
        }
    }

    fn last_passed(&self, now: Timestamp) -> Option<Timestamp> {
        let mut stretch = self.stretch(now);
        let mut last = now;
        loop {
            let date = self.before(stretch.offset.to_datetime(last));
            let at = date.and_then(|date| stretch.offset.to_timestamp(date).ok());
            match (at, stretch.from) {
                (Some(at), Some(from)) if at >= from => return Some(at),
                (at, None) => return at,
                (_, Some(from)) => {
                    last = from.checked_sub(SECOND).ok()?;
                    stretch = self.stretch(last);
                }
            }
        }
    }

    fn stretch(&self, at: Timestamp) -> CronWindow {
        // What begins at this very moment has begun.
        let just_after = at.checked_add(SignedDuration::from_nanos(1)).unwrap_or(at);
        CronWindow {
            offset: self.zone.to_offset(at),
            from: self.zone.preceding(just_after).next().map(|change| change.timestamp()),
            until: self.zone.following(at).next().map(|change| change.timestamp()),
        }
    }

    fn after(&self, date: DateTime, inclusive: bool) -> Option<DateTime> {
        self.pattern.find_next_occurrence(&date, inclusive).ok()
    }

    fn before(&self, date: DateTime) -> Option<DateTime> {
        self.pattern.find_previous_occurrence(&date, true).ok()
    }
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zone = self.zone.iana_name().unwrap_or("local");
        write!(f, "Cron({:?} in {zone})", self.expression)
    }
}

const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// The expression, if it is one.
pub(super) fn read(expression: &str) -> Option<croner::Cron> {
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    parser.parse(expression).ok()
}

fn timestamp(seconds: u64) -> Option<Timestamp> {
    Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
}

/// Before 1970 there were no slots.
fn seconds(at: Timestamp) -> Option<u64> {
    u64::try_from(at.as_second()).ok()
}
