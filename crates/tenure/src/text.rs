//! PURE: the text form of durations (`500ms` `5s` `1h30m`) and of times (RFC 3339), the same in settings, logs and JSON, in the
//! library and in the command.
//!
//! ```
//! use std::time::Duration;
//! use tenure::text::{format_duration, parse_duration, rfc3339};
//!
//! assert_eq!(parse_duration("1m30s")?, Duration::from_secs(90));
//! assert_eq!(format_duration(Duration::from_millis(2_710)), "2s710ms");
//! assert_eq!(rfc3339(1_750_258_800_000), "2025-06-18T15:00:00.000Z");
//! # Ok::<(), tenure::Error>(())
//! ```

use std::time::Duration;

use crate::error::{Error, Result};

/// The units in milliseconds, the greatest first: also their order in the text.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

const SYNTAX_HINT: &str = "type it like 500ms, 5s, 2m, 1h30m or 1d";

/// Parses a duration. A number without a unit is refused: many tools take it for seconds, others for milliseconds.
///
/// # Errors
/// Invalid: the text is not a duration. The message says how to write one.
pub fn parse_duration(text: &str) -> Result<Duration> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::invalid(format!(
            "'{text}' has no unit: type {text}s for seconds or {text}ms for milliseconds"
        )));
    }
    let invalid =
        || Error::invalid(format!("'{}' is no duration: {SYNTAX_HINT}", text.escape_debug()));
    let mut total: u64 = 0;
    let mut units = UNITS.iter();
    let mut rest = text;
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        // Each unit occurs at most once and in order: the iterator has only the smaller units left.
        let (_, unit_ms) = units.find(|(name, _)| *name == unit).ok_or_else(invalid)?;
        let number: u64 = number.parse().map_err(|_| invalid())?;
        let ms = number.checked_mul(*unit_ms).ok_or_else(invalid)?;
        total = total.checked_add(ms).ok_or_else(invalid)?;
        rest = after;
        if rest.is_empty() {
            return Ok(Duration::from_millis(total));
        }
    }
}

/// Formats a duration for people, as [`parse_duration`] reads it: with milliseconds below ten seconds, in whole seconds above.
pub fn format_duration(duration: Duration) -> String {
    let mut ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if ms >= 10_000 {
        ms -= ms % 1_000;
    }
    let mut text = String::new();
    for (unit, unit_ms) in UNITS {
        if ms >= unit_ms {
            text += &format!("{}{unit}", ms / unit_ms);
            ms %= unit_ms;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Formats Unix milliseconds as `2025-06-18T15:00:00.000Z`.
pub fn rfc3339(unix_ms: u64) -> String {
    let (seconds, ms) = (unix_ms / 1_000, unix_ms % 1_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_durations_are_parsed() {
        for (text, ms) in [
            ("500ms", 500),
            ("5s", 5_000),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("1d", 86_400_000),
            ("1m5s20ms", 65_020),
            ("0s", 0),
            ("90s", 90_000),
        ] {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
    }

    #[test]
    fn a_number_without_a_unit_is_refused_with_a_hint() {
        let message = parse_duration("5000").unwrap_err().to_string();
        assert!(message.contains("5000s") && message.contains("5000ms"), "{message}");
    }

    #[test]
    fn invalid_durations_are_refused() {
        for text in [
            "",
            "s",
            "5x",
            "5 s",
            " 5s",
            "-5s",
            "1.5s",
            "5S",
            "5s5s",
            "5ms1s",
            "1h30",
            "+5s",
            "5s ",
            "5µs",
            "99999999999999999999s",
            "999999999999999999d",
        ] {
            let message = parse_duration(text).unwrap_err().to_string();
            assert!(message.contains("1h30m"), "{text}: {message}");
        }
    }

    #[test]
    fn formatted_durations_can_be_parsed() {
        for (ms, text) in
            [(0, "0s"), (999, "999ms"), (2_710, "2s710ms"), (12_345, "12s"), (5_400_000, "1h30m")]
        {
            assert_eq!(format_duration(Duration::from_millis(ms)), text);
            parse_duration(text).unwrap();
        }
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
