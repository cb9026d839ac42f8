//! The journal of the demo: a file to which every leader appends its effects, for the checker. A fleet has one for each shard.
//!
//! Each line is one `write` within one page at the end of the file, so the order of the lines is the order in which the effects happened,
//! regardless of what the processes believed. The timestamps are of the boot clock, which all processes share.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::str::FromStr;

use tenure::{Clock, Leadership, Moment};

/// The size of every line. It divides the size of a page: SIGKILL cuts a write short where the next page begins.
const LINE_BYTES: usize = 128;

/// What a journal line records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JournalAction {
    /// The work of a term started, at this count.
    Lead,
    /// The leader reached this count; written only after the store has acknowledged the checkpoint.
    Count,
    /// The work stopped cleanly: on request, and with no count half done. Not an effect.
    End,
    /// The work stopped because the term was lost. Not an effect.
    Lost,
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JournalLine {
    pub(super) at: u64,
    pub(super) node: String,
    pub(super) token: u64,
    pub(super) action: JournalAction,
    pub(super) count: u64,
}

impl JournalLine {
    /// Whether only a leader may do this.
    pub(super) fn is_effect(&self) -> bool {
        matches!(self.action, JournalAction::Lead | JournalAction::Count)
    }
}

impl fmt::Display for JournalLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            JournalAction::Lead => "lead",
            JournalAction::Count => "count",
            JournalAction::End => "end",
            JournalAction::Lost => "lost",
        };
        write!(f, "{} {} {} {action} {}", self.at, self.node, self.token, self.count)
    }
}

impl FromStr for JournalLine {
    type Err = ();

    fn from_str(text: &str) -> Result<JournalLine, ()> {
        let fields: Vec<&str> = text.trim_end().split(' ').collect();
        let [at, node, token, action, count] = fields[..] else { return Err(()) };
        let number = |text: &str| text.parse::<u64>().map_err(|_| ());
        let action = match action {
            "lead" => JournalAction::Lead,
            "count" => JournalAction::Count,
            "end" => JournalAction::End,
            "lost" => JournalAction::Lost,
            _ => return Err(()),
        };
        let (at, token, count) = (number(at)?, number(token)?, number(count)?);
        Ok(JournalLine { at, node: node.to_owned(), token, action, count })
    }
}

/// The journal file, opened by one process.
pub(super) struct Journal {
    file: File,
    node: String,
    clock: Clock,
}

impl Journal {
    /// Opens the journal for appending.
    pub(super) fn append(path: &Path, node: &str) -> io::Result<Journal> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        Ok(Journal { file, node: node.to_owned(), clock: Clock::boot() })
    }

    /// Writes an effect, which only a leader may do, unless the term is over. Returns when it was written.
    pub(super) fn effect(
        &self,
        leadership: &Leadership,
        action: JournalAction,
        count: u64,
    ) -> io::Result<Option<Moment>> {
        let (at, line) = self.line(leadership.token().get(), action, count);
        // The last check before the effect: a process that was frozen until here writes nothing.
        if !leadership.is_valid() {
            return Ok(None);
        }
        (&self.file).write_all(&line)?;
        Ok(Some(at))
    }

    /// Writes how the work of a term ended.
    pub(super) fn end(
        &self,
        leadership: &Leadership,
        action: JournalAction,
        count: u64,
    ) -> io::Result<()> {
        self.write(leadership.token().get(), action, count)
    }

    /// Writes a line without checking that the term is valid: for workers, which the guard kills in time.
    pub(super) fn write(&self, token: u64, action: JournalAction, count: u64) -> io::Result<()> {
        let (_, line) = self.line(token, action, count);
        (&self.file).write_all(&line)
    }

    fn line(&self, token: u64, action: JournalAction, count: u64) -> (Moment, Vec<u8>) {
        let at = self.clock.now();
        let node = self.node.clone();
        let line = JournalLine { at: at.as_nanos(), node, token, action, count };
        let line = line.to_string();
        (at, format!("{line:<width$}\n", width = LINE_BYTES - 1).into_bytes())
    }
}

/// Reads every line of the file; none if there is no file yet.
pub(super) fn read(path: &Path) -> tenure::Result<Vec<JournalLine>> {
    lines(path, &text(path)?)
}

/// Like [`read`], while the file is being written: skips a line that is not complete yet.
pub(super) fn read_complete(path: &Path) -> tenure::Result<Vec<JournalLine>> {
    let text = text(path)?;
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    lines(path, complete)
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
    fn a_complete_line_is_parsed_and_a_partial_line_is_refused() {
        let text = "123 node-1 77 count 5";
        assert_eq!(text.parse::<JournalLine>().unwrap().to_string(), text);
        for bad in ["", "123 node-1 77 count", "123 node-1 77 dream 5", "x node-1 77 count 5"] {
            assert!(bad.parse::<JournalLine>().is_err(), "{bad}");
        }
    }
}
