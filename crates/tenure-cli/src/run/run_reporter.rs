//! Reports the runs of this candidate to the statistics that `/status` and `/metrics` read.

use std::sync::Arc;
use std::time::Duration;

use crate::http::{LastRun, RunStats};
use crate::schedule::{RunOutcome, RunRecord, ScheduleCheckpoint};

/// A handle on the run statistics; the term supervisor and the presence reader write to it.
#[derive(Clone, Debug, Default)]
pub(super) struct RunReporter(pub(super) Arc<RunStats>);

impl RunReporter {
    /// A run of this instance begins at `unix_ms`.
    pub(super) fn began(&self, unix_ms: u64) {
        self.0.began(unix_ms);
    }

    /// Shows the checkpoint of this name, whichever candidate saved it.
    pub(super) fn show(&self, checkpoint: Option<&ScheduleCheckpoint>) {
        let count = checkpoint.map(|checkpoint| checkpoint.count);
        let last_run = checkpoint.and_then(|checkpoint| checkpoint.last_run.as_ref()).map(last_run);
        self.0.known(count, last_run);
    }

    /// A run of this instance has ended.
    pub(super) fn ended(&self, outcome: &RunOutcome, took: Duration) {
        self.0.ended(outcome.word(), took);
    }

    /// A slot passed without a run of this instance.
    pub(super) fn passed(&self, outcome: &'static str) {
        self.0.passed(outcome);
    }
}

fn last_run(run: &RunRecord) -> LastRun {
    LastRun {
        slot: run.slot,
        by: run.by.clone(),
        started_at: run.started_at.unwrap_or_default(),
        ended_at: run.ended_at,
        outcome: Some(run.outcome.word().to_owned()),
    }
}
