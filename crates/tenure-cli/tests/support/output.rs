//! A stderr that does not take what is written to it, and how often a trial tries.

#![allow(dead_code, reason = "each of the test programs uses a part of it")]

use std::io::{self, PipeReader, Write};
use std::process::Stdio;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stderr {
    /// A full pipe that is not read.
    Full,
    /// A pipe whose reader has gone.
    Closed,
}

impl Stderr {
    pub(crate) const BOTH: [Stderr; 2] = [Stderr::Full, Stderr::Closed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Stderr::Full => "full",
            Stderr::Closed => "closed",
        }
    }

    /// For the name of a trial.
    pub(crate) fn suffix(stderr: Option<Stderr>) -> String {
        stderr.map(|stderr| format!("stderr_{}::", stderr.name())).unwrap_or_default()
    }

    /// One for a process that is started, and what has to be kept for as long as that is to be so.
    pub(crate) fn open(self) -> (Stdio, Option<PipeReader>) {
        let (reader, mut writer) = io::pipe().unwrap();
        if self == Stderr::Closed {
            return (writer.into(), None);
        }
        let flags = fcntl_getfl(&writer).unwrap();
        fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
        // To the last byte.
        for size in [4096, 1] {
            while writer.write(&vec![b'.'; size]).is_ok() {}
        }
        fcntl_setfl(&writer, flags).unwrap();
        (writer.into(), Some(reader))
    }
}

/// How often a trial repeats what it tries: TENURE_TURNS, or `default`.
pub(crate) fn turns(default: usize) -> usize {
    std::env::var("TENURE_TURNS").ok().and_then(|turns| turns.parse().ok()).unwrap_or(default)
}
