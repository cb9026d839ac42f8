//! `/events`: the current state, then every event, sent to all subscribers.
//!
//! Each event is encoded once and shared. The last few are kept for clients that reconnect with `Last-Event-ID`. The server
//! waits for no client: a subscriber that is too far behind is disconnected, and gets the current state when it reconnects.
//!
//! The names and JSON bodies are those of `tenure watch --json`, and for a fleet its own.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use serde::Serialize;
use tenure::machine::EndReason;
use tenure::{CandidateId, Event, Nonce, fleet};
use tokio::sync::broadcast;

use crate::{startup_wait, time};

/// How many events are kept for clients that reconnect, and how far a subscriber may be behind.
const MAX_KEPT_EVENTS: usize = 256;

/// An SSE comment that keeps the connection alive while nothing happens.
const KEEPALIVE: &str = ": still here\n\n";

/// The fields of every event, and the fields of this event.
#[derive(Debug, Serialize)]
struct EventJson<'a, T> {
    at: String,
    event: &'static str,
    name: &'a str,
    #[serde(flatten)]
    what: &'a T,
}

/// The recent events and the subscribers.
#[derive(Debug)]
pub(super) struct EventLog {
    /// Identifies this process. Event numbers start again with every process; those of another process mean nothing here.
    epoch: String,
    recent: Mutex<RecentEvents>,
    subscribers: broadcast::Sender<Bytes>,
}

#[derive(Debug, Default)]
struct RecentEvents {
    last: u64,
    frames: VecDeque<(u64, Bytes)>,
}

/// What a new subscriber receives.
pub(super) struct EventSubscription {
    /// The id of the state: a client that has received the state has received every event up to this id.
    pub(super) id: String,
    pub(super) missed: Vec<Bytes>,
    pub(super) live: broadcast::Receiver<Bytes>,
}

impl Default for EventLog {
    fn default() -> EventLog {
        let epoch = Nonce::random().to_string().chars().take(8).collect();
        EventLog {
            epoch,
            recent: Mutex::default(),
            subscribers: broadcast::channel(MAX_KEPT_EVENTS).0,
        }
    }
}

impl EventLog {
    /// Publishes that `what` happened to `name`.
    pub(super) fn publish(&self, name: &str, event: &'static str, what: &impl Serialize) {
        let item = EventJson { at: time::now(), event, name, what };
        if let Ok(data) = serde_json::to_string(&item) {
            self.push(event, &data);
        }
    }

    pub(super) fn push(&self, event: &str, data: &str) {
        let mut recent = self.recent();
        recent.last += 1;
        let last = recent.last;
        let frame = frame(&self.id(last), event, data);
        if recent.frames.len() == MAX_KEPT_EVENTS {
            recent.frames.pop_front();
        }
        recent.frames.push_back((last, frame.clone()));
        // Sent under the lock, so that a new subscriber gets the event exactly once: either kept or live. Having no subscriber
        // is not an error.
        let _ = self.subscribers.send(frame);
    }

    /// Sends a comment that keeps idle connections alive. It uses no event number.
    pub(super) fn send_keepalive(&self) {
        let _ = self.subscribers.send(Bytes::from_static(KEEPALIVE.as_bytes()));
    }

    /// Subscribes to the events after `last`, if that is an id of this process.
    pub(super) fn subscribe(&self, last: Option<&str>) -> EventSubscription {
        let recent = self.recent();
        let last_received =
            last.and_then(|id| id.strip_prefix(&self.epoch)?.strip_prefix('-')?.parse().ok());
        let last_received: u64 = last_received
            .filter(|last_received| *last_received <= recent.last)
            .unwrap_or(recent.last);
        let missed = recent.frames.iter().filter(|(number, _)| *number > last_received);
        EventSubscription {
            id: self.id(last_received),
            missed: missed.map(|(_, frame)| frame.clone()).collect(),
            live: self.subscribers.subscribe(),
        }
    }

    fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.epoch)
    }

    fn recent(&self) -> MutexGuard<'_, RecentEvents> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One event in the SSE format. `data` is one line: it is JSON.
pub(super) fn frame(id: &str, event: &str, data: &str) -> Bytes {
    Bytes::from(format!("id: {id}\nevent: {event}\ndata: {data}\n\n"))
}

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
        Event::Starting { token, wait, .. } => {
            let (token, reason) = (Some(token.get()), Some(wait.reason.to_string()));
            let starts_in_ms = Some(startup_wait::in_millis(wait.left));
            ("starting", ChangeBody { token, reason, starts_in_ms, ..ChangeBody::default() })
        }
        Event::LostLeadership { token, why, .. } => {
            let (token, reason) = (Some(token.get()), Some(describe_end(why)));
            ("lost", ChangeBody { from: me(), token, reason, ..ChangeBody::default() })
        }
        Event::LeaderChanged { from, to, .. } => {
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
        fleet::FleetEvent::Joined { token, .. } => {
            ("joined", ShardChangeBody::Joined { token: token.get() })
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
        EndReason::Drained => "drained".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(subscription: &EventSubscription) -> Vec<String> {
        let text =
            subscription.missed.iter().map(|frame| String::from_utf8_lossy(frame).into_owned());
        text.map(|text| text.lines().last().unwrap_or_default().to_owned())
            .map(|text| text.trim_start_matches("data: ").to_owned())
            .collect()
    }

    #[test]
    fn a_client_that_reconnects_gets_the_missed_events_and_no_others() {
        let event_log = EventLog::default();
        let first = event_log.subscribe(None);
        assert!(first.missed.is_empty());
        for number in 1..=3 {
            event_log.push("changed", &format!("{number}"));
        }
        let resumed = |last: &str| {
            let subscription = event_log.subscribe(Some(last));
            let data: Vec<String> = numbers(&subscription);
            (data, subscription.id)
        };
        let id = |number: u64| format!("{}-{number}", event_log.epoch);
        let (missed, state) = resumed(&first.id);
        assert_eq!((missed.len(), state), (3, id(0)), "the state is numbered like what was seen");
        assert_eq!(resumed(&id(2)).0.len(), 1);
        assert_eq!(resumed(&id(3)).0.len(), 0);
        for unknown in ["", "x", "0", "other-1", &id(99), &format!("{}-x", event_log.epoch)] {
            assert_eq!(resumed(unknown), (vec![], id(3)), "{unknown}");
        }
        for number in 4..1000 {
            event_log.push("changed", &format!("{number}"));
        }
        assert_eq!(
            event_log.subscribe(Some(&id(1))).missed.len(),
            MAX_KEPT_EVENTS,
            "and no more is kept"
        );
    }

    #[test]
    fn a_lost_term_names_what_the_store_answered() {
        let why = EndReason::StoreError(tenure::Error::corrupt("'job' is not a lease"));
        assert_eq!(describe_end(&why), "'job' is not a lease");
    }
}
