//! What is told of an event, and in which words: those of `tenure watch --json`, and for a fleet its own.

use serde::Serialize;
use tenure::election::Why;
use tenure::{CandidateId, Event, fleet};

use super::news::News;
use crate::startup_wait;

/// What happened to the leading, or to the store.
#[derive(Debug, Default, Serialize)]
struct Change {
    from: Option<String>,
    to: Option<String>,
    token: Option<u64>,
    reason: Option<String>,
    /// How long until this candidate leads.
    #[serde(skip_serializing_if = "Option::is_none", rename = "startsInMs")]
    starts_in_ms: Option<u64>,
}

/// What happened to a member's shards.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Dealt<'a> {
    Assigned { shard: &'a str, token: u64 },
    Revoked { shard: &'a str, token: u64, reason: &'static str },
    Joined { token: u64 },
    Left { reason: &'static str },
    Unowned { count: usize },
}

fn reach(is: bool) -> Option<String> {
    Some(if is { "reachable" } else { "unreachable" }.to_owned())
}

/// The store is gone, or back.
fn store(error: Option<&tenure::Error>) -> Change {
    Change {
        from: reach(error.is_some()),
        to: reach(error.is_none()),
        reason: error.map(ToString::to_string),
        ..Change::default()
    }
}

/// Tells of an event of the election, if it is one that people outside are told.
pub(super) fn of_candidate(news: &News, name: &str, me: &CandidateId, event: &Event) {
    let me = || Some(me.to_string());
    let (event, change) = match event {
        Event::BecameLeader { token, .. } => {
            ("became", Change { to: me(), token: Some(token.get()), ..Change::default() })
        }
        Event::Starting { token, wait } => {
            let (token, reason) = (Some(token.get()), Some(wait.reason.to_string()));
            let starts_in_ms = Some(startup_wait::in_millis(wait.left));
            ("starting", Change { token, reason, starts_in_ms, ..Change::default() })
        }
        Event::LostLeadership { token, why } => {
            let (token, reason) = (Some(token.get()), Some(reason(why)));
            ("lost", Change { from: me(), token, reason, ..Change::default() })
        }
        Event::LeaderChanged { from, to } => {
            ("changed", Change { from: from.clone(), to: to.clone(), ..Change::default() })
        }
        Event::StoreUnreachable(error) => ("store", store(Some(error))),
        Event::StoreBack => ("store", store(None)),
        _ => return,
    };
    news.tell(name, event, &change);
}

/// The same for an event of the fleet. Each is told: what comes in a flood goes as one.
pub(super) fn of_member(news: &News, name: &str, event: &fleet::Event) {
    let (event, dealt) = match event {
        fleet::Event::Assigned { shard, token, .. } => {
            ("assigned", Dealt::Assigned { shard: shard.as_str(), token: token.get() })
        }
        fleet::Event::Revoked { shard, token, why, .. } => {
            let (shard, token) = (shard.as_str(), token.get());
            ("revoked", Dealt::Revoked { shard, token, reason: why.as_str() })
        }
        fleet::Event::Joined { hold, .. } => ("joined", Dealt::Joined { token: hold.token.get() }),
        fleet::Event::Left { why, .. } => ("left", Dealt::Left { reason: why.as_str() }),
        fleet::Event::Unowned(count, _) => ("unowned", Dealt::Unowned { count: *count }),
        fleet::Event::StoreUnreachable(error) => {
            return news.tell(name, "store", &store(Some(error)));
        }
        fleet::Event::StoreBack => return news.tell(name, "store", &store(None)),
        _ => return,
    };
    news.tell(name, event, &dealt);
}

/// Why a term ended, in a few words.
fn reason(why: &Why) -> String {
    match why {
        Why::Unreachable(_) => "store unreachable".to_owned(),
        Why::StoreError(error) => error.to_string(),
        Why::Paused(time) => {
            format!("this process did not run for {}", crate::duration::shown(*time))
        }
        Why::Refused(Some(by)) => format!("the store says that it is led by {by}"),
        Why::Refused(None) => "the store says that it is not ours any more".to_owned(),
        Why::Asked => "asked".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_term_names_what_the_store_answered() {
        let why = Why::StoreError(tenure::Error::corrupt("'job' is not a lease"));
        assert_eq!(reason(&why), "'job' is not a lease");
    }
}
