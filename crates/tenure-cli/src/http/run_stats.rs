//! Statistics of the runs of the work, for `/status` and `/metrics`. The supervisor of the work writes them and knows nothing
//! else of HTTP.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::histogram::Histogram;
use crate::time;

/// One run of the work of a name, on whichever candidate it ran. Times are Unix milliseconds.
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

/// The JSON form of [`LastRun`].
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

/// The shared statistics, which the supervisor writes and the handlers read.
#[derive(Debug, Default)]
pub(crate) struct RunStats(Mutex<RunStatsData>);

#[derive(Clone, Debug, Default)]
pub(super) struct RunStatsData {
    pub(super) last_polled: Option<u64>,
    pub(super) count: Option<u64>,
    pub(super) last_run: Option<LastRun>,
    pub(super) runs: BTreeMap<&'static str, u64>,
    pub(super) took: Histogram,
}

impl RunStats {
    /// A run of this instance begins at `unix_ms`.
    pub(crate) fn began(&self, unix_ms: u64) {
        self.lock().last_polled = Some(unix_ms);
    }

    /// Sets what the checkpoint says about the name: the number of runs and the last run, whichever candidate saved it.
    pub(crate) fn known(&self, count: Option<u64>, last_run: Option<LastRun>) {
        let mut data = self.lock();
        (data.count, data.last_run) = (count, last_run);
    }

    /// A run of this instance has ended with `outcome` after `took`.
    pub(crate) fn ended(&self, outcome: &'static str, took: Duration) {
        let mut data = self.lock();
        *data.runs.entry(outcome).or_default() += 1;
        data.took.record(took);
    }

    /// A slot passed without a run of its own: it was skipped, or the run of a dead leader was interrupted.
    pub(crate) fn passed(&self, outcome: &'static str) {
        *self.lock().runs.entry(outcome).or_default() += 1;
    }

    pub(super) fn read(&self) -> RunStatsData {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, RunStatsData> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
