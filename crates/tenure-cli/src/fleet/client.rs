//! The client of a fleet: a process that is not a member observes the fleet in the store, and changes its control record.
//!
//! The control record (drained members, paused shards) is the only way to control a fleet from outside.

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

/// The timeout for reading all leases: a hundred thousand leases take time. A store that is down is detected before, by a
/// read with a shorter timeout.
const OBSERVE_ALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a change of the control record waits behind concurrent changes.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct FleetClient<'a> {
    fleet: &'a Name,
    store: Arc<dyn Store>,
    /// The store's URL, with its password if it has one: never shown.
    url: String,
}

impl<'a> FleetClient<'a> {
    pub(super) async fn open(args: &Args, fleet: &'a Name) -> Result<FleetClient<'a>> {
        let (choice, store) = store_access::open_chosen(args).await?;
        Ok(FleetClient { fleet, store, url: choice.url })
    }

    /// Observes the whole fleet, including the shards in Redis sets that have never had an owner.
    pub(super) async fn snapshot(&self) -> Result<Snapshot> {
        // A store that is down is reported here, even though errors of the sets are ignored below.
        self.control().await?;
        let sets = redis_sets::both(&self.url, self.fleet).await.unwrap_or_else(|error| {
            // The fleet may have another source; then there are no sets to read.
            tracing::debug!(%error, "without what is in the sets");
            Shards::default()
        });
        let known = sets.shards().iter().cloned();
        let observe = fleet::observe_fleet(&*self.store, self.fleet, known);
        let mut snapshot =
            store_access::with_timeout(&self.store.url(), OBSERVE_ALL_TIMEOUT, observe).await?;
        for shard in sets.paused() {
            snapshot.shards.entry(shard.clone()).or_default().paused = true;
        }
        Ok(snapshot)
    }

    /// Reads the control record.
    pub(super) async fn control(&self) -> Result<Overrides> {
        let read = overrides::read(&*self.store, self.fleet);
        store_access::with_timeout(&self.store.url(), store_access::STORE_TIMEOUT, read).await
    }

    /// Changes the control record.
    pub(super) async fn change(
        &self,
        change: impl FnOnce(&mut Overrides) + Send,
    ) -> Result<Overrides> {
        let me = CandidateId::generate();
        let changed = overrides::change(&*self.store, self.fleet, &me, CHANGE_TIMEOUT, change);
        store_access::with_timeout(
            &self.store.url(),
            CHANGE_TIMEOUT + store_access::STORE_TIMEOUT,
            changed,
        )
        .await
    }

    /// The ids of the current members.
    pub(super) async fn members(&self) -> Result<Vec<CandidateId>> {
        let nodes =
            store_access::observe(&*self.store, &Scope::Prefix(nodes_prefix(self.fleet))).await?;
        let held = nodes.into_iter().flatten().filter(|lease| lease.holder.is_some());
        Ok(held.filter_map(|lease| member_of(self.fleet, &lease.name)).collect())
    }

    /// Whether this candidate is a member now.
    pub(super) async fn is_member(&self, member: &CandidateId) -> Result<bool> {
        let lease = store_access::observe_one(&*self.store, &node(self.fleet, member)).await?;
        Ok(lease.is_some_and(|lease| lease.holder.is_some()))
    }

    /// The number of shards that this member owns.
    pub(super) async fn share(&self, member: &CandidateId) -> Result<usize> {
        let scope = Scope::Prefix(leases_prefix(self.fleet));
        let observe = self.store.observe(&scope);
        let leases =
            store_access::with_timeout(&self.store.url(), OBSERVE_ALL_TIMEOUT, observe).await?;
        let holders = leases.iter().flatten().filter_map(|lease| lease.holder.as_ref());
        Ok(holders.filter(|holder| holder.id == member.as_str()).count())
    }

    /// The leases of these shards, in the same order; `None` for a shard that has never had an owner.
    pub(super) async fn leases(&self, shards: &[Shard]) -> Result<Vec<Option<Lease>>> {
        let names: Vec<Name> = shards.iter().map(|shard| shard.lease(self.fleet)).collect();
        let observed = store_access::observe(&*self.store, &Scope::Names(names.clone())).await?;
        let observed =
            observed.into_iter().map(|lease| lease.map(|lease| (lease.name.clone(), lease)));
        let mut observed: HashMap<Name, Lease> = observed.collect::<Result<_>>()?;
        Ok(names.iter().map(|name| observed.remove(name)).collect())
    }

    /// The shards in the Redis set of paused shards.
    pub(super) async fn paused_in_set(&self) -> Result<Vec<Shard>> {
        redis_sets::paused(&self.url, self.fleet).await
    }

    /// Removes shards from the Redis set of paused shards.
    pub(super) async fn unpause_in_set(&self, shards: &[Shard]) -> Result<()> {
        let unpaused = redis_sets::unpause(&self.url, self.fleet, shards);
        store_access::with_timeout(&self.store.url(), store_access::STORE_TIMEOUT, unpaused).await
    }
}
