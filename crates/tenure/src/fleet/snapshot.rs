//! A snapshot of a fleet, observed in the store: its members, its shards and their owners. No membership is needed for it.

use std::collections::BTreeMap;

use super::overrides::{self, Overrides};
use super::shard::{leases_prefix, member_of, nodes_prefix};
use super::{ListDigest, Member, Shard};
use crate::error::{Error, Result};
use crate::lease::{Lease, Name, Token};
use crate::store::{Scope, Store};

/// The members of a fleet, and the owner of each shard.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// The members, in the order of their ids.
    pub members: Vec<Member>,
    /// The shards, in the order of their names: those that were ever owned, and those that the caller has passed.
    pub shards: BTreeMap<Shard, OwnedShard>,
    /// The paused shards and drained members.
    pub overrides: Overrides,
    /// The errors of membership and shard leases that cannot be read. They hide no other lease.
    pub unreadable: Vec<Error>,
}

/// The owner of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedShard {
    /// The id of the owner as found in the store, so show it escaped; `None` if the shard has no owner.
    pub owner: Option<String>,
    /// The token of the current or last term.
    pub token: Option<Token>,
    /// Whether an operator has paused it.
    pub paused: bool,
}

impl Snapshot {
    /// How many shards this member owns.
    pub fn share(&self, member: &str) -> usize {
        self.shards.values().filter(|shard| shard.owner.as_deref() == Some(member)).count()
    }

    /// How many shards each member lists, `None` for a member that has announced no list; empty if all announced lists are the
    /// same.
    pub fn differing_lists(&self) -> BTreeMap<&str, Option<usize>> {
        let mut announced = self.members.iter().filter(|member| member.list.is_announced());
        let first = announced.next();
        if announced.all(|member| first.is_none_or(|first| first.list == member.list)) {
            return BTreeMap::new();
        }
        let shards = |member: &Member| member.list.is_announced().then(|| member.list.shards());
        self.members.iter().map(|member| (member.id.as_str(), shards(member))).collect()
    }

    /// How many shards each owner has.
    pub fn shares(&self) -> BTreeMap<&str, usize> {
        let mut shares = BTreeMap::new();
        for owner in self.shards.values().filter_map(|shard| shard.owner.as_deref()) {
            *shares.entry(owner).or_insert(0) += 1;
        }
        shares
    }
}

/// Observes the whole fleet. `known`: shards to include even if no member has ever owned them.
///
/// # Errors
/// As those of [`Store::observe`].
pub async fn observe_fleet(
    store: &dyn Store,
    fleet: &Name,
    known: impl IntoIterator<Item = Shard>,
) -> Result<Snapshot> {
    let overrides = overrides::read(store, fleet).await?;
    let mut snapshot = Snapshot { overrides, ..Snapshot::default() };
    let nodes = store.observe(&Scope::Prefix(nodes_prefix(fleet))).await?;
    let nodes = readable(nodes, &mut snapshot.unreadable);
    for lease in nodes.into_iter().filter(|lease| lease.holder.is_some()) {
        let Some(id) = member_of(fleet, &lease.name) else { continue };
        let drained = snapshot.overrides.drained.contains(&id);
        let list = ListDigest::announced(lease.checkpoint.as_ref());
        snapshot.members.push(Member { id, note: lease.note.as_str().to_owned(), drained, list });
    }
    snapshot.members.sort_by(|a, b| a.id.cmp(&b.id));
    snapshot.shards = known.into_iter().map(|shard| (shard, OwnedShard::default())).collect();
    // The lease name of a long shard holds only a hash, and its note is there only while the lease is held; but the caller may
    // know it.
    let hashed: BTreeMap<Name, Shard> = snapshot
        .shards
        .keys()
        .map(|shard| (shard.lease(fleet), shard.clone()))
        .filter(|(lease, _)| Shard::is_cut(fleet, lease))
        .collect();
    let leases = store.observe(&Scope::Prefix(leases_prefix(fleet))).await?;
    for lease in readable(leases, &mut snapshot.unreadable) {
        let shard = hashed.get(&lease.name).cloned().or_else(|| Shard::of(fleet, &lease));
        let Some(shard) = shard else { continue };
        let owner = lease.leader().map(str::to_owned);
        snapshot.shards.insert(shard, OwnedShard { owner, token: lease.token, paused: false });
    }
    for shard in &snapshot.overrides.paused {
        snapshot.shards.entry(shard.clone()).or_default().paused = true;
    }
    Ok(snapshot)
}

/// The leases that can be read; the errors of the others go to `unreadable`.
fn readable(leases: Vec<Result<Lease>>, unreadable: &mut Vec<Error>) -> Vec<Lease> {
    leases
        .into_iter()
        .filter_map(|lease| lease.map_err(|error| unreadable.push(error)).ok())
        .collect()
}
