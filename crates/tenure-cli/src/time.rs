//! Formats points in time: RFC 3339 in UTC with milliseconds for JSON, local time for people.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tenure::{Clock, Moment};

/// `2025-06-18T15:00:00.000Z`, from Unix milliseconds.
pub(crate) fn rfc3339(unix_ms: u64) -> String {
    let (seconds, ms) = (unix_ms / 1_000, unix_ms % 1_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// The current time for display only: no decision depends on it.
pub(crate) fn now() -> String {
    rfc3339(unix_ms())
}

/// The current wall-clock time in Unix milliseconds.
pub(crate) fn unix_ms() -> u64 {
    Clock::boot().minting_micros() / 1_000
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
///
/// Years start in March, so that the leap day is the last day of a year: then the number of days before a month is linear, and
/// a cycle of 400 years is always 146 097 days long.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // since 0000-03-01
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let day = day - (153 * from_march + 2) / 5 + 1;
    (cycle * 400 + year + u64::from(month <= 2), month, day)
}

/// The local time of a moment on the boot clock: `14:30:27`.
pub(crate) fn local_time_of(moment: Moment) -> String {
    let clock = Clock::boot();
    let ago = clock.now().since(moment);
    let micros = u128::from(clock.minting_micros()).saturating_sub(ago.as_micros());
    let wall =
        i64::try_from(micros).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
    let wall = wall.unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(TimeZone::system());
    wall.strftime("%H:%M:%S").to_string()
}

/// The local time of `unix_ms` in its shortest form: `02:00`, `02:00:03`, `02:00:03.250`; with the date, unless that is the
/// date of `now_ms`.
pub(crate) fn local_time_of_slot(unix_ms: u64, now_ms: u64) -> String {
    in_zone(unix_ms, now_ms, TimeZone::system())
}

fn in_zone(unix_ms: u64, now_ms: u64, zone: TimeZone) -> String {
    let zoned = |ms: u64| {
        let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        at.unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(zone.clone())
    };
    let (at, now) = (zoned(unix_ms), zoned(now_ms));
    let date = if at.date() == now.date() { "" } else { "%Y-%m-%d " };
    let time = match unix_ms {
        ms if !ms.is_multiple_of(1_000) => "%H:%M:%S.%3f",
        ms if !ms.is_multiple_of(60_000) => "%H:%M:%S",
        _ => "%H:%M",
    };
    at.strftime(&format!("{date}{time}")).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_shown_as_short_as_they_are_unambiguous() {
        let now = 1_750_258_800_000; // 2025-06-18T15:00:00Z
        let shown = |unix_ms| in_zone(unix_ms, now, TimeZone::UTC);
        assert_eq!(shown(now), "15:00");
        assert_eq!(shown(now + 3_000), "15:00:03");
        assert_eq!(shown(now + 3_250), "15:00:03.250");
        assert_eq!(shown(now - 86_400_000), "2025-06-17 15:00");
        shown(u64::MAX);
    }

    #[test]
    fn known_timestamps_are_formatted() {
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_750_258_800_041, "2025-06-18T15:00:00.041Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(rfc3339(unix_ms), text);
        }
        rfc3339(u64::MAX);
    }

    #[test]
    fn every_day_of_eight_hundred_years_is_formatted_once() {
        let every = |year: u64, n: u64| year.is_multiple_of(n);
        let leap = |year| every(year, 4) && (!every(year, 100) || every(year, 400));
        let mut days = 0;
        for year in 1970..2770 {
            for month in 1..=12 {
                let length = match month {
                    2 => 28 + u64::from(leap(year)),
                    4 | 6 | 9 | 11 => 30,
                    _ => 31,
                };
                for day in 1..=length {
                    assert_eq!(civil(days), (year, month, day));
                    days += 1;
                }
            }
        }
    }
}
