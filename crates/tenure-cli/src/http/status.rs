//! `/status` and `/leader`: their bodies, how long a positive answer is valid, and the statistics of runs that they show. The
//! spelling is fixed in `docs/CLI.md`; fields are only ever added.
//!
//! A client that received `validForMs` may act on it until then, so the lease is not released before.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tenure::fleet::Coverage;
use tenure::presence::Node;
use tenure::{Clock, Election, Error, Fleet, Histogram, Moment, Status, Store};

use crate::candidate::Candidate;
use crate::{startup_wait, time};

/// The body of `/status` and `/leader`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum ParticipantStatus {
    Candidate(Box<StatusBody>),
    Member(Box<MemberStatusBody>),
}

impl ParticipantStatus {
    /// Whether the candidate leads, or the member takes part.
    pub(super) fn is_leader(&self) -> bool {
        match self {
            ParticipantStatus::Candidate(body) => body.is_leader,
            ParticipantStatus::Member(body) => body.is_leader,
        }
    }
}

/// The body of a candidate.
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

/// The body of `/status` and `/leader` of a member. Fields that a candidate's body also has are spelled alike.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MemberStatusBody {
    /// Whether the member takes part.
    pub(super) is_leader: bool,
    last_polled: Option<String>,
    name: String,
    candidate_id: String,
    state: &'static str,
    /// The token of the member's lease on itself; each shard has its own token.
    pub(super) token: Option<u64>,
    pub(super) valid_for_ms: u64,
    pub(super) shards: usize,
    pub(super) unowned: usize,
    pub(super) members: usize,
    drained: bool,
    healthy: bool,
    store: String,
    store_grade: String,
    store_reachable: Option<bool>,
    last_error: Option<String>,
}

impl MemberStatusBody {
    /// `last_error` is the last error of the store. The `validForMs` commits to nothing: the owner of a shard is decided by that
    /// shard's lease.
    pub(super) fn new(
        fleet: &Fleet,
        store: &dyn Store,
        run_stats: &RunStatsData,
        drained: bool,
        last_error: Option<Error>,
    ) -> MemberStatusBody {
        let membership = fleet.membership();
        let valid_for = membership.map_or(0, |(_, left)| left.as_millis());
        let valid_for_ms = u64::try_from(valid_for).unwrap_or(u64::MAX);
        let is_leader = valid_for_ms > 0;
        let ended = fleet.has_ended();
        // A member that takes part counts the shards once a second.
        let coverage = if ended { Coverage::default() } else { fleet.coverage() };
        let reachable = fleet.reachable();
        let last_error =
            reachable.as_ref().and_then(|reachable| reachable.clone().err()).or(last_error);
        // The reason why it does not join comes before an earlier error.
        let last_error = fleet.source_error().filter(|_| !is_leader).or(last_error);
        MemberStatusBody {
            is_leader,
            last_polled: run_stats.last_polled.map(time::rfc3339),
            name: fleet.name().to_string(),
            candidate_id: fleet.member_id().to_string(),
            state: match is_leader {
                true => "member",
                false if ended => "stopped",
                false => "waiting",
            },
            token: membership.filter(|_| is_leader).map(|(token, _)| token.get()),
            valid_for_ms,
            shards: coverage.mine,
            unowned: coverage.unowned,
            members: fleet.members().len(),
            drained,
            healthy: fleet.is_healthy(),
            store: store.url(),
            store_grade: store.limits().grade.to_string(),
            store_reachable: reachable.map(|reachable| reachable.is_ok()),
            last_error: last_error.map(|error| error.to_string()),
        }
    }
}

/// The positive answers given so far, and how long they are valid.
#[derive(Debug)]
pub(super) struct Validity {
    clock: Clock,
    /// The longest time to commit to; `None` means as long as the lease certainly belongs to this candidate.
    limit: Option<Duration>,
    committed: Mutex<Committed>,
}

#[derive(Debug, Default)]
struct Committed {
    /// From now on every answer is negative.
    answer_no: bool,
    until: Moment,
}

/// A status as it is sent: `valid_for_ms` is what was committed to, and a candidate that leads for less than a millisecond is
/// reported as not leading.
pub(super) struct ValidStatus {
    pub(super) status: Status,
    /// The state that matches the other fields. Fields that are read one by one from [`Status`] could disagree.
    pub(super) state: &'static str,
    pub(super) valid_for_ms: u64,
}

impl Validity {
    pub(super) fn new(clock: Clock, limit: Option<Duration>) -> Validity {
        Validity { clock, limit, committed: Mutex::default() }
    }

    /// Reads the status of the election and records what the answer commits to, in one step. So after [`Validity::answer_no`],
    /// or after the election has lost its term, [`Validity::until`] covers every earlier positive answer.
    pub(super) fn commit(&self, election: &Election) -> ValidStatus {
        let mut committed = self.committed();
        let mut status = election.status();
        // Read after the status: the commitment ends too late rather than too early.
        let now = self.clock.now();
        let limit = self.limit.unwrap_or(Duration::MAX);
        let valid_for_ms = match status.is_leader && !committed.answer_no {
            true => u64::try_from(status.valid_for.min(limit).as_millis()).unwrap_or(u64::MAX),
            false => 0,
        };
        status.is_leader = valid_for_ms > 0;
        status.token = status.token.filter(|_| status.is_leader);
        if status.is_leader {
            committed.until = committed.until.max(now + Duration::from_millis(valid_for_ms));
        }
        let state = match (status.is_leader, status.state.as_str()) {
            (true, _) => "leading",
            (false, "leading") => "stopping",
            (false, state) => state,
        };
        ValidStatus { status, state, valid_for_ms }
    }

    pub(super) fn answer_no(&self) {
        self.committed().answer_no = true;
    }

    pub(super) fn until(&self) -> Moment {
        self.committed().until
    }

    fn committed(&self) -> MutexGuard<'_, Committed> {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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

#[derive(Clone, Debug)]
pub(super) struct RunStatsData {
    pub(super) last_polled: Option<u64>,
    pub(super) count: Option<u64>,
    pub(super) last_run: Option<LastRun>,
    pub(super) runs: BTreeMap<&'static str, u64>,
    pub(super) durations: Histogram,
}

/// The upper bounds of the durations of runs, which take from almost no time to most of an hour.
const RUN_BOUNDS: [Duration; Histogram::BUCKETS] = [
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(300),
    Duration::from_secs(900),
    Duration::from_secs(3600),
];

impl Default for RunStatsData {
    fn default() -> RunStatsData {
        RunStatsData {
            last_polled: None,
            count: None,
            last_run: None,
            runs: BTreeMap::new(),
            durations: Histogram::new(RUN_BOUNDS),
        }
    }
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
        data.durations.record(took);
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
