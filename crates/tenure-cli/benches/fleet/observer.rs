//! Watches the leases of the shards, and records each change with a timestamp.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use tenure::fleet::{leases_prefix, observe_fleet};
use tenure::store::{Change, Scope, Store};
use tenure::{Moment, Name};
use tokio::runtime::Runtime;

use tenure_rig::system::time::{now, poll_until, runtime};

/// One change of a shard.
#[derive(Clone, Debug)]
pub(crate) struct ObservedChange {
    pub(crate) at: Moment,
    pub(crate) shard: String,
    /// The token and the new owner; `None`: the shard was freed.
    pub(crate) granted: Option<(u64, String)>,
}

pub(crate) struct Observer {
    fleet: Name,
    store: Arc<dyn Store>,
    runtime: Runtime,
    observed: Arc<Mutex<Vec<ObservedChange>>>,
}

impl Observer {
    /// Starts to watch.
    pub(crate) fn start(url: &str, fleet: &Name) -> Observer {
        let runtime = runtime();
        let store = runtime.block_on(tenure::open(url)).unwrap();
        let observed = Arc::<Mutex<Vec<ObservedChange>>>::default();
        let (ready, waiting) = std::sync::mpsc::channel();
        let (kept, url, prefix) = (observed.clone(), url.to_owned(), leases_prefix(fleet));
        // It ends with the bench.
        std::thread::spawn(move || {
            tenure_rig::system::time::runtime().block_on(async {
                let store = tenure::open(&url).await.unwrap();
                let mut changes = store.watch(&Scope::Prefix(prefix.clone()));
                while let Some(change) = changes.next().await {
                    let at = now();
                    let shard = |name: &Name| name.as_str()[prefix.len()..].to_owned();
                    let observed = match change {
                        Change::Granted { name, token, holder } => {
                            let holder = holder.map(|holder| holder.to_string());
                            let granted = Some((token.get(), holder.unwrap_or_default()));
                            ObservedChange { at, shard: shard(&name), granted }
                        }
                        Change::Freed { name, .. } => {
                            ObservedChange { at, shard: shard(&name), granted: None }
                        }
                        _ => {
                            let _ = ready.send(());
                            continue;
                        }
                    };
                    kept.lock().unwrap().push(observed);
                }
            });
        });
        waiting.recv_timeout(Duration::from_secs(10)).expect("the store listens");
        Observer { fleet: fleet.clone(), store, runtime, observed }
    }

    /// The changes since the last call.
    pub(crate) fn take(&self) -> Vec<ObservedChange> {
        std::mem::take(&mut self.observed.lock().unwrap())
    }

    /// The number of shards of each member in the store now.
    pub(crate) fn shares(&self) -> BTreeMap<String, usize> {
        let snapshot = self.runtime.block_on(observe_fleet(&*self.store, &self.fleet, [])).unwrap();
        snapshot.shares().into_iter().map(|(member, share)| (member.to_owned(), share)).collect()
    }

    /// Waits until this many members own all shards, evenly.
    pub(crate) fn settled(&self, members: usize, shards: usize) -> BTreeMap<String, usize> {
        let settled = poll_until(Duration::from_secs(60), || {
            let shares = self.shares();
            let (least, most) = (shares.values().min()?, shares.values().max()?);
            let even = shares.len() == members && most - least <= 1;
            if even && shares.values().sum::<usize>() == shards {
                return Some(shares);
            }
            tenure_rig::system::time::pause(Duration::from_millis(100));
            None
        });
        settled.unwrap_or_else(|| panic!("not even: {:?}", self.shares()))
    }

    /// The owner of each shard.
    pub(crate) fn owners(&self) -> BTreeMap<String, String> {
        let snapshot = self.runtime.block_on(observe_fleet(&*self.store, &self.fleet, [])).unwrap();
        let owned = snapshot.shards.into_iter();
        owned.filter_map(|(shard, owned)| Some((shard.to_string(), owned.owner?))).collect()
    }
}
