//! One table of properties, run against every store; public so that your own can be held to it too.
//!
//! Write a [`Fixture`] for your store, then run every row of [`PROPERTIES`] on it, each as a test
//! with the row's name:
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
//! Names are made anew for every run, so several properties can run on one store at once; but not
//! on a clock that is moved by hand (one would take the time of all), nor those that must be
//! [alone](Property::alone).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::Store;
use super::memory::Corruption;
use crate::lease::{Name, Token};

mod batches;
mod checkpoints;
mod claims;
mod expiry;
mod foreign_data;
mod harness;
mod limits;
mod lineage;
mod observe;
mod races;
mod restart;
mod revocation;
mod startup_wait;
mod watch;

use harness::Harness;

/// What the trials do to a store from outside. One fixture is one private store: its own directory,
/// its own server.
///
/// Where something cannot be done to a store, its method says `false`, and the trials that need it
/// are left out.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// A new handle on the same leases, as another process would open it.
    async fn open(&self) -> Arc<dyn Store>;

    /// Lets this much time pass on the store's clock.
    async fn pass(&self, time: Duration);

    /// The TTL of a lease whose end is waited for: short, but longer than a busy machine takes for
    /// two calls.
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
    async fn spoil(&self, _name: &Name, _spoil: Corruption) -> bool {
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
pub enum Capability {
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

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Capability::Garbage => "put garbage under a name",
            Capability::Lock => "lock a name",
            Capability::Tokens => "set the last token",
            Capability::Restart => "restart the store",
            Capability::Stranger => "take a name as a stranger",
        })
    }
}

/// How a property came out. One that does not hold panics, and says what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum PropertyOutcome {
    /// It holds.
    Passed,
    /// The fixture cannot do what it needs: nothing is known.
    NotApplicable(Capability),
}

/// Something that is true of every store.
pub struct Property {
    /// A sentence, such as `second_claim_is_refused`.
    pub name: &'static str,
    /// What it does to the store from outside.
    pub needs: &'static [Capability],
    check: for<'a> fn(Harness<'a>) -> BoxFuture<'a, Result<(), Capability>>,
}

impl Property {
    /// Whether it needs a store nobody else uses at the same time.
    pub fn alone(&self) -> bool {
        self.needs.contains(&Capability::Restart)
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

/// Holds the store of `fixture` to one property. Must be called inside a tokio runtime with I/O and
/// time; of several threads, if races are to be races.
///
/// # Panics
/// When the property does not hold, or the store fails.
pub async fn run(property: &Property, fixture: &dyn Fixture) -> PropertyOutcome {
    match (property.check)(Harness::new(property.name, fixture)).await {
        Ok(()) => PropertyOutcome::Passed,
        Err(ability) => PropertyOutcome::NotApplicable(ability),
    }
}

/// A row: the name is the function's, so that the two cannot differ.
macro_rules! property {
    ($group:ident :: $name:ident $(, $ability:ident)*) => {
        Property {
            name: stringify!($name),
            needs: &[$(Capability::$ability),*],
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
    property!(lineage::first_term_follows_nothing),
    property!(lineage::origin_stays_over_renewal_release_and_expiry),
    property!(lineage::before_says_how_the_last_term_ended),
    property!(lineage::next_is_shown_until_somebody_comes),
    property!(lineage::term_keeps_its_beginning_over_renewals),
    property!(lineage::store_time_does_not_go_back),
    property!(startup_wait::wait_of_a_holder_is_recorded_by_its_repeated_claim),
    property!(startup_wait::wait_survives_release_and_expiry),
    property!(startup_wait::wait_never_becomes_shorter_by_a_claim),
    property!(startup_wait::wait_ends_with_a_revocation_now_and_for_a_lease_without_right),
    property!(observe::observe_by_names_leaves_out_the_unused),
    property!(observe::observe_by_prefix_shows_that_and_no_more),
    property!(observe::prefix_is_text_and_not_a_pattern),
    property!(observe::empty_prefix_is_everything),
    property!(observe::prefix_shows_what_the_name_shows),
    property!(observe::names_are_case_sensitive),
    property!(observe::left_is_at_most_the_ttl_and_falls),
    property!(observe::observing_changes_nothing),
    property!(observe::limits_promise_no_more_than_is_found),
    property!(watch::watch_begins_without_a_change),
    property!(watch::release_wakes_a_waiter),
    property!(watch::watch_tells_of_a_grant),
    property!(watch::watch_tells_of_a_revocation),
    property!(watch::watch_ends_on_the_latest),
    property!(watch::slow_watcher_ends_on_the_latest),
    property!(watch::every_watcher_is_told),
    property!(watch::watch_outlives_a_restart, Restart),
    property!(batches::batch_of_1_keeps_order),
    property!(batches::batch_of_1_000_keeps_order),
    property!(batches::batch_of_10_000_keeps_order),
    property!(batches::empty_batches_get_empty_answers),
    property!(batches::same_name_twice_in_a_batch_is_held_once),
    property!(batches::renew_of_many_loses_only_what_was_lost),
    property!(batches::one_corrupt_name_among_1_000_spoils_no_other, Garbage),
    property!(batches::one_corrupt_and_one_locked_name_leave_998_held_in_time, Garbage, Lock),
    property!(batches::overlapping_batches_do_not_block_each_other),
    property!(checkpoints::checkpoint_comes_with_the_grant),
    property!(checkpoints::repeat_of_a_claim_brings_the_checkpoint_again),
    property!(checkpoints::save_refused_under_an_old_token),
    property!(checkpoints::save_refused_under_an_older_number),
    property!(checkpoints::same_number_again_is_held_and_changes_nothing),
    property!(checkpoints::save_numbers_begin_anew_in_a_new_term),
    property!(checkpoints::checkpoints_at_the_limits_come_back),
    property!(checkpoints::save_does_not_extend),
    property!(limits::names_at_the_limits_are_different_leases),
    property!(limits::odd_names_are_found_by_prefix),
    property!(limits::ids_at_the_limits_come_back),
    property!(limits::notes_at_the_limits_come_back),
    property!(limits::a_repeated_claim_replaces_the_note),
    property!(limits::longest_ttl_is_taken),
    property!(limits::shortest_ttl_is_taken),
    property!(limits::token_is_refused_at_two_to_the_53, Tokens),
    property!(limits::last_tokens_are_exact, Tokens),
    property!(foreign_data::garbage_is_corrupt_and_untouched, Garbage),
    property!(foreign_data::garbage_in_place_of_a_record_is_corrupt, Garbage),
    property!(foreign_data::prefix_with_garbage_still_shows_the_others, Garbage),
    property!(foreign_data::stranger_is_taken, Stranger),
    property!(foreign_data::stranger_with_our_own_id_is_not_us, Stranger),
    property!(foreign_data::stranger_after_our_expiry_is_not_us, Stranger),
    property!(foreign_data::stranger_frees_when_its_time_ran_out, Stranger),
    property!(revocation::revoke_refuses_the_holder_at_once),
    property!(revocation::revoke_waits_out_the_holders_time),
    property!(revocation::revoke_now_frees_at_once),
    property!(revocation::revoke_twice_raises_the_token_twice),
    property!(revocation::revoke_of_a_free_lease_leaves_it_free),
    property!(revocation::revoke_of_an_unknown_name_is_invalid),
    property!(races::a_hundred_concurrent_claims_give_one_held),
    property!(races::same_id_twice_never_both_hold),
    property!(races::concurrent_repeats_of_a_claim_are_one_term),
    property!(races::concurrent_saves_end_on_the_highest_number),
    property!(races::contended_counter_loses_no_update),
    property!(restart::token_grows_over_restart, Restart),
    property!(restart::restart_keeps_the_holder, Restart),
    property!(restart::restart_keeps_lineage_and_checkpoint, Restart),
    property!(restart::handle_outlives_a_restart, Restart),
];
