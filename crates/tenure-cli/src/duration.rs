//! Durations as they are typed and shown: `500ms` `5s` `2m` `1h30m` `1d`.

use std::time::Duration;

use tenure::{Error, Result};

/// What units there are, in milliseconds, the greatest first: that is also their order in the text.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

const TYPE: &str = "type it like 500ms, 5s, 2m, 1h30m or 1d";

/// Reads a duration. A bare number is refused: half of the world takes it for seconds.
pub(crate) fn parse(text: &str) -> Result<Duration> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::invalid(format!(
            "'{text}' has no unit: type {text}s for seconds or {text}ms for milliseconds"
        )));
    }
    let wrong = || Error::invalid(format!("'{}' is no duration: {TYPE}", text.escape_debug()));
    let mut total: u64 = 0;
    let mut units = UNITS.iter();
    let mut rest = text;
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, behind) = rest.split_at(digits);
        let letters = behind.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, behind) = behind.split_at(letters);
        // Each unit once, and in their order: what is left of the list are the smaller ones.
        let (_, worth) = units.find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let ms = number.checked_mul(*worth).ok_or_else(wrong)?;
        total = total.checked_add(ms).ok_or_else(wrong)?;
        rest = behind;
        if rest.is_empty() {
            return Ok(Duration::from_millis(total));
        }
    }
}

/// A duration as [`parse`] reads it, to the millisecond below ten seconds and to the second above.
pub(crate) fn shown(duration: Duration) -> String {
    let mut ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if ms >= 10_000 {
        ms -= ms % 1_000;
    }
    let mut text = String::new();
    for (unit, worth) in UNITS {
        if ms >= worth {
            text += &format!("{}{unit}", ms / worth);
            ms %= worth;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// A measured duration: `2.5s`; whole seconds from a minute on.
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
    fn what_is_typed_is_read() {
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
    fn a_bare_number_is_refused_with_what_to_type() {
        let said = parse("5000").unwrap_err().to_string();
        assert!(said.contains("5000s") && said.contains("5000ms"), "{said}");
    }

    #[test]
    fn everything_else_is_refused() {
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
            let said = parse(text).unwrap_err().to_string();
            assert!(said.contains("1h30m"), "{text}: {said}");
        }
    }

    #[test]
    fn what_is_shown_reads_back() {
        for (ms, text) in
            [(0, "0s"), (999, "999ms"), (2_710, "2s710ms"), (12_345, "12s"), (5_400_000, "1h30m")]
        {
            assert_eq!(shown(Duration::from_millis(ms)), text);
            parse(text).unwrap();
        }
    }
}
