//! Durations on the command line and in messages: the library parses and formats them, this adds the form of a measured one.

use std::time::Duration;

pub(crate) use tenure::text::{format_duration as shown, parse_duration as parse};

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
    fn a_measured_duration_has_tenths_below_a_minute() {
        assert_eq!(rounded(Duration::from_millis(2_549)), "2.5s");
        assert_eq!(rounded(Duration::from_millis(90_999)), "1m30s");
    }
}
