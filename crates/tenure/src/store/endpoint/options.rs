//! The options of a store URL, with a reader for each type of value.

use std::borrow::Cow;
use std::fmt;
#[cfg(feature = "redis")]
use std::path::PathBuf;
#[cfg(feature = "redis")]
use std::time::Duration;

use crate::error::{Error, Result};

/// The longest duration that an option accepts: a day.
#[cfg(feature = "redis")]
pub(in crate::store) const MAX_DURATION: Duration = Duration::from_secs(86_400);

/// The options of one URL. Each reader returns `None` for an option that is not given.
#[derive(Default)]
pub(in crate::store) struct Options<'a>(Vec<OptionEntry<'a>>);

/// One option. A value of the URL is percent-encoded, a value of a variable is not.
// The memory store, the only one without a feature, takes no options: no value is read.
#[cfg_attr(not(any(feature = "file", feature = "redis")), allow(dead_code))]
struct OptionEntry<'a> {
    key: &'a str,
    value: Cow<'a, str>,
    /// The variable that set the option; `None` for an option of the URL.
    variable: Option<&'static str>,
}

/// The keys only: a value may be a secret.
impl fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|entry| entry.key)).finish()
    }
}

impl<'a> Options<'a> {
    /// Adds an option of the URL.
    pub(super) fn add(&mut self, key: &'a str, value: &'a str) -> Result<()> {
        if self.0.iter().any(|entry| entry.key == key) {
            return Err(Error::invalid(format!("option '{key}' is given twice")));
        }
        self.0.push(OptionEntry { key, value: Cow::Borrowed(value), variable: None });
        Ok(())
    }

    /// An option that is on with `1` and off with `0`. A variable may also say `true` or `false`.
    #[cfg(any(feature = "file", test))]
    pub(in crate::store) fn flag(&self, key: &str) -> Result<Option<bool>> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match (&*entry.value, entry.variable) {
            ("1", _) | ("true", Some(_)) => Ok(Some(true)),
            ("0", _) | ("false", Some(_)) => Ok(Some(false)),
            (other, variable) => Err(Error::invalid(format!(
                "'{}' is 0 or 1, not '{}'",
                variable.unwrap_or(key),
                other.escape_debug()
            ))),
        }
    }

    #[cfg(any(feature = "file", feature = "redis", test))]
    fn entry(&self, key: &str) -> Option<&OptionEntry<'a>> {
        self.0.iter().find(|entry| entry.key == key)
    }
}

#[cfg(feature = "redis")]
impl<'a> Options<'a> {
    /// Sets an option that the URL does not have to the value of a variable.
    pub(super) fn add_from_variable(
        &mut self,
        key: &'static str,
        value: String,
        variable: &'static str,
    ) {
        if !self.is_given(key) {
            let value = Cow::Owned(value);
            self.0.push(OptionEntry { key, value, variable: Some(variable) });
        }
    }

    /// Whether the option has a value.
    pub(in crate::store) fn is_given(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// The variable that set this option.
    pub(super) fn variable(&self, key: &str) -> Option<&'static str> {
        self.entry(key)?.variable
    }

    /// The options as the URL gives them, with a question mark; empty if there are none.
    pub(super) fn query(&self) -> String {
        let from_url = self.0.iter().filter(|entry| entry.variable.is_none());
        let options: Vec<String> =
            from_url.map(|entry| format!("{}={}", entry.key, entry.value)).collect();
        if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) }
    }

    /// Any text.
    pub(in crate::store) fn text(&self, key: &str) -> Result<Option<String>> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match entry.variable {
            Some(_) => Ok(Some(entry.value.clone().into_owned())),
            None => percent_decoded(&entry.value).map(Some).map_err(|reason| {
                Error::invalid(format!("the option {key} cannot be read: {reason}"))
            }),
        }
    }

    /// The path of a file.
    pub(in crate::store) fn path(&self, key: &str) -> Result<Option<PathBuf>> {
        match self.text(key)? {
            Some(path) if path.is_empty() => {
                Err(Error::invalid(format!("{} takes the path of a file", self.origin(key))))
            }
            path => Ok(path.map(PathBuf::from)),
        }
    }

    /// A duration: `12s`, `500ms`, `2m`, `1h`.
    pub(in crate::store) fn duration(&self, key: &str) -> Result<Option<Duration>> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        match parse_duration(&text) {
            Some(duration) => Ok(Some(duration)),
            None => Err(Error::invalid(format!(
                "{} takes a duration of at most a day: 12s, 500ms, 2m, 0s",
                self.origin(key)
            ))),
        }
    }

    /// Where the value of an option comes from, for messages.
    fn origin(&self, key: &str) -> String {
        match self.variable(key) {
            Some(variable) => format!("the variable {variable}"),
            None => format!("the option {key}"),
        }
    }
}

#[cfg(feature = "redis")]
fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let scale = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let duration = Duration::from_millis(count.parse::<u64>().ok()?.checked_mul(scale)?);
    (duration <= MAX_DURATION).then_some(duration)
}

#[cfg(feature = "kubernetes")]
impl Options<'_> {
    /// Any text that is not empty.
    pub(in crate::store) fn filled_text(&self, key: &str) -> Result<Option<String>> {
        let Some(entry) = self.0.iter().find(|entry| entry.key == key) else { return Ok(None) };
        match percent_decoded(&entry.value) {
            Ok(text) if text.is_empty() => {
                Err(Error::invalid(format!("the option {key} needs a value")))
            }
            Ok(text) => Ok(Some(text)),
            Err(reason) => {
                Err(Error::invalid(format!("the option {key} cannot be read: {reason}")))
            }
        }
    }
}

/// Decodes percent-encoding, or says why it cannot. The reason contains no part of `text`, which may be a password.
#[cfg(any(feature = "redis", feature = "kubernetes"))]
pub(super) fn percent_decoded(text: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err("a '%' is not followed by two hexadecimal digits");
        };
        bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
    }
    let text = String::from_utf8(bytes).map_err(|_| "what is percent-encoded is not UTF-8")?;
    if text.contains('\0') { Err("it holds a NUL") } else { Ok(text) }
}

/// `text` for a part of a URL: every byte that could end the part is percent-encoded.
#[cfg(feature = "redis")]
pub(in crate::store) fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'~' | b'-' => {
                encoded.push(char::from(byte));
            }
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::super::StoreUrl;

    #[test]
    fn a_flag_is_0_or_1() {
        let options = StoreUrl::parse("x:?a=1&b=0&c=true").unwrap().options(&["a", "b", "c"]);
        let options = options.unwrap();
        assert_eq!(options.flag("a"), Ok(Some(true)));
        assert_eq!(options.flag("b"), Ok(Some(false)));
        assert_eq!(options.flag("c").unwrap_err().to_string(), "'c' is 0 or 1, not 'true'");
        assert_eq!(options.flag("d"), Ok(None));
    }

    #[cfg(feature = "redis")]
    #[test]
    fn typed_values_are_decoded_and_checked() {
        use std::path::Path;
        use std::time::Duration;

        const KNOWN: &[&str] = &["text", "path", "wait", "empty", "bad"];
        let url = StoreUrl::parse("x:?text=a%20b%26&path=/a%2Fb&wait=2m&empty&bad=%f").unwrap();
        let options = url.options(KNOWN).unwrap();
        assert_eq!(options.text("text").unwrap().as_deref(), Some("a b&"));
        assert_eq!(options.path("path").unwrap().as_deref(), Some(Path::new("/a/b")));
        assert_eq!(options.duration("wait"), Ok(Some(Duration::from_secs(120))));
        assert_eq!(options.text("missing"), Ok(None));
        for (error, says) in [
            (options.path("empty").unwrap_err(), "the option empty takes the path of a file"),
            (options.text("bad").unwrap_err(), "the option bad cannot be read: a '%'"),
            (options.duration("path").unwrap_err(), "the option path takes a duration"),
        ] {
            assert!(error.to_string().starts_with(says), "{error}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn encoded_text_is_decoded_again() {
        use super::{percent_decoded, percent_encoded};

        assert_eq!(percent_encoded("a-b_c.d~9"), "a-b_c.d~9");
        assert_eq!(percent_encoded("u@h:/?#%é"), "u%40h%3A%2F%3F%23%25%C3%A9");
        assert_eq!(percent_decoded(&percent_encoded("u@h:/?#%é")), Ok("u@h:/?#%é".to_owned()));
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_duration_has_a_unit_and_is_at_most_a_day() {
        use std::time::Duration;

        use super::parse_duration;

        for (text, millis) in [("0s", 0), ("500ms", 500), ("12s", 12_000), ("24h", 86_400_000)] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "12", "s", "-1s", "+1s", "1.5s", "1 s", "25h", "1d", "99999999999999999h"]
        {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
