//! Time zones by their names.

use jiff::tz::TimeZone;
use tenure::{Error, Result};

/// This machine's own, as the default of `--timezone` is called.
const LOCAL: &str = "local";

/// The time zone that `--timezone` names; without a name, that of this machine.
pub(crate) fn find(name: Option<&str>) -> Result<TimeZone> {
    let Some(name) = name.filter(|name| *name != LOCAL) else {
        return TimeZone::try_system().map_err(|error| {
            Error::invalid(
                "the time zone of this machine is not known: give --timezone, as in 'UTC'",
            )
            .caused_by(error)
        });
    };
    // The one zone that needs no database; without one the message would send people to look for a typing error.
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
