//! Watches the leases of the shards, and stamps what the store tells of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use tenure::fleet::{leases_prefix, survey};
use tenure::store::{Change, Scope, Store};
use tenure::{Moment, Name};
use tokio::runtime::Runtime;

use crate::rig::time::{look, now, runtime};

/// What was told of one shard.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) at: Moment,
    pub(crate) shard: String,
    /// The token and who has it; `None`: it was freed.
    pub(crate) granted: Option<(u64, String)>,
}

pub(crate) struct Observer {
    fleet: Name,
    store: Arc<dyn Store>,
    runtime: Runtime,
    told: Arc<Mutex<Vec<Told>>>,
}

impl Observer {
    /// Watches from now on.
    pub(crate) fn start(url: &str, fleet: &Name) -> Observer {
        let runtime = runtime();
        let store = runtime.block_on(tenure::open(url)).unwrap();
        let told = Arc::<Mutex<Vec<Told>>>::default();
        let (ready, waiting) = std::sync::mpsc::channel();
        let (kept, url, prefix) = (told.clone(), url.to_owned(), leases_prefix(fleet));
        // It ends with the bench.
        std::thread::spawn(move || {
            crate::rig::time::runtime().block_on(async {
                let store = tenure::open(&url).await.unwrap();
                let mut changes = store.watch(&Scope::Prefix(prefix.clone()));
                while let Some(change) = changes.next().await {
                    let at = now();
                    let shard = |name: &Name| name.as_str()[prefix.len()..].to_owned();
                    let told = match change {
                        Change::Granted { name, token, holder } => {
                            let holder = holder.map(|holder| holder.to_string());
                            let granted = Some((token.get(), holder.unwrap_or_default()));
                            Told { at, shard: shard(&name), granted }
                        }
                        Change::Freed { name, .. } => {
                            Told { at, shard: shard(&name), granted: None }
                        }
                        _ => {
                            let _ = ready.send(());
                            continue;
                        }
                    };
                    kept.lock().unwrap().push(told);
                }
            });
        });
        waiting.recv_timeout(Duration::from_secs(10)).expect("the store listens");
        Observer { fleet: fleet.clone(), store, runtime, told }
    }

    /// Everything that was told since the last time.
    pub(crate) fn take(&self) -> Vec<Told> {
        std::mem::take(&mut self.told.lock().unwrap())
    }

    /// How many shards each has, as the store has it now.
    pub(crate) fn shares(&self) -> BTreeMap<String, usize> {
        let seen = self.runtime.block_on(survey(&*self.store, &self.fleet, [])).unwrap();
        seen.shares().into_iter().map(|(member, share)| (member.to_owned(), share)).collect()
    }

    /// Waits until so many have them all, evenly.
    pub(crate) fn settled(&self, members: usize, shards: usize) -> BTreeMap<String, usize> {
        let settled = look(Duration::from_secs(60), || {
            let shares = self.shares();
            let (least, most) = (shares.values().min()?, shares.values().max()?);
            let even = shares.len() == members && most - least <= 1;
            if even && shares.values().sum::<usize>() == shards {
                return Some(shares);
            }
            crate::rig::time::pause(Duration::from_millis(100));
            None
        });
        settled.unwrap_or_else(|| panic!("not even: {:?}", self.shares()))
    }

    /// Who has what.
    pub(crate) fn owners(&self) -> BTreeMap<String, String> {
        let seen = self.runtime.block_on(survey(&*self.store, &self.fleet, [])).unwrap();
        let owned = seen.shards.into_iter();
        owned.filter_map(|(shard, owned)| Some((shard.to_string(), owned.owner?))).collect()
    }
}
