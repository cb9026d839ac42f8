//! A memory store that counts its calls and can be made unreachable.

use std::sync::Arc;

use tenure::store::memory::MemoryStore;
use tenure::testing::{FaultyStore, StoreFault, StoreOperation};
use tenure::{Clock, Error, Store};

#[derive(Clone, Debug)]
pub(crate) struct Flaky {
    memory: MemoryStore,
    faults: FaultyStore,
}

impl Flaky {
    pub(crate) fn new(clock: &Clock) -> Self {
        let memory = MemoryStore::new(clock.clone());
        Flaky { memory: memory.clone(), faults: FaultyStore::new(Arc::new(memory)) }
    }

    pub(crate) fn arc(&self) -> Arc<dyn Store> {
        Arc::new(self.faults.clone())
    }

    pub(crate) fn memory(&self) -> &MemoryStore {
        &self.memory
    }

    pub(crate) fn calls(&self) -> u64 {
        self.faults.all_calls()
    }

    pub(crate) fn cut(&self, down: bool) {
        match down {
            true => self.faults.inject(StoreOperation::ALL, StoreFault::unreachable()),
            false => self.faults.heal(),
        }
    }

    pub(crate) fn deny(&self) {
        self.faults.inject(StoreOperation::ALL, StoreFault::Error(Error::denied("wrong password")));
    }

    /// How many stores share the memory.
    pub(crate) fn handles(&self) -> usize {
        self.faults.clones()
    }

    /// Saves get no answer from now on.
    pub(crate) fn freeze_saves(&self) {
        self.faults.inject([StoreOperation::Save], StoreFault::Hold);
    }
}
