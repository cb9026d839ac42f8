//! The serialized form of an [`Event`].

use serde::{Serialize, Serializer};

use super::millis;
use crate::election::Event;
use crate::error::{Error, Kind};
use crate::lease::{StartupWait, Token};
use crate::machine::EndReason;

/// Names and fields of the command's `/events` and `tenure watch --json`. `at` and `name` are the caller's to add.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum SerializedEvent<'a> {
    Became {
        token: Token,
    },
    Starting {
        token: Token,
        #[serde(flatten)]
        wait: StartupWait,
    },
    Lost {
        token: Token,
        reason: &'a EndReason,
        /// What the store answered.
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
        /// The candidate that holds the lease now.
        #[serde(skip_serializing_if = "Option::is_none")]
        to: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        paused_ms: Option<u64>,
    },
    Released {
        token: Token,
    },
    Changed {
        from: Option<&'a str>,
        to: Option<&'a str>,
    },
    Store {
        from: &'static str,
        to: &'static str,
        /// What the store answered.
        reason: Option<String>,
        kind: Option<Kind>,
    },
}

/// The store became unreachable with this error, or reachable again.
pub(super) fn reachability(error: Option<&Error>) -> (&'static str, &'static str) {
    match error {
        Some(_) => ("reachable", "unreachable"),
        None => ("unreachable", "reachable"),
    }
}

fn store_event(error: Option<&Error>) -> SerializedEvent<'static> {
    let (from, to) = reachability(error);
    let (reason, kind) = (error.map(ToString::to_string), error.map(Error::kind));
    SerializedEvent::Store { from, to, reason, kind }
}

fn lost(token: Token, why: &EndReason) -> SerializedEvent<'_> {
    let detail = match why {
        EndReason::StoreError(error) => Some(error.to_string()),
        _ => None,
    };
    let to = match why {
        EndReason::Refused(holder) => holder.as_deref(),
        _ => None,
    };
    let paused_ms = match why {
        EndReason::Paused(time) => Some(millis(*time)),
        _ => None,
    };
    SerializedEvent::Lost { token, reason: why, detail, to, paused_ms }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let serialized = match self {
            Event::BecameLeader { token, checkpoint: _ } => {
                SerializedEvent::Became { token: *token }
            }
            Event::Starting { token, wait } => {
                SerializedEvent::Starting { token: *token, wait: *wait }
            }
            Event::LostLeadership { token, why } => lost(*token, why),
            Event::Released { token } => SerializedEvent::Released { token: *token },
            Event::LeaderChanged { from, to } => {
                SerializedEvent::Changed { from: from.as_deref(), to: to.as_deref() }
            }
            Event::StoreUnreachable(error) => store_event(Some(error)),
            Event::StoreBack => store_event(None),
        };
        serialized.serialize(serializer)
    }
}
