//! `--cron`: the instants of a cron expression in a time zone.
//!
//! Five fields (minute, hour, day of month, month, day of week), or six with the second in front, and `@hourly` `@daily`
//! `@weekly` `@monthly` `@yearly`. `croner` parses them and finds dates on a calendar without time zones. Which instants
//! those are is decided here, because a clock that is set forward omits an hour and one that is set back repeats an hour:
//!
//! - An expression that names **every hour** (`15 * * * *`) follows elapsed time: nothing is due in the omitted hour, and
//!   both of the repeated hours have their own slots.
//! - In any other expression (`30 2 * * *`) every time of day comes **exactly once**: an omitted time is due when the clock
//!   is set forward (all omitted times together, once), a repeated time is due the first time.

use std::fmt;

use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use tenure::{Error, Result};

use super::cron_error;

#[derive(Clone)]
pub(crate) struct Cron {
    /// As the operator typed it.
    expression: String,
    pattern: croner::Cron,
    zone: TimeZone,
    /// Whether it names every hour.
    hourly: bool,
}

/// A span of time with one UTC offset.
struct OffsetSpan {
    offset: Offset,
    /// When it begins, if that is known.
    from: Option<Timestamp>,
    /// When the next one begins, if ever.
    until: Option<Timestamp>,
}

impl Cron {
    pub(super) fn new(expression: &str, zone: TimeZone) -> Result<Cron> {
        let pattern = cron_error::parse_strictly(expression)?;
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
        let found =
            if self.hourly { self.last_by_elapsed_time(now) } else { self.last_by_clock(now) };
        seconds(found?)
    }

    /// The first instant after `now`; both in Unix seconds.
    pub(super) fn next(&self, now: u64) -> Option<u64> {
        let now = timestamp(now)?;
        let found =
            if self.hourly { self.next_by_elapsed_time(now) } else { self.next_by_clock(now) };
        seconds(found?)
    }

    /// The next instant by the time of day: instants are in the order of what the clock shows, so the first date that has not
    /// come yet is the next.
    fn next_by_clock(&self, now: Timestamp) -> Option<Timestamp> {
        let mut date = self.zone.to_datetime(now);
        loop {
            date = self.after(date, false)?;
            // Only in a repeated hour are there later dates that have already come.
            let at = self.instant(date)?;
            if at > now {
                return Some(at);
            }
        }
    }

    fn last_by_clock(&self, now: Timestamp) -> Option<Timestamp> {
        let mut shown = self.zone.to_datetime(now);
        // In a repeated hour, all of its times have been shown before.
        if let Some(change) = self.offset_span(now).from {
            let before = self.zone.to_offset(change.checked_sub(SECOND).ok()?);
            shown = shown.max(before.to_datetime(change).checked_sub(SECOND).ok()?);
        }
        self.instant(self.before(shown)?)
    }

    /// When a clock of the zone first shows `date`; for an omitted date, when the clock is set forward over it.
    fn instant(&self, date: DateTime) -> Option<Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(date);
        match ambiguous.offset() {
            AmbiguousOffset::Gap { before, .. } => {
                // Read with the old offset, the date lies shortly after the change.
                let meant = before.to_timestamp(date).ok()?;
                self.offset_span(meant).from
            }
            _ => ambiguous.earlier().ok(),
        }
    }

    /// The next instant by elapsed time: searches one span of constant offset after the other.
    fn next_by_elapsed_time(&self, now: Timestamp) -> Option<Timestamp> {
        let mut offset_span = self.offset_span(now);
        let mut found = self.after(offset_span.offset.to_datetime(now), false);
        loop {
            let at = found.and_then(|date| offset_span.offset.to_timestamp(date).ok());
            match (at, offset_span.until) {
                (Some(at), Some(until)) if at < until => return Some(at),
                (at, None) => return at,
                (_, Some(until)) => {
                    offset_span = self.offset_span(until);
                    found = self.after(offset_span.offset.to_datetime(until), true);
                }
            }
        }
    }

    fn last_by_elapsed_time(&self, now: Timestamp) -> Option<Timestamp> {
        let mut offset_span = self.offset_span(now);
        let mut last = now;
        loop {
            let date = self.before(offset_span.offset.to_datetime(last));
            let at = date.and_then(|date| offset_span.offset.to_timestamp(date).ok());
            match (at, offset_span.from) {
                (Some(at), Some(from)) if at >= from => return Some(at),
                (at, None) => return at,
                (_, Some(from)) => {
                    last = from.checked_sub(SECOND).ok()?;
                    offset_span = self.offset_span(last);
                }
            }
        }
    }

    fn offset_span(&self, at: Timestamp) -> OffsetSpan {
        // A span that begins at this very moment has begun.
        let just_after = at.checked_add(SignedDuration::from_nanos(1)).unwrap_or(at);
        OffsetSpan {
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

/// Parses the expression, if it is valid.
pub(super) fn parse(expression: &str) -> Option<croner::Cron> {
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    parser.parse(expression).ok()
}

fn timestamp(seconds: u64) -> Option<Timestamp> {
    Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
}

/// Before 1970 there are no slots.
fn seconds(at: Timestamp) -> Option<u64> {
    u64::try_from(at.as_second()).ok()
}
