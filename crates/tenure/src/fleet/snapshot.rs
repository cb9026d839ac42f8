//! A fleet as anybody can see it in the store, also from outside.

use std::collections::BTreeMap;

use super::overrides::{self, Overrides};
use super::shard::{leases_prefix, member_of, nodes_prefix};
use super::{ListDigest, Member, Shard};
use crate::error::{Error, Result};
use crate::lease::{Lease, Name, Token};
use crate::store::{Scope, Store};

/// Who is there, and who has what.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// In the order of their ids.
    pub members: Vec<Member>,
    /// In the order of their names: those that were ever owned, and those that were given.
    pub shards: BTreeMap<Shard, OwnedShard>,
    /// What people have said.
    pub overrides: Overrides,
    /// What lies where a member's or a shard's lease should and cannot be read as one. It hides none of the others.
    pub unreadable: Vec<Error>,
}

/// Who has a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedShard {
    /// Its id, as found: show it escaped. `None` where there is none.
    pub owner: Option<String>,
    /// The token of the current or last term.
    pub token: Option<Token>,
    /// Whether somebody has paused it.
    pub paused: bool,
}

impl Snapshot {
    /// How many shards this member has.
    pub fn share(&self, member: &str) -> usize {
        self.shards.values().filter(|shard| shard.owner.as_deref() == Some(member)).count()
    }

    /// How many shards each member lists, `None` for a member that has announced no list; empty if all announced lists are the same.
    pub fn differing_lists(&self) -> BTreeMap<&str, Option<usize>> {
        let mut announced = self.members.iter().filter(|member| member.list.is_announced());
        let first = announced.next();
        if announced.all(|member| first.is_none_or(|first| first.list == member.list)) {
            return BTreeMap::new();
        }
        let shards = |member: &Member| member.list.is_announced().then(|| member.list.shards());
        self.members.iter().map(|member| (member.id.as_str(), shards(member))).collect()
    }

    /// How many each has, of those that have any.
    pub fn shares(&self) -> BTreeMap<&str, usize> {
        let mut shares = BTreeMap::new();
        for owner in self.shards.values().filter_map(|shard| shard.owner.as_deref()) {
            *shares.entry(owner).or_insert(0) += 1;
        }
        shares
    }
}

/// Reads all there is to see. `known`: shards that are there whether anybody has ever owned them or not.
///
/// # Errors
/// As those of [`Store::observe`].
pub async fn survey(
    store: &dyn Store,
    fleet: &Name,
    known: impl IntoIterator<Item = Shard>,
) -> Result<Snapshot> {
    let overrides = overrides::read(store, fleet).await?;
    let mut survey = Snapshot { overrides, ..Snapshot::default() };
    let nodes = store.observe(&Scope::Prefix(nodes_prefix(fleet))).await?;
    let nodes = readable(nodes, &mut survey.unreadable);
    for lease in nodes.into_iter().filter(|lease| lease.holder.is_some()) {
        let Some(id) = member_of(fleet, &lease.name) else { continue };
        let drained = survey.overrides.drained.contains(&id);
        let list = ListDigest::announced(lease.checkpoint.as_ref());
        survey.members.push(Member { id, note: lease.note.as_str().to_owned(), drained, list });
    }
    survey.members.sort_by(|a, b| a.id.cmp(&b.id));
    survey.shards = known.into_iter().map(|shard| (shard, OwnedShard::default())).collect();
    // Of a long name the lease says only the hash, unless somebody holds it; but we may know it.
    let hashed: BTreeMap<Name, Shard> = survey
        .shards
        .keys()
        .map(|shard| (shard.lease(fleet), shard.clone()))
        .filter(|(lease, _)| Shard::is_cut(fleet, lease))
        .collect();
    let leases = store.observe(&Scope::Prefix(leases_prefix(fleet))).await?;
    for lease in readable(leases, &mut survey.unreadable) {
        let shard = hashed.get(&lease.name).cloned().or_else(|| Shard::of(fleet, &lease));
        let Some(shard) = shard else { continue };
        let owner = lease.leader().map(str::to_owned);
        survey.shards.insert(shard, OwnedShard { owner, token: lease.token, paused: false });
    }
    for shard in &survey.overrides.paused {
        survey.shards.entry(shard.clone()).or_default().paused = true;
    }
    Ok(survey)
}

/// What can be read; the rest goes to `unreadable`.
fn readable(leases: Vec<Result<Lease>>, unreadable: &mut Vec<Error>) -> Vec<Lease> {
    leases
        .into_iter()
        .filter_map(|lease| lease.map_err(|error| unreadable.push(error)).ok())
        .collect()
}
