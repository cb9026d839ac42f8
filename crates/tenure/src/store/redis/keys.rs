//! The keys and channels of a store. All of them begin with the store's key prefix, which is empty unless the application sets
//! one.
//!
//! | | without a prefix | with the prefix `app:` |
//! |---|---|---|
//! | the lease `job` | `job` | `app:job` |
//! | its companion | `tenure:{job}` | `app:tenure:{app:job}` |
//! | its channel | `tenure:wake:job` | `app:tenure:wake:app:job` |
//! | the sets and the record of the server | `tenure:index` | `app:tenure:index` |
//!
//! The scripts know nothing of the prefix: they write the key of a lease into the sets and append it to the channel, so it is in
//! these names twice. The braces put the companion in the same hash slot as the lease.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::lease::{Name, OWN_PREFIX, check};

const MAX_PREFIX_BYTES: usize = 100;
/// The maximum length of a lease's key: `index.lua` lists no longer ones.
const MAX_KEY_BYTES: usize = 320;

/// The parts around the key of a lease in the key of its companion.
const COMPANION: [&str; 2] = ["tenure:{", "}"];

/// What every key and channel of a store begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyPrefix(Option<Arc<str>>);

impl KeyPrefix {
    /// Checks a prefix that the application has chosen.
    pub(super) fn new(prefix: &str) -> Result<Self> {
        check("a key prefix", prefix, MAX_PREFIX_BYTES, "")?;
        if prefix.starts_with(OWN_PREFIX) {
            return Err(Error::invalid(format!(
                "the key prefix '{prefix}' begins with '{OWN_PREFIX}', which is kept for Tenure's own keys: choose another"
            )));
        }
        Ok(KeyPrefix(Some(prefix.into())))
    }

    pub(super) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The key of a lease.
    pub(super) fn lease(&self, name: &Name) -> String {
        format!("{}{name}", self.as_str())
    }

    /// The key of a lease's companion, which holds the rest of the lease.
    pub(super) fn companion(&self, name: &Name) -> String {
        let (prefix, [before, after]) = (self.as_str(), COMPANION);
        format!("{prefix}{before}{prefix}{name}{after}")
    }

    /// The parts of that key, for a caller that joins thousands of them.
    pub(super) fn companion_parts<'a>(&'a self, name: &'a [u8]) -> [&'a [u8]; 5] {
        let (prefix, [before, after]) = (self.as_str().as_bytes(), COMPANION.map(str::as_bytes));
        [prefix, before, prefix, name, after]
    }

    /// What the scripts put before the key of a lease to get its channel. Channels are global to all databases, so it contains
    /// the number of a database other than 0.
    pub(super) fn wake(&self, database: u32) -> String {
        let prefix = self.as_str();
        match database {
            0 => format!("{prefix}tenure:wake:"),
            other => format!("{prefix}tenure:wake@{other}:"),
        }
    }

    /// Checks that a lease of this name can be listed: its key must not be too long.
    pub(super) fn check_length(&self, name: &Name) -> Result<()> {
        let (prefix, length) = (self.as_str(), name.as_str().len());
        if prefix.len() + length <= MAX_KEY_BYTES {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the key prefix '{prefix}' and the name '{name}' have more than {MAX_KEY_BYTES} bytes together: choose shorter ones"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn every_key_and_channel_begins_with_the_prefix() {
        let name = Name::new("job").unwrap();
        let (none, app) = (KeyPrefix::default(), KeyPrefix::new("app:").unwrap());
        assert_eq!([none.lease(&name), app.lease(&name)], ["job", "app:job"]);
        assert_eq!(none.companion(&name), "tenure:{job}");
        assert_eq!(app.companion(&name), "app:tenure:{app:job}");
        assert_eq!(app.companion_parts(b"job").concat(), app.companion(&name).as_bytes());
        assert_eq!([none.wake(0), none.wake(3)], ["tenure:wake:", "tenure:wake@3:"]);
        assert_eq!([app.wake(0), app.wake(3)], ["app:tenure:wake:", "app:tenure:wake@3:"]);
    }

    #[test]
    fn a_prefix_has_the_bytes_of_a_name() {
        for (prefix, says) in [
            ("", "a key prefix must not be empty"),
            ("a b", "a key prefix may contain only"),
            ("a*", "a key prefix may contain only"),
            ("{a}", "a key prefix may contain only"),
            ("tenure:", "is kept for Tenure's own keys"),
            (&"x".repeat(101), "at most 100 bytes"),
        ] {
            let error = KeyPrefix::new(prefix).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains(says), "{prefix}: {error}");
        }
    }

    #[test]
    fn a_key_that_could_not_be_listed_is_refused() {
        let prefix = KeyPrefix::new(&"p".repeat(100)).unwrap();
        let named = |length| Name::stored(&"n".repeat(length)).unwrap();
        assert!(prefix.check_length(&named(220)).is_ok());
        let error = prefix.check_length(&named(221)).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
        assert!(KeyPrefix::default().check_length(&named(320)).is_ok());
    }
}
