//! The one file in which every leader of the demo leaves its traces, for the judge; in a fleet there is one for each shard.
//!
//! One line, one `write`, always at the end: the order of the lines is the order in which things
//! happened, whatever the processes believed. The stamp is the boot clock's, which all of them
//! share.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::str::FromStr;

use tenure::{Clock, Leadership, Moment};

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JournalAction {
    /// A term's work began, at this count.
    Lead,
    /// This count was reached; written only after it was saved and the store said so.
    Count,
    /// The work stopped in good order: told to, and with nothing half done. No effect.
    End,
    /// The work stopped because the term was lost. No effect.
    Lost,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JournalLine {
    pub(super) at: u64,
    pub(super) node: String,
    pub(super) token: u64,
    pub(super) deed: JournalAction,
    pub(super) count: u64,
}

impl JournalLine {
    /// Whether only a leader may do it.
    pub(super) fn is_effect(&self) -> bool {
        matches!(self.deed, JournalAction::Lead | JournalAction::Count)
    }
}

impl fmt::Display for JournalLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deed = match self.deed {
            JournalAction::Lead => "lead",
            JournalAction::Count => "count",
            JournalAction::End => "end",
            JournalAction::Lost => "lost",
        };
        write!(f, "{} {} {} {deed} {}", self.at, self.node, self.token, self.count)
    }
}

impl FromStr for JournalLine {
    type Err = ();

    fn from_str(text: &str) -> Result<JournalLine, ()> {
        let fields: Vec<&str> = text.split(' ').collect();
        let [at, node, token, deed, count] = fields[..] else { return Err(()) };
        let number = |text: &str| text.parse::<u64>().map_err(|_| ());
        let deed = match deed {
            "lead" => JournalAction::Lead,
            "count" => JournalAction::Count,
            "end" => JournalAction::End,
            "lost" => JournalAction::Lost,
            _ => return Err(()),
        };
        let (at, token, count) = (number(at)?, number(token)?, number(count)?);
        Ok(JournalLine { at, node: node.to_owned(), token, deed, count })
    }
}

/// The file, opened by one process.
pub(super) struct Journal {
    file: File,
    node: String,
    clock: Clock,
}

impl Journal {
    /// Opens it for writing at the end.
    pub(super) fn append(path: &Path, node: &str) -> io::Result<Journal> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        Ok(Journal { file, node: node.to_owned(), clock: Clock::boot() })
    }

    /// Writes down what only a leader may do, unless the term is over; returns when it was done.
    pub(super) fn effect(
        &self,
        leadership: &Leadership,
        deed: JournalAction,
        count: u64,
    ) -> io::Result<Option<Moment>> {
        let (at, line) = self.line(leadership.token().get(), deed, count);
        // The last thing before the effect: a process that was frozen up to here writes nothing.
        if !leadership.is_valid() {
            return Ok(None);
        }
        (&self.file).write_all(&line)?;
        Ok(Some(at))
    }

    /// Writes down how the work of a term ended.
    pub(super) fn end(
        &self,
        leadership: &Leadership,
        deed: JournalAction,
        count: u64,
    ) -> io::Result<()> {
        self.write(leadership.token().get(), deed, count)
    }

    /// Writes down what was done in this term, whether it is over or not: for those who are ended by somebody else in time.
    pub(super) fn write(&self, token: u64, deed: JournalAction, count: u64) -> io::Result<()> {
        let (_, line) = self.line(token, deed, count);
        (&self.file).write_all(&line)
    }

    fn line(&self, token: u64, deed: JournalAction, count: u64) -> (Moment, Vec<u8>) {
        let at = self.clock.now();
        let node = self.node.clone();
        let line = JournalLine { at: at.as_nanos(), node, token, deed, count };
        (at, format!("{line}\n").into_bytes())
    }
}

/// Every line of the file; none if there is no file yet.
pub(super) fn read(path: &Path) -> tenure::Result<Vec<JournalLine>> {
    lines(path, &text(path)?)
}

/// The same while it is written: a line that is not whole yet is left out.
pub(super) fn so_far(path: &Path) -> tenure::Result<Vec<JournalLine>> {
    let text = text(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    lines(path, whole)
}

fn text(path: &Path) -> tenure::Result<String> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read.map_err(|error| corrupt(path, &error.to_string())),
    }
}

fn lines(path: &Path, text: &str) -> tenure::Result<Vec<JournalLine>> {
    let line =
        |text: &str| text.parse().map_err(|()| corrupt(path, &format!("cannot be read: {text:?}")));
    text.lines().map(line).collect()
}

fn corrupt(path: &Path, what: &str) -> tenure::Error {
    tenure::Error::corrupt(format!("{}: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back_and_half_a_line_does_not() {
        let text = "123 node-1 77 count 5";
        assert_eq!(text.parse::<JournalLine>().unwrap().to_string(), text);
        for bad in ["", "123 node-1 77 count", "123 node-1 77 dream 5", "x node-1 77 count 5"] {
            assert!(bad.parse::<JournalLine>().is_err(), "{bad}");
        }
    }
}
