//! The guard's log lines: queued, and written to stderr by a thread of their own.
//!
//! The guard has deadlines to keep. A reader that does not read (a full pipe, a stopped `tee`) must not hold it up, and one
//! that has gone must not end it. So nothing in the guard writes to stderr itself: clippy denies `eprintln!` and `println!`
//! in this module tree, and a panic is logged here too.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure::CandidateId;

use crate::logs::queue::{self, LineWriter, Queue};

/// How the guard logs, as the leader was told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Log {
    pub(crate) json: bool,
    /// Warnings are left out (`-q`).
    pub(crate) only_errors: bool,
}

impl Log {
    /// Every line, as text.
    pub(crate) const TEXT: Log = Log { json: false, only_errors: false };
}

/// The queue of this process; unset where no guard runs.
static LINES: OnceLock<LineWriter> = OnceLock::new();

/// Starts the writer thread, and logs panics from now on. Dropping the result waits a second at most for what is queued, so
/// that comes after everything that has a deadline.
#[must_use]
pub(super) fn start() -> Queue {
    let (queue, lines) = queue::start();
    let _ = LINES.set(lines);
    std::panic::set_hook(Box::new(|panic| unprefixed(&format!("the guard panicked: {panic}"))));
    queue
}

/// A line from before the guard knows for which candidate and in which format it logs.
pub(super) fn unprefixed(text: &str) {
    write(format!("tenure: {text}\n"));
}

pub(super) fn warn(log: Log, candidate: &CandidateId, text: &str) {
    if !log.only_errors {
        line(log, candidate, "WARN", text);
    }
}

pub(super) fn error(log: Log, candidate: &CandidateId, text: &str) {
    line(log, candidate, "ERROR", text);
}

fn line(log: Log, candidate: &CandidateId, level: &str, text: &str) {
    let text = format!("[{candidate}] {text}");
    if !log.json {
        return unprefixed(&text);
    }
    let line = json!({
        "timestamp": crate::time::now(),
        "level": level,
        "message": text,
        "candidate": candidate.as_str(),
        "event": "guard",
    });
    write(format!("{line}\n"));
}

fn write(line: String) {
    if let Some(lines) = LINES.get() {
        lines.send(line.into_bytes());
    }
}
