//! Coverage: which shards have no owner, and since when.

use super::{Coverage, Planner, ShardNumber};
use crate::clock::Moment;
use crate::fleet::Shard;
use crate::machine::Phase;

impl Planner {
    /// How many shards have an owner at `now`.
    pub fn coverage(&self, now: Moment) -> Coverage {
        let mut coverage = Coverage { free: self.free, ..Coverage::default() };
        for entry in self.entries.values() {
            coverage.shards += usize::from(entry.removed != Some(false));
            coverage.paused += usize::from(entry.paused);
            coverage.mine += usize::from(entry.phase == Phase::Leading);
            let overdue = entry.free_since.is_some_and(|since| now.since(since) > self.ttl);
            coverage.unowned += usize::from(overdue);
        }
        coverage
    }

    /// Up to `limit` shards that have had no owner for longer than a TTL, including those whose lease cannot be read.
    pub fn unowned(&self, now: Moment, limit: usize) -> Vec<Shard> {
        let overdue = self
            .entries
            .values()
            .filter(|entry| entry.free_since.is_some_and(|since| now.since(since) > self.ttl));
        overdue.take(limit).map(|entry| entry.shard.clone()).collect()
    }

    pub(super) fn update_free_all(&mut self, now: Moment) {
        let numbers: Vec<ShardNumber> = self.entries.keys().copied().collect();
        for number in numbers {
            self.update_free(now, number);
        }
    }

    /// Records since when no present member owns a shard.
    pub(super) fn update_free(&mut self, now: Moment, number: ShardNumber) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let works = entry.owner.filter(|_| entry.owner_works);
        let owned = works.is_some_and(|owner| self.present_members.contains(&owner))
            || entry.phase == Phase::Leading;
        let free = entry.observed && !owned && !entry.paused && entry.removed.is_none();
        match (entry.free_since, free) {
            (None, true) => {
                entry.free_since = Some(now);
                self.free += 1;
            }
            (Some(_), false) => {
                entry.free_since = None;
                self.free -= 1;
            }
            _ => {}
        }
    }
}
