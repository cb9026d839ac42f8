//! The example of the chapter "Testing your own code": a store around another store. This is its source, not a copy.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::Store;
use tenure::store::conformance::{Capability, Fixture, Property};
use tenure::store::memory::Corruption;
use tenure::{Name, Token};

use crate::{Subject, memory};

#[path = "../../examples/store_wrapper.rs"]
#[expect(dead_code, reason = "its main function is for `cargo run --example`")]
mod store_wrapper;

use store_wrapper::OutageStore;

/// Around the memory store on a manual clock.
pub(crate) fn subjects() -> Vec<Arc<dyn Subject>> {
    let inner = memory::subjects().into_iter().next().expect("the memory store");
    vec![Arc::new(Wrapped(inner))]
}

struct Wrapped(Arc<dyn Subject>);

#[async_trait]
impl Subject for Wrapped {
    fn name(&self) -> &'static str {
        "wrapper"
    }

    fn has_capability(&self, capability: Capability) -> bool {
        self.0.has_capability(capability)
    }

    fn skip_reason(&self, property: &Property) -> Option<&'static str> {
        self.0.skip_reason(property)
    }

    async fn fixture(&self, alone: bool) -> Result<Box<dyn Fixture>, String> {
        Ok(Box::new(WrappedFixture(self.0.fixture(alone).await?)))
    }
}

/// Opens the wrapper, and does everything else to the store inside.
struct WrappedFixture(Box<dyn Fixture>);

#[async_trait]
impl Fixture for WrappedFixture {
    async fn open(&self) -> Arc<dyn Store> {
        let (store, _outage) = OutageStore::wrap(self.0.open().await);
        store
    }

    async fn pass(&self, time: Duration) {
        self.0.pass(time).await;
    }

    fn short_ttl(&self) -> Duration {
        self.0.short_ttl()
    }

    fn frees_within(&self, ttl: Duration) -> Duration {
        self.0.frees_within(ttl)
    }

    fn max_left(&self, ttl: Duration) -> Duration {
        self.0.max_left(ttl)
    }

    async fn corrupt(&self, name: &Name, corruption: Corruption) -> bool {
        self.0.corrupt(name, corruption).await
    }

    async fn is_untouched(&self, name: &Name) -> bool {
        self.0.is_untouched(name).await
    }

    async fn set_token(&self, name: &Name, last: Token) -> bool {
        self.0.set_token(name, last).await
    }

    async fn restart(&self) -> bool {
        self.0.restart().await
    }

    async fn take_as_foreign_holder(&self, name: &Name, id: &str, ttl: Duration) -> bool {
        self.0.take_as_foreign_holder(name, id, ttl).await
    }
}
