//! The names and JSON bodies of the events of `/events`: those of `tenure watch --json`, and for a fleet its own.

use serde::Serialize;
use tenure::machine::EndReason;
use tenure::{CandidateId, Event, fleet};

use super::events::EventLog;
use crate::startup_wait;

/// A change of leadership or of the store's reachability.
#[derive(Debug, Default, Serialize)]
struct ChangeBody {
    from: Option<String>,
    to: Option<String>,
    token: Option<u64>,
    reason: Option<String>,
    /// The milliseconds until this candidate leads.
    #[serde(skip_serializing_if = "Option::is_none", rename = "startsInMs")]
    starts_in_ms: Option<u64>,
}

/// A change of a member's shards or membership.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ShardChangeBody<'a> {
    Assigned { shard: &'a str, token: u64 },
    Revoked { shard: &'a str, token: u64, reason: &'static str },
    Joined { token: u64 },
    Left { reason: &'static str },
    Unowned { count: usize },
}

fn reachability(reachable: bool) -> Option<String> {
    Some(if reachable { "reachable" } else { "unreachable" }.to_owned())
}

/// The store became unreachable, with its error, or reachable again.
fn store(error: Option<&tenure::Error>) -> ChangeBody {
    ChangeBody {
        from: reachability(error.is_some()),
        to: reachability(error.is_none()),
        reason: error.map(ToString::to_string),
        ..ChangeBody::default()
    }
}

/// Publishes an event of the election, if it is one of the public events.
pub(super) fn publish_candidate_event(
    event_log: &EventLog,
    name: &str,
    me: &CandidateId,
    event: &Event,
) {
    let me = || Some(me.to_string());
    let (event, change) = match event {
        Event::BecameLeader { token, .. } => {
            ("became", ChangeBody { to: me(), token: Some(token.get()), ..ChangeBody::default() })
        }
        Event::Starting { token, wait } => {
            let (token, reason) = (Some(token.get()), Some(wait.reason.to_string()));
            let starts_in_ms = Some(startup_wait::in_millis(wait.left));
            ("starting", ChangeBody { token, reason, starts_in_ms, ..ChangeBody::default() })
        }
        Event::LostLeadership { token, why } => {
            let (token, reason) = (Some(token.get()), Some(describe_end(why)));
            ("lost", ChangeBody { from: me(), token, reason, ..ChangeBody::default() })
        }
        Event::LeaderChanged { from, to } => {
            ("changed", ChangeBody { from: from.clone(), to: to.clone(), ..ChangeBody::default() })
        }
        Event::StoreUnreachable(error) => ("store", store(Some(error))),
        Event::StoreBack => ("store", store(None)),
        _ => return,
    };
    event_log.publish(name, event, &change);
}

/// Publishes an event of the fleet. Every event is published; the fleet combines floods of events into one.
pub(super) fn publish_member_event(event_log: &EventLog, name: &str, event: &fleet::FleetEvent) {
    let (event, change) = match event {
        fleet::FleetEvent::Assigned { shard, token, .. } => {
            ("assigned", ShardChangeBody::Assigned { shard: shard.as_str(), token: token.get() })
        }
        fleet::FleetEvent::Revoked { shard, token, why, .. } => {
            let (shard, token) = (shard.as_str(), token.get());
            ("revoked", ShardChangeBody::Revoked { shard, token, reason: why.as_str() })
        }
        fleet::FleetEvent::Joined { hold, .. } => {
            ("joined", ShardChangeBody::Joined { token: hold.token.get() })
        }
        fleet::FleetEvent::Left { why, .. } => {
            ("left", ShardChangeBody::Left { reason: why.as_str() })
        }
        fleet::FleetEvent::Unowned(count, _) => {
            ("unowned", ShardChangeBody::Unowned { count: *count })
        }
        fleet::FleetEvent::StoreUnreachable(error) => {
            return event_log.publish(name, "store", &store(Some(error)));
        }
        fleet::FleetEvent::StoreBack => return event_log.publish(name, "store", &store(None)),
        _ => return,
    };
    event_log.publish(name, event, &change);
}

/// Describes why a term ended.
fn describe_end(why: &EndReason) -> String {
    match why {
        EndReason::Unreachable(_) => "store unreachable".to_owned(),
        EndReason::StoreError(error) => error.to_string(),
        EndReason::Paused(time) => {
            format!("this process did not run for {}", crate::duration::shown(*time))
        }
        EndReason::Refused(Some(by)) => format!("the store says that it is led by {by}"),
        EndReason::Refused(None) => "the store says that it is not ours any more".to_owned(),
        EndReason::Asked => "asked".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_term_names_what_the_store_answered() {
        let why = EndReason::StoreError(tenure::Error::corrupt("'job' is not a lease"));
        assert_eq!(describe_end(&why), "'job' is not a lease");
    }
}
