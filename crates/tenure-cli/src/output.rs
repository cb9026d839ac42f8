//! What goes to stdout, and how an error is told.

use std::io::{self, Write};

use serde::Serialize;
use tenure::Error;
use tenure::store::shown;

use crate::exit::Exit;

/// Text as it is. A reader that has gone away (`| head`) wants no more: that is no failure.
pub(crate) fn raw(text: &str) -> tenure::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::denied(format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// One line of data.
pub(crate) fn line(text: impl AsRef<str>) -> tenure::Result<()> {
    raw(&format!("{}\n", text.as_ref()))
}

/// `text` from a stranger, with whatever would act on a terminal written out.
pub(crate) fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        // Those three do nothing, and are in many a sentence of our own.
        if matches!(c, '\'' | '"' | '\\') { safe.push(c) } else { safe.extend(c.escape_debug()) }
    }
    safe
}

/// `text`, which may quote some of `values` as they are or written out, without their passwords.
pub(crate) fn without_passwords(mut text: String, values: &[String]) -> String {
    for value in values.iter().filter(|value| shown(value) != **value) {
        let safe = shown(value);
        text = text.replace(value, &safe).replace(&value.escape_debug().to_string(), &safe);
    }
    text
}

/// One JSON object on a line of its own.
pub(crate) fn json(value: &impl Serialize) -> tenure::Result<()> {
    let text = serde_json::to_string(value)
        .map_err(|error| Error::invalid("the answer cannot be written as JSON").caused_by(error))?;
    line(text)
}

#[derive(Serialize)]
struct Failed<'a> {
    error: StdoutState<'a>,
}

#[derive(Serialize)]
struct StdoutState<'a> {
    kind: &'static str,
    message: &'a str,
}

/// Tells of an error on stderr and gives its exit code.
pub(crate) fn failed(error: &Error, json: bool) -> Exit {
    failed_beside("", error, json)
}

/// The same where a line has to say whose it is; in JSON it needs not.
pub(crate) fn failed_beside(prefix: &str, error: &Error, json: bool) -> Exit {
    let prefix = if json { "" } else { prefix };
    tell(error.kind().as_str(), &format!("{prefix}{error}"), json);
    error.kind().into()
}

/// The same for a message that is not yet an [`Error`].
pub(crate) fn tell(kind: &'static str, message: &str, json: bool) {
    let failed = Failed { error: StdoutState { kind, message } };
    let text = match serde_json::to_string(&failed) {
        Ok(text) if json => text,
        _ => message.to_owned(),
    };
    // Nothing is left to tell it to if stderr is gone.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::{printable, without_passwords};

    #[test]
    fn a_password_is_hidden_however_it_is_quoted() {
        let value = "redis://:ge\"heim@h".to_owned();
        let text = format!("invalid '{value}': '{}' is none", value.escape_debug());
        let safe = without_passwords(text, &[value, "invalid".to_owned()]);
        assert_eq!(safe, "invalid 'redis://:***@h': 'redis://:***@h' is none");
    }

    #[test]
    fn what_acts_on_a_terminal_is_written_out() {
        assert_eq!(printable("it's \"ö\" \\"), "it's \"ö\" \\");
        assert_eq!(printable("a\x1b[2J\n\u{202e}b"), "a\\u{1b}[2J\\n\\u{202e}b");
    }
}
