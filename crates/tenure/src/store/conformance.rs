//! One table of properties, run against every store; public so that your own store can be held to it too.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::Store;
use super::memory::Spoil;
use crate::lease::{Name, Token};

/// What the trials do to a store from outside. One fixture is one private store: its own directory, its own server.
///
/// Where something cannot be done to a store, its method says `false`, and the trials that need it are left out.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// A new handle on the same leases, as another process would open it.
    async fn open(&self) -> Arc<dyn Store>;

    /// Lets this much time pass on the store's clock.
    async fn pass(&self, time: Duration);

    /// Puts something else where the record of `name` is or would be.
    async fn spoil(&self, _name: &Name, _spoil: Spoil) -> bool {
        false
    }

    /// Whether what [`Fixture::spoil`] put there is still as it was put.
    async fn is_untouched(&self, _name: &Name) -> bool {
        true
    }

    /// Makes `last` the last token of the free name.
    async fn set_token(&self, _name: &Name, _last: Token) -> bool {
        false
    }

    /// Stops the store and starts it again with what it had kept.
    async fn restart(&self) -> bool {
        false
    }

    /// Lets a stranger take the name the way strangers do (Redis: a plain `SET NX PX`).
    async fn take_as_stranger(&self, _name: &Name, _id: &str, _ttl: Duration) -> bool {
        false
    }
}
