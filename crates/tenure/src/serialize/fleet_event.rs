//! The serialized form of a [`FleetEvent`] and of a [`FleetNotice`].

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::event::reachability;
use crate::error::{Error, Kind};
use crate::fleet::{FleetEvent, FleetNotice, Reason, Shard};
use crate::lease::Token;

/// Names and fields of a member's `/events`, and the events that the command only logs. `at` and `name` are the caller's to add.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "camelCase")]
enum SerializedFleetEvent<'a> {
    Joined { token: Token },
    Left { reason: Reason },
    Assigned { shard: &'a Shard, token: Token },
    Revoked { shard: &'a Shard, token: Token, reason: Reason },
    Released { shard: &'a Shard, token: Token, reason: Reason },
    Panicked { shard: &'a Shard, token: Token, message: &'a str },
    Store { from: &'static str, to: &'static str, reason: Option<String>, kind: Option<Kind> },
    Source { message: &'a str },
    Lists { lists: BTreeMap<&'a str, usize> },
    Unowned { count: usize },
    Missed { count: u64 },
}

fn store_event(error: Option<&Error>) -> SerializedFleetEvent<'static> {
    let (from, to) = reachability(error);
    let (reason, kind) = (error.map(ToString::to_string), error.map(Error::kind));
    SerializedFleetEvent::Store { from, to, reason, kind }
}

/// The handles and numbers that only this process can use are left out.
impl Serialize for FleetEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        FleetNotice::from(self).serialize(serializer)
    }
}

impl Serialize for FleetNotice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let serialized = match self {
            FleetNotice::Joined { token } => SerializedFleetEvent::Joined { token: *token },
            FleetNotice::Left { why } => SerializedFleetEvent::Left { reason: *why },
            FleetNotice::Assigned { shard, token } => {
                SerializedFleetEvent::Assigned { shard, token: *token }
            }
            FleetNotice::Revoked { shard, token, why } => {
                SerializedFleetEvent::Revoked { shard, token: *token, reason: *why }
            }
            FleetNotice::Released { shard, token, why } => {
                SerializedFleetEvent::Released { shard, token: *token, reason: *why }
            }
            FleetNotice::Panicked { shard, token, message } => {
                SerializedFleetEvent::Panicked { shard, token: *token, message }
            }
            FleetNotice::StoreUnreachable(error) => store_event(Some(error)),
            FleetNotice::StoreBack => store_event(None),
            FleetNotice::Source(message) => SerializedFleetEvent::Source { message },
            FleetNotice::Lists(lists) => {
                let lists = lists.iter().map(|(member, shards)| (member.as_str(), *shards));
                SerializedFleetEvent::Lists { lists: lists.collect() }
            }
            FleetNotice::Unowned(count, _) => SerializedFleetEvent::Unowned { count: *count },
            FleetNotice::Missed(count) => SerializedFleetEvent::Missed { count: *count },
        };
        serialized.serialize(serializer)
    }
}
