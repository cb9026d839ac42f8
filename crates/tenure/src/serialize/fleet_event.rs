//! The serialized form of a [`FleetEvent`].

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::event::reachability;
use crate::error::{Error, Kind};
use crate::fleet::{FleetEvent, Reason, Shard};
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
    Store { from: &'static str, to: &'static str, reason: Option<String>, kind: Option<Kind> },
    Source { message: &'a str },
    Lists { lists: BTreeMap<&'a str, usize> },
    Unowned { count: usize },
}

fn store_event(error: Option<&Error>) -> SerializedFleetEvent<'static> {
    let (from, to) = reachability(error);
    let (reason, kind) = (error.map(ToString::to_string), error.map(Error::kind));
    SerializedFleetEvent::Store { from, to, reason, kind }
}

/// The handles and numbers that only this process can use are left out.
impl Serialize for FleetEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let serialized = match self {
            FleetEvent::Joined { token, .. } => SerializedFleetEvent::Joined { token: *token },
            FleetEvent::Left { why, .. } => SerializedFleetEvent::Left { reason: *why },
            FleetEvent::Assigned { shard, token, .. } => {
                SerializedFleetEvent::Assigned { shard, token: *token }
            }
            FleetEvent::Revoked { shard, token, why, .. } => {
                SerializedFleetEvent::Revoked { shard, token: *token, reason: *why }
            }
            FleetEvent::Released { shard, token, why, .. } => {
                SerializedFleetEvent::Released { shard, token: *token, reason: *why }
            }
            FleetEvent::StoreUnreachable(error) => store_event(Some(error)),
            FleetEvent::StoreBack => store_event(None),
            FleetEvent::Source(message) => SerializedFleetEvent::Source { message },
            FleetEvent::Lists(lists) => {
                let lists = lists.iter().map(|(member, shards)| (member.as_str(), *shards));
                SerializedFleetEvent::Lists { lists: lists.collect() }
            }
            FleetEvent::Unowned(count, _) => SerializedFleetEvent::Unowned { count: *count },
        };
        serialized.serialize(serializer)
    }
}
