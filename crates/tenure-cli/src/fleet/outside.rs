//! A fleet as its store shows it, to those who take no part in it; and the one way in which they steer it, the control record.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::fleet::control::{self, Control};
use tenure::fleet::source::Shards;
use tenure::fleet::{self, Shard, Survey, leases_prefix, member_of, node, nodes_prefix};
use tenure::store::{Scope, Store};
use tenure::{CandidateId, Lease, Name, Result};

use super::sets;
use crate::args::Args;
use crate::reach;

/// A hundred thousand leases are not read at once; a store that is down is found out about before.
const PATIENCE_WITH_ALL: Duration = Duration::from_secs(60);
/// How long we stand in line behind others who have something to say about the fleet.
const IN_LINE: Duration = Duration::from_secs(10);

pub(super) struct Outside<'a> {
    fleet: &'a Name,
    store: Arc<dyn Store>,
    /// With its password, if it has one: never shown.
    url: String,
}

impl<'a> Outside<'a> {
    pub(super) async fn open(args: &Args, fleet: &'a Name) -> Result<Outside<'a>> {
        let (choice, store) = reach::open_chosen(args).await?;
        Ok(Outside { fleet, store, url: choice.url })
    }

    /// All there is to see, also those of Redis' own sets that nobody has ever owned.
    pub(super) async fn survey(&self) -> Result<Survey> {
        // A store that is down says so here, whatever is made of the sets.
        self.control().await?;
        let sets = sets::both(&self.url, self.fleet).await.unwrap_or_else(|error| {
            // It may be a fleet with another source, and then there is nothing to read.
            tracing::debug!(%error, "without what is in the sets");
            Shards::default()
        });
        let seen = fleet::survey(&*self.store, self.fleet, sets.shards);
        let mut survey = reach::patiently(&self.store.url(), PATIENCE_WITH_ALL, seen).await?;
        for shard in sets.paused {
            survey.shards.entry(shard).or_default().paused = true;
        }
        Ok(survey)
    }

    /// What people have said.
    pub(super) async fn control(&self) -> Result<Control> {
        let read = control::read(&*self.store, self.fleet);
        reach::patiently(&self.store.url(), reach::PATIENCE, read).await
    }

    /// Says something.
    pub(super) async fn change(&self, change: impl FnOnce(&mut Control) + Send) -> Result<Control> {
        let me = CandidateId::generate();
        let changed = control::change(&*self.store, self.fleet, &me, IN_LINE, change);
        reach::patiently(&self.store.url(), IN_LINE + reach::PATIENCE, changed).await
    }

    /// Who takes part.
    pub(super) async fn members(&self) -> Result<Vec<CandidateId>> {
        let nodes = reach::observe(&*self.store, &Scope::Prefix(nodes_prefix(self.fleet))).await?;
        let held = nodes.into_iter().flatten().filter(|lease| lease.holder.is_some());
        Ok(held.filter_map(|lease| member_of(self.fleet, &lease.name)).collect())
    }

    /// Whether this one takes part.
    pub(super) async fn is_member(&self, member: &CandidateId) -> Result<bool> {
        let scope = Scope::name(&node(self.fleet, member));
        let lease = reach::observe(&*self.store, &scope).await?.pop().transpose()?;
        Ok(lease.is_some_and(|lease| lease.holder.is_some()))
    }

    /// How many shards this one owns.
    pub(super) async fn share(&self, member: &CandidateId) -> Result<usize> {
        let scope = Scope::Prefix(leases_prefix(self.fleet));
        let seen = self.store.observe(&scope);
        let leases = reach::patiently(&self.store.url(), PATIENCE_WITH_ALL, seen).await?;
        let holders = leases.iter().flatten().filter_map(|lease| lease.holder.as_ref());
        Ok(holders.filter(|holder| holder.id == member.as_str()).count())
    }

    /// The leases of these shards, in their order; `None` for one that nobody has ever owned.
    pub(super) async fn leases(&self, shards: &[Shard]) -> Result<Vec<Option<Lease>>> {
        let names: Vec<Name> = shards.iter().map(|shard| shard.lease(self.fleet)).collect();
        let seen = reach::observe(&*self.store, &Scope::Names(names.clone())).await?;
        let seen = seen.into_iter().map(|lease| lease.map(|lease| (lease.name.clone(), lease)));
        let mut seen: HashMap<Name, Lease> = seen.collect::<Result<_>>()?;
        Ok(names.iter().map(|name| seen.remove(name)).collect())
    }

    /// Which shards are paused in Redis' own set.
    pub(super) async fn paused_in_set(&self) -> Result<Vec<Shard>> {
        sets::paused(&self.url, self.fleet).await
    }

    /// Takes shards out of that set.
    pub(super) async fn unpause_in_set(&self, shards: &[Shard]) -> Result<()> {
        let unpaused = sets::unpause(&self.url, self.fleet, shards);
        reach::patiently(&self.store.url(), reach::PATIENCE, unpaused).await
    }
}
