//! The state of this member of a fleet, for the handlers. Reading it takes a lock or two and never waits for the store.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tenure::fleet::source::Shards;
use tenure::{Clock, Error, Fleet, Name, Store, fleet};

use super::event_body;
use super::events::EventLog;
use super::run_stats::{RunStats, RunStatsData};
use crate::time;

/// One member and its work.
#[derive(Debug)]
pub(crate) struct HttpMember {
    pub(super) fleet: Arc<Fleet>,
    pub(super) clock: Clock,
    pub(super) event_log: Arc<EventLog>,
    store: Arc<dyn Store>,
    work: Arc<RunStats>,
    last_error: Mutex<Option<Error>>,
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

impl HttpMember {
    /// `store` is the fleet's store. It is only named, not read.
    pub(crate) fn new(
        fleet: Arc<Fleet>,
        work: Arc<RunStats>,
        store: &Arc<dyn Store>,
    ) -> Arc<HttpMember> {
        Arc::new(HttpMember {
            fleet,
            clock: Clock::boot(),
            event_log: Arc::default(),
            store: Arc::clone(store),
            work,
            last_error: Mutex::default(),
        })
    }

    /// Publishes an event to the subscribers of `/events`. The caller passes every event of [`Fleet::next`], in that order. It
    /// never blocks.
    pub(crate) fn note(&self, event: &fleet::FleetEvent) {
        if let fleet::FleetEvent::StoreUnreachable(error) = event {
            *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
        }
        event_body::publish_member_event(&self.event_log, self.fleet.name().as_str(), event);
    }

    /// Whether an operator has drained this member, as far as is known here.
    pub(super) fn is_drained(&self) -> bool {
        let me = self.fleet.member_id();
        self.fleet.members().iter().any(|member| member.id == *me && member.drained)
    }

    /// The fleet's name and the shards of its source, for a snapshot.
    pub(super) fn name_and_shards(&self) -> (Name, Arc<Shards>) {
        (self.fleet.name().clone(), self.fleet.shards())
    }

    pub(super) fn work(&self) -> RunStatsData {
        self.work.read()
    }

    /// The body of `/status`. Its `validForMs` commits to nothing: the owner of a shard is decided by that shard's lease.
    pub(super) fn status(&self) -> MemberStatusBody {
        let (fleet, limits) = (&self.fleet, self.store.limits());
        let membership = fleet.membership();
        let valid_for = membership.map_or(0, |(_, left)| left.as_millis());
        let valid_for_ms = u64::try_from(valid_for).unwrap_or(u64::MAX);
        let is_leader = valid_for_ms > 0;
        let ended = fleet.has_ended();
        // A member that takes part counts the shards once a second.
        let coverage = if ended { fleet::Coverage::default() } else { fleet.coverage() };
        let reachable = fleet.reachable();
        let last_error = self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let last_error =
            reachable.as_ref().and_then(|reachable| reachable.clone().err()).or(last_error);
        // The reason why it does not join comes before an earlier error.
        let last_error = fleet.source_error().filter(|_| !is_leader).or(last_error);
        MemberStatusBody {
            is_leader,
            last_polled: self.work.read().last_polled.map(time::rfc3339),
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
            drained: self.is_drained(),
            healthy: fleet.is_healthy(),
            store: self.store.url(),
            store_grade: limits.grade.to_string(),
            store_reachable: reachable.map(|reachable| reachable.is_ok()),
            last_error: last_error.map(|error| error.to_string()),
        }
    }
}
