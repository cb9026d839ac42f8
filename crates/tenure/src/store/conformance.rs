//! One table of properties that every store must satisfy; public so that you can test your own store with it.
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
//! assert_eq!(conformance::run(property, &mine).await, conformance::PropertyOutcome::Passed);
//! # }
//! ```
//!
//! Every run uses new names, so several properties can run on one store concurrently. The exceptions are a manual clock (one
//! property would advance the time of all) and properties that must run [alone](Property::alone).

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

/// What the properties do to a store from outside. One fixture is one private store: its own directory, its own server.
///
/// If something cannot be done to a store, the method returns `false`, and the properties that need it are skipped.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// A new handle on the same leases, as another process would open it.
    async fn open(&self) -> Arc<dyn Store>;

    /// Lets this much time pass on the store's clock.
    async fn pass(&self, time: Duration);

    /// The TTL of a lease whose expiry a property waits for: short, but longer than a busy machine takes for two calls.
    fn short_ttl(&self) -> Duration {
        Duration::from_millis(1000)
    }

    /// The maximum time from the grant or the last renewal until an unrenewed lease is free.
    fn frees_within(&self, ttl: Duration) -> Duration {
        // A few milliseconds more, for a store that rounds.
        ttl + Duration::from_millis(20)
    }

    /// The greatest remaining time that the store may report for a lease with this TTL. A store that judges expiry by
    /// observation reports what a challenger has to wait, which is a little more than the TTL.
    fn max_left(&self, ttl: Duration) -> Duration {
        ttl
    }

    /// The smallest difference between two remaining times that the store reports.
    fn time_step(&self) -> Duration {
        Duration::from_millis(100)
    }

    /// Puts corrupt data where the record of `name` is or would be.
    ///
    /// If it is called for garbage several times, it may put another kind of garbage each time.
    async fn corrupt(&self, _name: &Name, _corruption: Corruption) -> bool {
        false
    }

    /// Whether what [`Fixture::corrupt`] put there is unchanged.
    async fn is_untouched(&self, _name: &Name) -> bool {
        true
    }

    /// Makes `last` the last token of the free name.
    async fn set_token(&self, _name: &Name, _last: Token) -> bool {
        false
    }

    /// Stops the store and starts it again with the data it kept.
    async fn restart(&self) -> bool {
        false
    }

    /// Takes the name as another program would (Redis: a plain `SET NX PX`).
    async fn take_as_foreign_holder(&self, _name: &Name, _id: &str, _ttl: Duration) -> bool {
        false
    }
}

/// Something that a property must be able to do to a store from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capability {
    /// The fixture can write garbage in place of a record: [`Fixture::corrupt`] with [`Corruption::Garbage`].
    Garbage,
    /// The fixture can lock a name: [`Fixture::corrupt`] with [`Corruption::Locked`].
    Lock,
    /// The fixture can set the last token of a name: [`Fixture::set_token`].
    Tokens,
    /// The fixture can restart the store: [`Fixture::restart`].
    Restart,
    /// The fixture can take a name without this library: [`Fixture::take_as_foreign_holder`].
    ForeignHolder,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Capability::Garbage => "put garbage under a name",
            Capability::Lock => "lock a name",
            Capability::Tokens => "set the last token",
            Capability::Restart => "restart the store",
            Capability::ForeignHolder => "take a name as a stranger",
        })
    }
}

/// The result of a property. A property that does not hold panics and says what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum PropertyOutcome {
    /// The property holds.
    Passed,
    /// The fixture lacks this capability: nothing is known.
    NotApplicable(Capability),
}

/// A property that every store must have.
pub struct Property {
    /// A statement, such as `second_claim_is_refused`.
    pub name: &'static str,
    /// What it needs to do to the store from outside.
    pub needs: &'static [Capability],
    check: for<'a> fn(Harness<'a>) -> BoxFuture<'a, Result<(), Capability>>,
}

impl Property {
    /// Whether it needs a store that no other property uses at the same time.
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

/// Checks one property of the store of `fixture`. Must be called inside a tokio runtime with I/O and time enabled; the
/// properties about races need a runtime with several threads.
///
/// # Panics
/// When the property does not hold, or the store fails.
pub async fn run(property: &Property, fixture: &dyn Fixture) -> PropertyOutcome {
    match (property.check)(Harness::new(property.name, fixture)).await {
        Ok(()) => PropertyOutcome::Passed,
        Err(capability) => PropertyOutcome::NotApplicable(capability),
    }
}

/// One row of the table. The name is the function's name, so that the two cannot differ.
macro_rules! property {
    ($group:ident :: $name:ident $(, $capability:ident)*) => {
        Property {
            name: stringify!($name),
            needs: &[$(Capability::$capability),*],
            check: |harness| Box::pin($group::$name(harness)),
        }
    };
}

/// All properties.
pub static PROPERTIES: &[Property] = &[
    property!(claims::second_claim_is_refused),
    property!(claims::repeat_of_an_unanswered_claim_keeps_its_token),
    property!(claims::cancelled_claim_can_be_repeated),
    property!(claims::new_campaign_never_gets_an_old_token),
    property!(claims::delayed_release_does_not_free_the_next_term),
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
    property!(expiry::renewal_with_the_same_ttl_keeps_the_lease),
    property!(expiry::repeat_of_a_claim_extends),
    property!(lineage::first_term_follows_nothing),
    property!(lineage::origin_stays_over_renewal_release_and_expiry),
    property!(lineage::before_says_how_the_last_term_ended),
    property!(lineage::preferred_successor_is_shown_until_the_next_grant),
    property!(lineage::term_keeps_its_start_time_over_renewals),
    property!(lineage::store_time_does_not_go_back),
    property!(startup_wait::wait_of_a_holder_is_recorded_by_its_repeated_claim),
    property!(startup_wait::wait_is_over_when_its_time_has_passed),
    property!(startup_wait::wait_survives_release_and_expiry),
    property!(startup_wait::wait_never_becomes_shorter_by_a_claim),
    property!(startup_wait::wait_ends_with_a_revocation_now_and_for_a_lease_without_right),
    property!(observe::observe_by_names_omits_unused_names),
    property!(observe::observe_by_prefix_returns_only_matching_names),
    property!(observe::prefix_is_text_and_not_a_pattern),
    property!(observe::empty_prefix_observes_all_names),
    property!(observe::prefix_shows_what_the_name_shows),
    property!(observe::names_are_case_sensitive),
    property!(observe::remaining_time_is_at_most_the_ttl_and_decreases),
    property!(observe::observing_changes_nothing),
    property!(observe::limits_never_promise_more_than_examine_finds),
    property!(watch::watch_begins_without_a_change),
    property!(watch::release_wakes_a_waiter),
    property!(watch::watch_reports_a_grant),
    property!(watch::watch_reports_a_revocation),
    property!(watch::watch_reports_the_last_change),
    property!(watch::slow_watcher_receives_the_last_change),
    property!(watch::every_watcher_is_notified),
    property!(watch::watch_outlives_a_restart, Restart),
    property!(batches::batch_of_1_keeps_order),
    property!(batches::batch_of_1_000_keeps_order),
    property!(batches::batch_of_10_000_keeps_order),
    property!(batches::empty_batches_get_empty_answers),
    property!(batches::same_name_twice_in_a_batch_is_held_once),
    property!(batches::renew_of_many_loses_only_what_was_lost),
    property!(batches::one_corrupt_name_among_1_000_affects_no_other, Garbage),
    property!(batches::one_corrupt_and_one_locked_name_leave_998_held_in_time, Garbage, Lock),
    property!(batches::overlapping_batches_do_not_block_each_other),
    property!(checkpoints::checkpoint_comes_with_the_grant),
    property!(checkpoints::repeat_of_a_claim_brings_the_checkpoint_again),
    property!(checkpoints::save_refused_under_an_old_token),
    property!(checkpoints::save_refused_under_an_older_number),
    property!(checkpoints::same_number_again_is_held_and_changes_nothing),
    property!(checkpoints::save_numbers_restart_in_a_new_term),
    property!(checkpoints::checkpoints_at_the_limits_round_trip),
    property!(checkpoints::save_does_not_extend),
    property!(limits::names_at_the_limits_are_different_leases),
    property!(limits::odd_names_are_found_by_prefix),
    property!(limits::ids_at_the_limits_round_trip),
    property!(limits::notes_at_the_limits_round_trip),
    property!(limits::a_repeated_claim_replaces_the_note),
    property!(limits::longest_ttl_is_accepted),
    property!(limits::shortest_ttl_is_accepted),
    property!(limits::token_is_refused_at_two_to_the_53, Tokens),
    property!(limits::last_tokens_are_exact, Tokens),
    property!(foreign_data::garbage_is_corrupt_and_untouched, Garbage),
    property!(foreign_data::garbage_in_place_of_a_record_is_corrupt, Garbage),
    property!(foreign_data::prefix_with_garbage_still_shows_the_others, Garbage),
    property!(foreign_data::foreign_holder_is_taken, ForeignHolder),
    property!(foreign_data::foreign_holder_with_the_same_id_is_another_holder, ForeignHolder),
    property!(foreign_data::foreign_holder_after_expiry_is_another_holder, ForeignHolder),
    property!(foreign_data::foreign_holder_frees_when_its_time_has_passed, ForeignHolder),
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
