//! The drivers that the elections of this process share: one for each store.
//!
//! Two elections share a driver if they were started with clones of one `Arc<dyn Store>` and have different names. Candidates of
//! one name never share a driver: their claims would be in one batch.

use std::collections::HashSet;
use std::ptr::addr_eq;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::{Driver, DriverCommand, MachineId, Watched, spawn};
use crate::clock::Clock;
use crate::error::Result;
use crate::fork_check::ProcessId;
use crate::lease::Name;
use crate::store::Store;

/// What an election needs of its driver.
#[derive(Clone)]
pub(crate) struct DriverLink {
    pub(crate) commands: mpsc::UnboundedSender<DriverCommand>,
    /// The runtime of the driver's thread.
    pub(crate) runtime: Handle,
    /// The store over a connection for the application's own calls: a checkpoint never delays a renewal.
    pub(crate) store: Arc<dyn Store>,
    /// When the driver has something to do again; `u64::MAX` for never.
    pub(crate) sleeps_until: Arc<AtomicU64>,
}

/// The number of a shared driver. It removes itself from the registry.
#[derive(Clone, Copy)]
pub(crate) struct SharedDriver(u64);

struct Registered {
    driver: u64,
    /// A forked child has a copy of the registry and none of the threads.
    process: ProcessId,
    /// `None` for a driver that takes no second election.
    store: Option<Weak<dyn Store>>,
    /// The names of its machines. The driver ends when it has none.
    names: HashSet<Name>,
    machines: MachineId,
    link: DriverLink,
}

struct Registry {
    drivers: Vec<Registered>,
    /// How many drivers were started.
    started: u64,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { drivers: Vec::new(), started: 0 });

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Finds or starts the driver for a machine of `name` on `store`. The caller adds the machine under the returned id.
///
/// A driver has one clock. So an election that is `isolated`, or has a manual clock, gets a driver of its own.
pub(crate) fn driver_for(
    store: &Arc<dyn Store>,
    clock: &Clock,
    name: &Name,
    isolated: bool,
) -> Result<(DriverLink, MachineId)> {
    let mut registry = registry();
    registry.drivers.retain(|driver| driver.process.is_current());
    let shares = !isolated && clock.is_boot();
    let known = registry.drivers.iter_mut().find(|driver| {
        let same_store = driver
            .store
            .as_ref()
            .is_some_and(|known| addr_eq(Weak::as_ptr(known), Arc::as_ptr(store)));
        shares && same_store && !driver.names.contains(name) && !driver.link.commands.is_closed()
    });
    if let Some(driver) = known {
        driver.names.insert(name.clone());
        driver.machines += 1;
        return Ok((driver.link.clone(), driver.machines));
    }
    registry.started += 1;
    let driver = registry.started;
    let (commands, inbox) = mpsc::unbounded_channel();
    let sleeps_until = Arc::new(AtomicU64::new(u64::MAX));
    let (renewing, time, due) = (store.detached(), clock.clone(), sleeps_until.clone());
    let watched = Watched::Machines(SharedDriver(driver));
    let runtime = spawn(move || Driver::new(renewing, time, watched, due, inbox), || {})?;
    let link = DriverLink { commands, runtime, store: store.detached(), sleeps_until };
    registry.drivers.push(Registered {
        driver,
        process: ProcessId::current(),
        store: shares.then(|| Arc::downgrade(store)),
        names: HashSet::from([name.clone()]),
        machines: 0,
        link: link.clone(),
    });
    Ok((link, 0))
}

impl SharedDriver {
    /// The machine of this name is gone. Returns whether it was the last: then no other will be added.
    pub(super) fn leave(self, name: &Name) -> bool {
        let mut registry = registry();
        let Some(at) = registry.drivers.iter().position(|known| known.driver == self.0) else {
            return true;
        };
        registry.drivers[at].names.remove(name);
        let is_empty = registry.drivers[at].names.is_empty();
        if is_empty {
            registry.drivers.swap_remove(at);
        }
        is_empty
    }

    /// The driver has ended.
    pub(super) fn end(self) {
        registry().drivers.retain(|known| known.driver != self.0);
    }
}
