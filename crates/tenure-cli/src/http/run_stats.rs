//! What the work last did, told by whoever does it. The worker holds this and nothing else of HTTP.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::histogram::Histogram;
use crate::time;

/// One run of the work of a name, wherever it ran. Times are Unix milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastRun {
    pub(crate) slot: u64,
    pub(crate) by: String,
    pub(crate) started_at: u64,
    /// `None` while it runs.
    pub(crate) ended_at: Option<u64>,
    /// `None` while it runs.
    pub(crate) outcome: Option<String>,
}

/// The same in JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LastRunBody {
    slot: u64,
    by: String,
    started_at: String,
    ended_at: Option<String>,
    outcome: Option<String>,
}

impl From<&LastRun> for LastRunBody {
    fn from(run: &LastRun) -> LastRunBody {
        LastRunBody {
            slot: run.slot,
            by: run.by.clone(),
            started_at: time::rfc3339(run.started_at),
            ended_at: run.ended_at.map(time::rfc3339),
            outcome: run.outcome.clone(),
        }
    }
}

/// The book that the worker writes and the handlers read.
#[derive(Debug, Default)]
pub(crate) struct RunStats(Mutex<RunRecorder>);

#[derive(Clone, Debug, Default)]
pub(super) struct RunRecorder {
    pub(super) last_polled: Option<u64>,
    pub(super) count: Option<u64>,
    pub(super) last_run: Option<LastRun>,
    pub(super) runs: BTreeMap<&'static str, u64>,
    pub(super) took: Histogram,
}

impl RunStats {
    /// This instance begins a poll now, at so many Unix milliseconds.
    pub(crate) fn began(&self, unix_ms: u64) {
        self.book().last_polled = Some(unix_ms);
    }

    /// What is known of the name: how many runs there were, and the last of them. From the checkpoint, whoever wrote it.
    pub(crate) fn known(&self, count: Option<u64>, last_run: Option<LastRun>) {
        let mut book = self.book();
        (book.count, book.last_run) = (count, last_run);
    }

    /// A run of this instance has ended like this after so long.
    pub(crate) fn ended(&self, outcome: &'static str, took: Duration) {
        let mut book = self.book();
        *book.runs.entry(outcome).or_default() += 1;
        book.took.note(took);
    }

    /// A slot went by without a run of its own: it was skipped, or a dead leader's was interrupted.
    pub(crate) fn passed(&self, outcome: &'static str) {
        *self.book().runs.entry(outcome).or_default() += 1;
    }

    pub(super) fn read(&self) -> RunRecorder {
        self.book().clone()
    }

    fn book(&self) -> MutexGuard<'_, RunRecorder> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
