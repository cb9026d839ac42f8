//! The body of `/status` and `/leader`: spelled in `docs/CLI.md`, fields are only ever added.

use serde::Serialize;
use tenure::Status;
use tenure::presence::Node;

use super::run_stats::{LastRunBody, RunStatsData};
use super::validity::ValidStatus;
use crate::candidate::Candidate;
use crate::{startup_wait, time};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusBody {
    pub(super) is_leader: bool,
    last_polled: Option<String>,
    name: String,
    candidate_id: String,
    current_leader: Option<String>,
    state: &'static str,
    /// Why the candidate is unhealthy.
    state_reason: Option<String>,
    priority: i32,
    /// The rest of this candidate's start-up wait, and its reason.
    starts_in_ms: Option<u64>,
    start_reason: Option<&'static str>,
    /// The token of the term that this candidate leads. No other candidate's token is shown: the token is what resources accept
    /// writes by.
    token: Option<u64>,
    /// The start of the current term, whichever candidate leads it.
    since: Option<String>,
    valid_for_ms: u64,
    transitions: u64,
    count: Option<u64>,
    last_run: Option<LastRunBody>,
    drained: bool,
    healthy: bool,
    store: String,
    store_grade: String,
    store_reachable: Option<bool>,
    last_error: Option<String>,
    /// All candidates that are present, as last read; null before the first read.
    candidates: Option<Vec<Candidate>>,
}

impl StatusBody {
    pub(super) fn new(
        answer: ValidStatus,
        run_stats: &RunStatsData,
        nodes: Option<&[Node]>,
    ) -> StatusBody {
        let ValidStatus { status, state, valid_for_ms } = answer;
        let me = status.candidate_id.clone();
        let leader = status.current_leader.clone().map(|leader| (leader, "leading"));
        let candidates = nodes.map(|nodes| {
            let candidate = |node: &Node| match node.id == me {
                // The candidate's own status is newer than its presence.
                true => Candidate { state, ..Candidate::new(&own(node, &status), None) },
                false => {
                    let holder = leader.as_ref().map(|(id, state)| (id.as_str(), *state));
                    Candidate::new(node, holder)
                }
            };
            nodes.iter().map(candidate).collect()
        });
        StatusBody {
            is_leader: status.is_leader,
            last_polled: run_stats.last_polled.map(time::rfc3339),
            name: status.name.to_string(),
            candidate_id: status.candidate_id.to_string(),
            current_leader: status.current_leader,
            state,
            state_reason: status.state.reason().map(str::to_owned),
            priority: status.priority,
            starts_in_ms: status.starting.map(|wait| startup_wait::in_millis(wait.left)),
            start_reason: status.starting.map(|wait| wait.reason.as_str()),
            token: status.token.map(|token| token.get()),
            since: status.since.map(time::rfc3339),
            valid_for_ms,
            transitions: status.transitions,
            count: run_stats.count,
            last_run: run_stats.last_run.as_ref().map(LastRunBody::from),
            drained: status.drained,
            healthy: status.healthy,
            store: status.store,
            store_grade: status.store_grade.to_string(),
            store_reachable: status.store_reachable,
            last_error: status.last_error.map(|error| error.to_string()),
            candidates,
        }
    }
}

/// This candidate's presence with its current state.
fn own(node: &Node, status: &Status) -> Node {
    Node { state: Some(status.state.clone()), ..node.clone() }
}
