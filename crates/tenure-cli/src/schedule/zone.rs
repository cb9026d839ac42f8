//! Time zones by name.

use jiff::tz::TimeZone;
use tenure::{Error, Result};

/// The default of `--timezone`: the time zone of this machine.
const LOCAL: &str = "local";

/// The time zone that `--timezone` names; without a name, the time zone of this machine.
pub(crate) fn find(name: Option<&str>) -> Result<TimeZone> {
    let Some(name) = name.filter(|name| *name != LOCAL) else {
        let has_tz = std::env::var_os("TZ").is_some_and(|zone| !zone.is_empty());
        return local(TimeZone::try_system().ok(), has_tz);
    };
    // UTC needs no database. Without a database the error would otherwise suggest a typing error.
    if name.eq_ignore_ascii_case("UTC") {
        return Ok(TimeZone::UTC);
    }
    TimeZone::get(name).map_err(|error| {
        let shown = name.escape_debug();
        let sentence = if jiff::tz::db().is_definitively_empty() {
            format!(
                "--timezone '{shown}': this machine has no time zone database: install tzdata, or give 'UTC'"
            )
        } else {
            format!("--timezone '{shown}' is not known here: type it like 'Europe/Berlin' or 'UTC'")
        };
        Error::invalid(sentence).caused_by(error)
    })
}

/// The time zone of this machine; `has_tz` if the variable TZ names one.
fn local(found: Option<TimeZone>, has_tz: bool) -> Result<TimeZone> {
    match found {
        Some(zone) => Ok(zone),
        None if has_tz => Err(Error::invalid(
            "the variable TZ names no time zone that is known here: give --timezone, as in 'UTC', or install tzdata",
        )),
        // A machine that does not say, like a small container, means UTC everywhere else too.
        None => Ok(TimeZone::UTC),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_time_zone_uses_utc_unless_tz_names_one() {
        assert_eq!(local(None, false).unwrap(), TimeZone::UTC);
        assert!(local(None, true).unwrap_err().to_string().contains("TZ"));
        let zone = TimeZone::get("Asia/Tokyo").unwrap();
        assert_eq!(local(Some(zone.clone()), true).unwrap(), zone);
    }
}
