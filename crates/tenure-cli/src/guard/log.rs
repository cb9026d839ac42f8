//! The guard's log: lines are queued, and a separate thread writes them to stderr.
//!
//! The guard has deadlines to meet. A reader that does not read (a full pipe, a stopped `tee`) must not block it, and a reader
//! that has gone must not end it. So no other code of the guard writes to stderr: clippy denies `eprintln!` and `println!` in
//! this module tree, and a panic is logged here too.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure::CandidateId;

use crate::logs::queue::{self, LineWriter, LogQueue};

/// The guard's log settings, taken from the leader's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    pub json: bool,
    /// Warnings are left out (`-q`).
    pub only_errors: bool,
}

impl Log {
    /// Every line, as text.
    pub const TEXT: Log = Log { json: false, only_errors: false };
}

/// The queue of this process; unset in a process that is no guard.
static LINES: OnceLock<LineWriter> = OnceLock::new();

/// Starts the writer thread, and logs panics from now on. Dropping the result waits at most a second for the queued lines, so
/// drop it after all work that has a deadline.
#[must_use]
pub(super) fn start() -> LogQueue {
    let (queue, lines) = queue::start();
    let _ = LINES.set(lines);
    std::panic::set_hook(Box::new(|panic| unprefixed(&format!("the guard panicked: {panic}"))));
    queue
}

/// Logs a line before the guard knows its candidate and log format.
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
