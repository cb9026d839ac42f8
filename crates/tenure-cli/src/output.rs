//! Writes results to stdout and errors to stderr, as text or JSON.

use std::io::{self, Write};

use serde::Serialize;
use tenure::Error;
use tenure::store::redact_url;

use crate::exit::Exit;

/// Writes text unchanged. A reader that has closed the pipe (`| head`) is not an error.
pub(crate) fn raw(text: &str) -> tenure::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::denied(format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes one line of data.
pub(crate) fn line(text: impl AsRef<str>) -> tenure::Result<()> {
    raw(&format!("{}\n", text.as_ref()))
}

/// Untrusted text, with control characters escaped so that they have no effect on a terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        // These three are harmless, and common in Tenure's own messages.
        if matches!(c, '\'' | '"' | '\\') { safe.push(c) } else { safe.extend(c.escape_debug()) }
    }
    safe
}

/// Removes passwords from `text`, which may quote some of `values`, verbatim or escaped.
pub(crate) fn without_passwords(mut text: String, values: &[String]) -> String {
    for value in values.iter().filter(|value| redact_url(value) != **value) {
        let safe = redact_url(value);
        text = text.replace(value, &safe).replace(&value.escape_debug().to_string(), &safe);
    }
    text
}

/// Writes one JSON object on its own line.
pub(crate) fn json(value: &impl Serialize) -> tenure::Result<()> {
    let text = serde_json::to_string(value)
        .map_err(|error| Error::invalid("the answer cannot be written as JSON").caused_by(error))?;
    line(text)
}

#[derive(Serialize)]
struct ErrorJson<'a> {
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    kind: &'static str,
    message: &'a str,
}

/// Prints an error to stderr, and returns its exit code.
pub(crate) fn report_error(error: &Error, json: bool) -> Exit {
    report_error_with_prefix("", error, json)
}

/// Prints an error to stderr with a prefix that names the source of the line, and returns its exit code; JSON has no prefix.
pub(crate) fn report_error_with_prefix(prefix: &str, error: &Error, json: bool) -> Exit {
    let prefix = if json { "" } else { prefix };
    print_error(error.kind().as_str(), &format!("{prefix}{error}"), json);
    error.kind().into()
}

/// Prints an error message of the given kind to stderr.
pub(crate) fn print_error(kind: &'static str, message: &str, json: bool) {
    let failed = ErrorJson { error: ErrorBody { kind, message } };
    let text = match serde_json::to_string(&failed) {
        Ok(text) if json => text,
        _ => message.to_owned(),
    };
    // If stderr is closed, there is nowhere to report that.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::{printable, without_passwords};

    #[test]
    fn a_password_is_hidden_verbatim_and_escaped() {
        let value = "redis://:ge\"heim@h".to_owned();
        let text = format!("invalid '{value}': '{}' is none", value.escape_debug());
        let safe = without_passwords(text, &[value, "invalid".to_owned()]);
        assert_eq!(safe, "invalid 'redis://:***@h': 'redis://:***@h' is none");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("it's \"ö\" \\"), "it's \"ö\" \\");
        assert_eq!(printable("a\x1b[2J\n\u{202e}b"), "a\\u{1b}[2J\\n\\u{202e}b");
    }
}
