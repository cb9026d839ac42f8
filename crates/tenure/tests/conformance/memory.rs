//! The reference store, twice: on a manual clock and on the boot clock.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::conformance::{Capability, Fixture};
use tenure::store::memory::{Corruption, MemoryStore};
use tenure::store::{Scope, Store};
use tenure::{Clock, Kind, Name, Token};

use crate::Subject;

pub(crate) fn subjects() -> Vec<Arc<dyn Subject>> {
    vec![Arc::new(Memory::Manual), Arc::new(Memory::Boot)]
}

enum Memory {
    Manual,
    Boot,
}

#[async_trait]
impl Subject for Memory {
    fn name(&self) -> &'static str {
        match self {
            Memory::Manual => "memory",
            Memory::Boot => "memory-boot",
        }
    }

    fn has_capability(&self, capability: Capability) -> bool {
        matches!(capability, Capability::Garbage | Capability::Lock | Capability::Tokens)
    }

    // Each trial has its own store, because advancing a shared clock would affect all trials.
    async fn fixture(&self, _alone: bool) -> Result<Box<dyn Fixture>, String> {
        let clock = match self {
            Memory::Manual => Clock::manual(),
            Memory::Boot => Clock::boot(),
        };
        Ok(Box::new(InMemory {
            store: MemoryStore::new(clock.clone()),
            clock,
            is_manual: matches!(self, Memory::Manual),
        }))
    }
}

struct InMemory {
    store: MemoryStore,
    clock: Clock,
    is_manual: bool,
}

#[async_trait]
impl Fixture for InMemory {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn pass(&self, time: Duration) {
        if self.is_manual {
            self.clock.advance(time);
        } else {
            self.clock.sleep(time).await;
        }
    }

    async fn corrupt(&self, name: &Name, spoil: Corruption) -> bool {
        self.store.leases().corrupt(name, spoil);
        true
    }

    async fn is_untouched(&self, name: &Name) -> bool {
        let found = self.store.leases().observe(self.clock.now(), &Scope::name(name));
        let kinds: Vec<_> = found.iter().map(|item| item.as_ref().map_err(|e| e.kind())).collect();
        matches!(kinds[..], [Err(Kind::Corrupt | Kind::Unavailable)])
    }

    async fn set_token(&self, name: &Name, last: Token) -> bool {
        self.store.leases().set_token(name, last);
        true
    }
}
