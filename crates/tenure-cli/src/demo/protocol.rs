//! What the demo and its processes say to each other, one JSON object a line.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The orders of one process: on its stdin and not in its arguments, for the URL may hold a
/// password.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) store: String,
    pub(super) name: String,
    pub(super) id: String,
    pub(super) ttl_ms: u64,
    pub(super) journal: PathBuf,
    /// Where it answers over HTTP, unless that is taken by then.
    pub(super) port: u16,
}

/// What a process tells of itself, on its stdout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "camelCase")]
pub(super) enum NodeMessage {
    /// It campaigns, and answers on this port, or why it does not.
    Started { http: Result<u16, String> },
    /// Somebody else leads.
    Follows { leader: String },
    /// It leads, since `at` on the boot clock, and goes on from the count `from`.
    Leads { at: u64, token: u64, from: u64 },
    /// It counted.
    Counted { count: u64 },
    /// Its term is over and its work has stopped.
    Ended { token: u64, count: u64, why: String, clean: bool },
    /// It will say no more: the process has ended. Said by nobody, but found at the end of its
    /// stdout.
    Gone,
}
