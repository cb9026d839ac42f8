//! Formats points in time: RFC 3339 in UTC with milliseconds for JSON, local time for people.

use jiff::Timestamp;
use jiff::tz::TimeZone;
pub(crate) use tenure::text::rfc3339;
use tenure::{Clock, Moment};

/// The current time for display only: no decision depends on it.
pub(crate) fn now() -> String {
    rfc3339(unix_ms())
}

/// The current wall-clock time in Unix milliseconds.
pub(crate) fn unix_ms() -> u64 {
    Clock::boot().minting_micros() / 1_000
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
}
