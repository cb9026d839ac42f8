//! Which shards have no owner, and since when.

use super::{Coverage, Planner, ShardNumber};
use crate::clock::Moment;
use crate::fleet::Shard;
use crate::machine::Phase;

impl Planner {
    /// Where things stand.
    pub fn coverage(&self, now: Moment) -> Coverage {
        let mut coverage = Coverage { free: self.free, ..Coverage::default() };
        for entry in self.entries.values() {
            coverage.shards += usize::from(entry.gone != Some(false));
            coverage.paused += usize::from(entry.paused);
            coverage.mine += usize::from(entry.phase == Phase::Leading);
            let overdue = entry.free_since.is_some_and(|since| now.since(since) > self.ttl);
            coverage.unowned += usize::from(overdue);
        }
        coverage
    }

    /// Those nobody has owned for longer than a TTL, or can own at all; at most `most`.
    pub fn unowned(&self, now: Moment, most: usize) -> Vec<Shard> {
        let overdue = self
            .entries
            .values()
            .filter(|entry| entry.free_since.is_some_and(|since| now.since(since) > self.ttl));
        overdue.take(most).map(|entry| entry.shard.clone()).collect()
    }

    pub(super) fn note_free_all(&mut self, now: Moment) {
        let numbers: Vec<ShardNumber> = self.entries.keys().copied().collect();
        for number in numbers {
            self.note_free(now, number);
        }
    }

    /// Notes since when nobody that is there owns a shard.
    pub(super) fn note_free(&mut self, now: Moment, number: ShardNumber) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let works = entry.owner.filter(|_| entry.owner_works);
        let owned =
            works.is_some_and(|owner| self.here.contains(&owner)) || entry.phase == Phase::Leading;
        let free = entry.seen && !owned && !entry.paused && entry.gone.is_none();
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
