//! A stderr that blocks or fails, and how many times a trial repeats.

use std::io::{self, PipeReader, Write};
use std::process::Stdio;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stderr {
    /// A full pipe that is not read.
    Full,
    /// A pipe whose reader has gone.
    Closed,
}

impl Stderr {
    pub const BOTH: [Stderr; 2] = [Stderr::Full, Stderr::Closed];

    pub fn name(self) -> &'static str {
        match self {
            Stderr::Full => "full",
            Stderr::Closed => "closed",
        }
    }

    /// The prefix for the name of a trial.
    pub fn suffix(stderr: Option<Stderr>) -> String {
        stderr.map(|stderr| format!("stderr_{}::", stderr.name())).unwrap_or_default()
    }

    /// A stderr for a process to start, and the reader that must be kept while the pipe is to stay full.
    pub fn open(self) -> (Stdio, Option<PipeReader>) {
        let (reader, mut writer) = io::pipe().unwrap();
        if self == Stderr::Closed {
            return (writer.into(), None);
        }
        let flags = fcntl_getfl(&writer).unwrap();
        fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
        // Filled to the last byte.
        for size in [4096, 1] {
            while writer.write(&vec![b'.'; size]).is_ok() {}
        }
        fcntl_setfl(&writer, flags).unwrap();
        (writer.into(), Some(reader))
    }
}

/// How many times a trial repeats: TENURE_TURNS, or `default`.
pub fn turns(default: usize) -> usize {
    std::env::var("TENURE_TURNS").ok().and_then(|turns| turns.parse().ok()).unwrap_or(default)
}
