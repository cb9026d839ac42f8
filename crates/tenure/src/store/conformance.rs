//! One table of properties, run against every store; public so that your own store can be held to it too.
//!
//! Write a [`Fixture`] for your store, then run every row of [`PROPERTIES`] on it, each as a test with the row's name:
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use tenure::Clock;
//! use tenure::store::{Store, conformance, memory::MemoryStore};
//!
//! struct Mine(Clock, MemoryStore);
//!
//! #[async_trait::async_trait]
//! impl conformance::Fixture for Mine {
//!     async fn open(&self) -> Arc<dyn Store> {
//!         Arc::new(self.1.clone())
//!     }
//!     async fn pass(&self, time: Duration) {
//!         self.0.advance(time);
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let clock = Clock::manual();
//! let mine = Mine(clock.clone(), MemoryStore::new(clock));
//! let property = conformance::find("second_claim_is_refused").expect("it is in the table");
//! assert_eq!(conformance::run(property, &mine).await, conformance::Outcome::Passed);
//! # }
//! ```
//!
//! Names are made anew for every run, so several properties can run on one store at once, except on a clock that is
//! moved by hand (moving it for one would take the time of all), and except those that must be [alone](Property::alone).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::Store;
use super::memory::Spoil;
use crate::lease::{Name, Token};

mod claims;
mod expiry;
#[allow(dead_code, reason = "the table is growing")]
mod scene;

use scene::Scene;

/// What the trials do to a store from outside. One fixture is one private store: its own directory, its own server.
///
/// Where something cannot be done to a store, its method says `false`, and the trials that need it are left out.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// A new handle on the same leases, as another process would open it.
    async fn open(&self) -> Arc<dyn Store>;

    /// Lets this much time pass on the store's clock.
    async fn pass(&self, time: Duration);

    /// The TTL of a lease whose end is waited for: short, but longer than a busy machine takes for a few calls.
    fn short_ttl(&self) -> Duration {
        Duration::from_millis(1000)
    }

    /// How long after it was granted or renewed a lease that nobody renews is free at the latest.
    fn frees_within(&self, ttl: Duration) -> Duration {
        // A few milliseconds, for a store that rounds.
        ttl + Duration::from_millis(20)
    }

    /// Puts something else where the record of `name` is or would be.
    ///
    /// Asked for garbage several times, it may put another kind of garbage each time.
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

/// What a property must be able to do to a store from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ability {
    /// [`Fixture::spoil`] with [`Spoil::Garbage`].
    Garbage,
    /// [`Fixture::spoil`] with [`Spoil::Locked`].
    Lock,
    /// [`Fixture::set_token`].
    Tokens,
    /// [`Fixture::restart`].
    Restart,
    /// [`Fixture::take_as_stranger`].
    Stranger,
}

impl fmt::Display for Ability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ability::Garbage => "put garbage under a name",
            Ability::Lock => "lock a name",
            Ability::Tokens => "set the last token",
            Ability::Restart => "restart the store",
            Ability::Stranger => "take a name as a stranger",
        })
    }
}

/// How a property came out. One that does not hold panics, and says what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// It holds.
    Passed,
    /// The fixture cannot do what it needs: nothing is known.
    NotApplicable(Ability),
}

/// Something that is true of every store.
pub struct Property {
    /// A sentence, such as `second_claim_is_refused`.
    pub name: &'static str,
    /// What it does to the store from outside.
    pub needs: &'static [Ability],
    check: for<'a> fn(Scene<'a>) -> BoxFuture<'a, Result<(), Ability>>,
}

impl Property {
    /// Whether it needs a store nobody else uses at the same time.
    pub fn alone(&self) -> bool {
        self.needs.contains(&Ability::Restart)
    }
}

impl fmt::Debug for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The names in [`PROPERTIES`].
pub fn names() -> impl Iterator<Item = &'static str> {
    PROPERTIES.iter().map(|property| property.name)
}

/// The property with this name.
pub fn find(name: &str) -> Option<&'static Property> {
    PROPERTIES.iter().find(|property| property.name == name)
}

/// Holds the store of `fixture` to one property. Must be called inside a tokio runtime with I/O and time.
///
/// # Panics
/// When the property does not hold, or the store fails.
pub async fn run(property: &Property, fixture: &dyn Fixture) -> Outcome {
    match (property.check)(Scene::new(property.name, fixture)).await {
        Ok(()) => Outcome::Passed,
        Err(ability) => Outcome::NotApplicable(ability),
    }
}

/// A row: the name is the function's, so that the two cannot differ.
macro_rules! property {
    ($group:ident :: $name:ident $(, $ability:ident)*) => {
        Property {
            name: stringify!($name),
            needs: &[$(Ability::$ability),*],
            check: |scene| Box::pin($group::$name(scene)),
        }
    };
}

/// Every property, once.
pub static PROPERTIES: &[Property] = &[
    property!(claims::second_claim_is_refused),
    property!(claims::repeat_of_an_unanswered_claim_keeps_its_token),
    property!(claims::cancelled_claim_can_be_repeated),
    property!(claims::new_campaign_never_gets_an_old_token),
    property!(claims::delayed_release_frees_nothing_of_the_next_term),
    property!(claims::token_grows_over_release),
    property!(claims::renew_keeps_the_token),
    property!(claims::renew_refused_with_an_old_token),
    property!(claims::renew_refused_with_another_nonce),
    property!(claims::renew_refused_to_another_candidate),
    property!(claims::release_by_another_does_nothing),
    property!(claims::release_frees_at_once),
    property!(claims::release_twice_is_no_error),
    property!(claims::detached_handle_sees_the_same_leases),
    property!(expiry::expiry_frees_within_the_limit),
    property!(expiry::token_grows_over_expiry),
    property!(expiry::renew_refused_after_expiry),
    property!(expiry::save_refused_after_expiry),
    property!(expiry::release_after_expiry_does_nothing),
    property!(expiry::repeat_after_expiry_is_a_new_term),
    property!(expiry::renew_extends),
    property!(expiry::repeat_of_a_claim_extends),
];
