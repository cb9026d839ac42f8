//! What the work last did, put up where the status is read.

use std::sync::Arc;
use std::time::Duration;

use crate::http::{LastRun, RunStats};
use crate::schedule::{RunOutcome, RunRecord, ScheduleCheckpoint};

/// Written by whoever works.
#[derive(Clone, Debug, Default)]
pub(super) struct CandidateCount(pub(super) Arc<RunStats>);

impl CandidateCount {
    /// This instance begins a poll, at so many Unix milliseconds.
    pub(super) fn began(&self, unix_ms: u64) {
        self.0.began(unix_ms);
    }

    /// What is known of the name, whoever has noted it down.
    pub(super) fn show(&self, ledger: Option<&ScheduleCheckpoint>) {
        let count = ledger.map(|ledger| ledger.count);
        let last_run = ledger.and_then(|ledger| ledger.last_run.as_ref()).map(last_run);
        self.0.known(count, last_run);
    }

    /// A run of this instance has ended.
    pub(super) fn ended(&self, outcome: &RunOutcome, took: Duration) {
        self.0.ended(outcome.word(), took);
    }

    /// A slot went by without a run of ours.
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
