//! The lists of the members: this member announces its own in the checkpoint of its membership lease, and compares it with those
//! of the others.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::super::ListDigest;
use super::super::event::FleetEvent;
use super::{CoordinatorState, FleetSnapshot};
use crate::clock::Moment;
use crate::driver::Saved;
use crate::error::Result;

/// A member announces its list a moment after it has joined or read a new one; the store sends no notification of that.
pub(super) const ANNOUNCED_AFTER: Duration = Duration::from_millis(200);

impl CoordinatorState {
    pub(super) fn is_unannounced(&self) -> bool {
        self.announced.as_ref() != Some(self.steward.list()) && self.office.shared.is_member()
    }

    /// Tells the other members what this one lists, if they do not know it yet.
    pub(super) fn announcement(&self) -> Option<BoxFuture<'static, (ListDigest, Result<Saved>)>> {
        let term = self.office.shared.membership_term().filter(|_| self.is_unannounced())?;
        let list = self.steward.list().clone();
        let saved = async move {
            let saved = match list.to_checkpoint() {
                Ok(checkpoint) => term.save(&checkpoint).await,
                Err(error) => Err(error),
            };
            (list, saved)
        };
        Some(saved.boxed())
    }

    /// After this the members are observed again. While their lists differ an announcement may be on its way: soon, and after twice
    /// the time each time that nothing has changed.
    pub(super) fn look_again_in(&mut self, sight: &FleetSnapshot) -> Duration {
        let own = self.steward.list();
        let retry = self.office.timing.retry;
        if sight.members.values().all(|(_, list)| list == own) {
            self.look_after = ANNOUNCED_AFTER;
            return retry;
        }
        if self.sight.as_ref().is_none_or(|before| before.members != sight.members) {
            self.look_after = ANNOUNCED_AFTER;
        }
        let look_after = self.look_after.min(retry);
        self.look_after = 2 * look_after;
        look_after
    }

    /// Reports once that members list different shards, and once that they do not any more. A difference while each reads a new
    /// list in its own time is not reported.
    pub(super) fn compare_lists(&mut self, now: Moment) {
        let own = self.steward.list();
        let others =
            || self.steward.observed_members().filter(|(_, state)| state.list.is_announced());
        let differ =
            self.office.shared.is_member() && others().any(|(_, state)| state.list != *own);
        if !differ {
            if let Some((_, true)) = self.lists_differ.take() {
                self.office.shared.report(FleetEvent::Lists(Vec::new()));
            }
            return;
        }
        let (since, reported) = *self.lists_differ.get_or_insert((now, false));
        let settled = (2 * self.office.reread).max(self.office.timing.ttl);
        if !reported && now.since(since) >= settled {
            self.lists_differ = Some((since, true));
            let lists = others().map(|(id, state)| (id.clone(), state.list.shards()));
            self.office.shared.report(FleetEvent::Lists(lists.collect()));
        }
    }
}
