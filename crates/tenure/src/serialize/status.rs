//! The serialized form of what is read: [`Status`], [`Pulse`], [`RenewalStats`], [`Lease`], [`Node`].

use serde::{Serialize, Serializer};

use super::{millis, millis_rounded_up};
use crate::driver::RenewalStats;
use crate::election::{CandidateState, Pulse, Status};
use crate::error::{Error, Kind};
use crate::histogram::Histogram;
use crate::lease::{CandidateId, Lease, Name, Note, PastTerm, PastTermOutcome, Token, WaitReason};
use crate::presence::Node;
use crate::store::Grade;
use crate::text::rfc3339;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SerializedStatus<'a> {
    is_leader: bool,
    name: &'a Name,
    candidate_id: &'a CandidateId,
    current_leader: Option<&'a str>,
    state: &'a CandidateState,
    state_reason: Option<&'a str>,
    priority: i32,
    starts_in_ms: Option<u64>,
    start_reason: Option<WaitReason>,
    token: Option<Token>,
    handles: u32,
    since: Option<String>,
    valid_for_ms: u64,
    transitions: u64,
    drained: bool,
    healthy: bool,
    store: &'a str,
    store_grade: Grade,
    store_reachable: Option<bool>,
    last_error: Option<String>,
    last_error_kind: Option<Kind>,
}

/// The fields of the command's `/status`, without those about runs; and `handles` and `lastErrorKind`.
impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Status {
            name,
            candidate_id,
            is_leader,
            state,
            current_leader,
            token,
            handles,
            starting,
            since,
            valid_for,
            transitions,
            drained,
            healthy,
            priority,
            store,
            store_grade,
            store_reachable,
            last_error,
        } = self;
        let serialized = SerializedStatus {
            is_leader: *is_leader,
            name,
            candidate_id,
            current_leader: current_leader.as_deref(),
            state,
            state_reason: state.reason(),
            priority: *priority,
            starts_in_ms: starting.map(|wait| millis_rounded_up(wait.left)),
            start_reason: starting.map(|wait| wait.reason),
            token: *token,
            handles: *handles,
            since: since.map(rfc3339),
            valid_for_ms: millis(*valid_for),
            transitions: *transitions,
            drained: *drained,
            healthy: *healthy,
            store,
            store_grade: *store_grade,
            store_reachable: *store_reachable,
            last_error: last_error.as_ref().map(ToString::to_string),
            last_error_kind: last_error.as_ref().map(Error::kind),
        };
        serialized.serialize(serializer)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SerializedPulse {
    late_ms: u64,
    overrun_ms: u64,
    idle: bool,
    ended: bool,
}

impl Serialize for Pulse {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Pulse { late, overrun, idle, ended } = self;
        let (late_ms, overrun_ms) = (millis(*late), millis(*overrun));
        SerializedPulse { late_ms, overrun_ms, idle: *idle, ended: *ended }.serialize(serializer)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SerializedHistogram {
    count: u64,
    sum_seconds: f64,
    buckets: Vec<SerializedBucket>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SerializedBucket {
    up_to_seconds: f64,
    count: u64,
}

/// Each bucket has the durations above the previous bound and up to its own. Those above the last bound are only in `count` and
/// `sumSeconds`.
impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let buckets = self
            .buckets()
            .map(|(bound, count)| SerializedBucket { up_to_seconds: bound.as_secs_f64(), count });
        let serialized = SerializedHistogram {
            count: self.count,
            sum_seconds: self.sum.as_secs_f64(),
            buckets: buckets.collect(),
        };
        serialized.serialize(serializer)
    }
}

#[derive(Serialize)]
struct SerializedRenewalStats<'a> {
    durations: &'a Histogram,
    failures: SerializedFailures,
}

/// The causes of `tenure_renew_failures_total`.
#[derive(Serialize)]
struct SerializedFailures {
    unavailable: u64,
    refused: u64,
    denied: u64,
    corrupt: u64,
    other: u64,
}

impl Serialize for RenewalStats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let RenewalStats { durations, refused, unavailable, denied, corrupt, other } = self;
        let failures = SerializedFailures {
            unavailable: *unavailable,
            refused: *refused,
            denied: *denied,
            corrupt: *corrupt,
            other: *other,
        };
        SerializedRenewalStats { durations, failures }.serialize(serializer)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SerializedLease<'a> {
    name: &'a Name,
    current_leader: Option<&'a str>,
    state: &'static str,
    starts_in_ms: Option<u64>,
    start_reason: Option<WaitReason>,
    token: Option<Token>,
    expires_in_ms: Option<u64>,
    since: Option<String>,
    holder: Option<&'a str>,
    ttl_ms: Option<u64>,
    note: &'a Note,
    next: Option<&'a CandidateId>,
    history: &'a [PastTerm],
}

/// The fields of `tenure status --json`, without those about runs and candidates, and what else the record has. `holder` is set
/// also while the holder does not lead yet.
impl Serialize for Lease {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Lease {
            name,
            holder,
            token,
            ttl,
            left,
            since,
            note,
            next,
            lineage: _,
            checkpoint: _,
            store_time: _,
            wait,
            history,
        } = self;
        let is_held = holder.is_some();
        let serialized = SerializedLease {
            name,
            current_leader: self.leader(),
            state: match (is_held, wait) {
                (false, _) => "free",
                (true, None) => "leading",
                (true, Some(_)) => "starting",
            },
            starts_in_ms: wait.map(|wait| millis_rounded_up(wait.left)),
            start_reason: wait.map(|wait| wait.reason),
            token: *token,
            expires_in_ms: is_held.then(|| millis(*left)),
            since: since.filter(|_| is_held).map(rfc3339),
            holder: holder.as_ref().map(|holder| holder.id.as_str()),
            ttl_ms: is_held.then(|| millis(*ttl)),
            note,
            next: next.as_ref(),
            history,
        };
        serialized.serialize(serializer)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SerializedPastTerm<'a> {
    token: Token,
    candidate_id: &'a CandidateId,
    since: String,
    until: String,
    outcome: PastTermOutcome,
}

impl Serialize for PastTerm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let PastTerm { token, candidate, from, to, outcome } = self;
        let serialized = SerializedPastTerm {
            token: *token,
            candidate_id: candidate,
            since: rfc3339(*from),
            until: rfc3339(*to),
            outcome: *outcome,
        };
        serialized.serialize(serializer)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SerializedNode<'a> {
    candidate_id: &'a CandidateId,
    url: Option<&'a str>,
    state: &'static str,
    reason: Option<&'a str>,
    priority: i32,
    since: Option<String>,
}

/// The fields of `candidates` in the command's JSON, and `since`.
impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Node { id, url, priority, state, since } = self;
        let serialized = SerializedNode {
            candidate_id: id,
            url: url.as_deref(),
            state: state.as_ref().map_or("unknown", CandidateState::as_str),
            reason: state.as_ref().and_then(CandidateState::reason),
            priority: *priority,
            since: since.map(rfc3339),
        };
        serialized.serialize(serializer)
    }
}
