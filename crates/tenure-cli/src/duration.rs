//! Parses and formats durations: `500ms` `5s` `2m` `1h30m` `1d`.

use std::time::Duration;

use tenure::{Error, Result};

/// The units in milliseconds, the greatest first: also their order in the text.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

const SYNTAX_HINT: &str = "type it like 500ms, 5s, 2m, 1h30m or 1d";

/// Parses a duration. A number without a unit is refused: many tools take it for seconds, others for milliseconds.
pub(crate) fn parse(text: &str) -> Result<Duration> {
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

/// Formats a duration as [`parse`] reads it: with milliseconds below ten seconds, in whole seconds above.
pub(crate) fn shown(duration: Duration) -> String {
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

/// Formats a measured duration: `2.5s`; in whole seconds from a minute on.
pub(crate) fn rounded(duration: Duration) -> String {
    match duration.as_secs() {
        ..60 => format!("{:.1}s", duration.as_secs_f64()),
        seconds => shown(Duration::from_secs(seconds)),
    }
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
            assert_eq!(parse(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
    }

    #[test]
    fn a_number_without_a_unit_is_refused_with_a_hint() {
        let message = parse("5000").unwrap_err().to_string();
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
            let message = parse(text).unwrap_err().to_string();
            assert!(message.contains("1h30m"), "{text}: {message}");
        }
    }

    #[test]
    fn formatted_durations_can_be_parsed() {
        for (ms, text) in
            [(0, "0s"), (999, "999ms"), (2_710, "2s710ms"), (12_345, "12s"), (5_400_000, "1h30m")]
        {
            assert_eq!(shown(Duration::from_millis(ms)), text);
            parse(text).unwrap();
        }
    }
}
