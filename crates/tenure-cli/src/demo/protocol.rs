//! The protocol between the demo and its processes: one JSON object per line.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The config of one process. It is sent on stdin and not as arguments, because the URL may contain a password.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct NodeConfig {
    pub(super) store: String,
    pub(super) name: String,
    pub(super) id: String,
    pub(super) ttl_ms: u64,
    pub(super) journal: PathBuf,
    /// The port of its HTTP server, unless that is in use by then.
    pub(super) port: u16,
}

/// A message from a process, on its stdout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "camelCase")]
pub(super) enum NodeMessage {
    /// The process campaigns; its HTTP port, or why it has none.
    Started { http: Result<u16, String> },
    /// Another process leads.
    Follows { leader: String },
    /// The process leads, since `at` on the boot clock, and continues from the count `from`.
    Leads { at: u64, token: u64, from: u64 },
    /// The process counted.
    Counted { count: u64 },
    /// The term of the process is over, and its work has stopped.
    Ended { token: u64, count: u64, why: String, clean: bool },
    /// The process has ended and sends no more messages. The demo creates this message at the end of the process's stdout.
    Gone,
}
