//! A fleet as its store shows it, to those who take no part in it; and the one way in which they steer it, the control record.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::fleet::overrides::{self, Overrides};
use tenure::fleet::source::Shards;
use tenure::fleet::{self, Shard, Snapshot, leases_prefix, member_of, node, nodes_prefix};
use tenure::store::{Scope, Store};
use tenure::{CandidateId, Lease, Name, Result};

use super::redis_sets;
use crate::args::Args;
use crate::store_access;

/// A hundred thousand leases are not read at once; a store that is down is found out about before.
const PATIENCE_WITH_ALL: Duration = Duration::from_secs(60);
/// How long we stand in line behind others who have something to say about the fleet.
const IN_LINE: Duration = Duration::from_secs(10);

pub(super) struct FleetClient<'a> {
    fleet: &'a Name,
    store: Arc<dyn Store>,
    /// With its password, if it has one: never shown.
    url: String,
}

impl<'a> FleetClient<'a> {
    pub(super) async fn open(args: &Args, fleet: &'a Name) -> Result<FleetClient<'a>> {
        let (choice, store) = store_access::open_chosen(args).await?;
        Ok(FleetClient { fleet, store, url: choice.url })
    }

    /// All there is to see, also those of Redis' own sets that nobody has ever owned.
    pub(super) async fn survey(&self) -> Result<Snapshot> {
        // A store that is down says so here, whatever is made of the sets.
        self.control().await?;
        let sets = redis_sets::both(&self.url, self.fleet).await.unwrap_or_else(|error| {
            // It may be a fleet with another source, and then there is nothing to read.
            tracing::debug!(%error, "without what is in the sets");
            Shards::default()
        });
        let seen = fleet::survey(&*self.store, self.fleet, sets.shards);
        let mut survey =
            store_access::patiently(&self.store.url(), PATIENCE_WITH_ALL, seen).await?;
        for shard in sets.paused {
            survey.shards.entry(shard).or_default().paused = true;
        }
        Ok(survey)
    }

    /// What people have said.
    pub(super) async fn control(&self) -> Result<Overrides> {
        let read = overrides::read(&*self.store, self.fleet);
        store_access::patiently(&self.store.url(), store_access::PATIENCE, read).await
    }

    /// Says something.
    pub(super) async fn change(
        &self,
        change: impl FnOnce(&mut Overrides) + Send,
    ) -> Result<Overrides> {
        let me = CandidateId::generate();
        let changed = overrides::change(&*self.store, self.fleet, &me, IN_LINE, change);
        store_access::patiently(&self.store.url(), IN_LINE + store_access::PATIENCE, changed).await
    }

    /// Who takes part.
    pub(super) async fn members(&self) -> Result<Vec<CandidateId>> {
        let nodes =
            store_access::observe(&*self.store, &Scope::Prefix(nodes_prefix(self.fleet))).await?;
        let held = nodes.into_iter().flatten().filter(|lease| lease.holder.is_some());
        Ok(held.filter_map(|lease| member_of(self.fleet, &lease.name)).collect())
    }

    /// Whether this one takes part.
    pub(super) async fn is_member(&self, member: &CandidateId) -> Result<bool> {
        let scope = Scope::name(&node(self.fleet, member));
        let lease = store_access::observe(&*self.store, &scope).await?.pop().transpose()?;
        Ok(lease.is_some_and(|lease| lease.holder.is_some()))
    }

    /// How many shards this one owns.
    pub(super) async fn share(&self, member: &CandidateId) -> Result<usize> {
        let scope = Scope::Prefix(leases_prefix(self.fleet));
        let seen = self.store.observe(&scope);
        let leases = store_access::patiently(&self.store.url(), PATIENCE_WITH_ALL, seen).await?;
        let holders = leases.iter().flatten().filter_map(|lease| lease.holder.as_ref());
        Ok(holders.filter(|holder| holder.id == member.as_str()).count())
    }

    /// The leases of these shards, in their order; `None` for one that nobody has ever owned.
    pub(super) async fn leases(&self, shards: &[Shard]) -> Result<Vec<Option<Lease>>> {
        let names: Vec<Name> = shards.iter().map(|shard| shard.lease(self.fleet)).collect();
        let seen = store_access::observe(&*self.store, &Scope::Names(names.clone())).await?;
        let seen = seen.into_iter().map(|lease| lease.map(|lease| (lease.name.clone(), lease)));
        let mut seen: HashMap<Name, Lease> = seen.collect::<Result<_>>()?;
        Ok(names.iter().map(|name| seen.remove(name)).collect())
    }

    /// Which shards are paused in Redis' own set.
    pub(super) async fn paused_in_set(&self) -> Result<Vec<Shard>> {
        redis_sets::paused(&self.url, self.fleet).await
    }

    /// Takes shards out of that set.
    pub(super) async fn unpause_in_set(&self, shards: &[Shard]) -> Result<()> {
        let unpaused = redis_sets::unpause(&self.url, self.fleet, shards);
        store_access::patiently(&self.store.url(), store_access::PATIENCE, unpaused).await
    }
}
