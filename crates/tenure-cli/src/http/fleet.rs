//! `/fleet`: who is there, and who has what. As in the store, where everybody's shards are, and not only ours; with those the
//! source names and nobody has ever owned.

use std::sync::Weak;
use std::time::Duration;

use axum::body::Bytes;
use serde::Serialize;
use tenure::fleet::source::Shards;
use tenure::fleet::{Survey, survey};
use tenure::{Name, Store};

use super::member::Member;
use super::reply::Refusal;
use crate::reach;

/// A reading is good for so long. It is much work for the store: it looks at every shard.
pub(super) const FRESH: Duration = Duration::from_secs(2);

#[derive(Debug, Serialize)]
struct Body<'a> {
    name: &'a str,
    members: Vec<MemberRow<'a>>,
    shards: Vec<ShardRow<'a>>,
}

#[derive(Debug, Serialize)]
struct MemberRow<'a> {
    id: &'a str,
    shards: usize,
    drained: bool,
    url: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct ShardRow<'a> {
    shard: &'a str,
    owner: Option<&'a str>,
    token: Option<u64>,
    paused: bool,
}

impl<'a> Body<'a> {
    fn new(name: &'a Name, survey: &'a Survey, source: &Shards) -> Body<'a> {
        let shares = survey.shares();
        let members = survey.members.iter().map(|member| MemberRow {
            id: member.id.as_str(),
            shards: shares.get(member.id.as_str()).copied().unwrap_or(0),
            drained: member.drained,
            url: Some(member.note.as_str()).filter(|url| !url.is_empty()),
        });
        let shards = survey.shards.iter().map(|(shard, owned)| ShardRow {
            shard: shard.as_str(),
            owner: owned.owner.as_deref(),
            token: owned.token.map(|token| token.get()),
            paused: owned.paused || source.is_paused(shard.as_str()),
        });
        Body { name: name.as_str(), members: members.collect(), shards: shards.collect() }
    }
}

/// `member` is not kept alive by it: whoever ends it need not wait for us.
pub(super) async fn read(
    member: &Weak<Member>,
    store: &dyn Store,
    patience: Duration,
) -> Result<Bytes, Refusal> {
    let gone = || Refusal::busy("this instance is about to end");
    let (name, source) = member.upgrade().map(|member| member.sight()).ok_or_else(gone)?;
    let known = source.shards.iter().cloned();
    let found = reach::patiently(&store.url(), patience, survey(store, &name, known)).await;
    let found = found.map_err(|error| Refusal::of(&error))?;
    let body = serde_json::to_vec(&Body::new(&name, &found, &source));
    body.map(Bytes::from).map_err(|_| Refusal::busy("the fleet cannot be written as JSON"))
}
