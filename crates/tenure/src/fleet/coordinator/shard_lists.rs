//! The lists of shards: this member announces its own list in the checkpoint of its membership lease, and compares it with the
//! announcements of the other members.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::super::ListDigest;
use super::super::event::FleetEvent;
use super::{CoordinatorState, FleetSnapshot};
use crate::clock::Moment;
use crate::election::Saved;
use crate::error::Result;

/// How soon to observe the members again when an announcement is expected: a member announces its list shortly after it has
/// joined or read a new list, and the store sends no notification of that.
pub(super) const ANNOUNCEMENT_DELAY: Duration = Duration::from_millis(200);

impl CoordinatorState {
    pub(super) fn is_unannounced(&self) -> bool {
        self.announced.as_ref() != Some(self.planner.list()) && self.coordinator.shared.is_member()
    }

    /// Announces the list of this member, unless the current announcement is up to date.
    pub(super) fn announcement(&self) -> Option<BoxFuture<'static, (ListDigest, Result<Saved>)>> {
        let term = self.coordinator.shared.membership_term().filter(|_| self.is_unannounced())?;
        let list = self.planner.list().clone();
        let saved = async move {
            let saved = match list.to_checkpoint() {
                Ok(checkpoint) => term.term.save(checkpoint, ()).await,
                Err(error) => Err(error),
            };
            (list, saved)
        };
        Some(saved.boxed())
    }

    /// The delay until the members are observed again. While their lists differ, an announcement may be expected: then the
    /// delay is short, and doubles each time that nothing has changed.
    pub(super) fn next_observe_delay(&mut self, snapshot: &FleetSnapshot) -> Duration {
        let own = self.planner.list();
        let retry = self.coordinator.timing.retry;
        if snapshot.members.values().all(|(_, list)| list == own) {
            self.observe_delay = ANNOUNCEMENT_DELAY;
            return retry;
        }
        if self.snapshot.as_ref().is_none_or(|before| before.members != snapshot.members) {
            self.observe_delay = ANNOUNCEMENT_DELAY;
        }
        let observe_delay = self.observe_delay.min(retry);
        self.observe_delay = 2 * observe_delay;
        observe_delay
    }

    /// Reports once that members list different shards, and once that their lists are equal again. A short difference is not
    /// reported: the members read a new list at different times.
    pub(super) fn compare_lists(&mut self, now: Moment) {
        let own = self.planner.list();
        let others =
            || self.planner.observed_members().filter(|(_, state)| state.list.is_announced());
        let differ =
            self.coordinator.shared.is_member() && others().any(|(_, state)| state.list != *own);
        if !differ {
            if let Some((_, true)) = self.lists_differ.take() {
                self.coordinator.shared.report(FleetEvent::Lists(Vec::new()));
            }
            return;
        }
        let (since, reported) = *self.lists_differ.get_or_insert((now, false));
        let settled = (2 * self.coordinator.reread).max(self.coordinator.timing.ttl);
        if !reported && now.since(since) >= settled {
            self.lists_differ = Some((since, true));
            let lists = others().map(|(id, state)| (id.clone(), state.list.shards()));
            self.coordinator.shared.report(FleetEvent::Lists(lists.collect()));
        }
    }
}
