//! PURE: the run queue of a fleet member: when each shard's work is due, and how many runs are in flight.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tenure::Moment;

/// Due runs, by the number of a term. An entry of a term that has ended is harmless: the supervisor finds no job for it.
#[derive(Debug)]
pub(super) struct RunQueue {
    due: BTreeMap<Moment, Vec<u32>>,
    ready: VecDeque<u32>,
    running: usize,
    max_running: usize,
}

impl RunQueue {
    /// A queue that allows at most `max_running` runs at a time.
    pub(super) fn new(max_running: Option<u32>) -> RunQueue {
        let max_running = max_running
            .and_then(|max_running| usize::try_from(max_running).ok())
            .unwrap_or(usize::MAX);
        RunQueue { due: BTreeMap::new(), ready: VecDeque::new(), running: 0, max_running }
    }

    pub(super) fn add(&mut self, at: Moment, number: u32) {
        self.due.entry(at).or_default().push(number);
    }

    pub(super) fn wake_at(&self) -> Option<Moment> {
        self.due.first_key_value().map(|(at, _)| *at)
    }

    /// The next term whose run may start at `now`, if there is one. The caller reports an actual start with [`Self::started`].
    pub(super) fn next(&mut self, now: Moment) -> Option<u32> {
        while let Some(batch) = self.due.first_entry().filter(|batch| *batch.key() <= now) {
            self.ready.extend(batch.remove());
        }
        if self.running >= self.max_running { None } else { self.ready.pop_front() }
    }

    pub(super) fn started(&mut self) {
        self.running += 1;
    }

    pub(super) fn ended(&mut self) {
        self.running = self.running.saturating_sub(1);
    }
}

/// The time until the next slot of a shard. Each shard has its own offset within the period, which is the same on every member,
/// so that work is spread evenly and keeps its rhythm when the shard moves.
pub(super) fn until_next(period: Duration, hash: u64, unix_ms: u64) -> Duration {
    let period = u64::try_from(period.as_millis()).unwrap_or(u64::MAX).max(1);
    let offset = hash % period;
    let into = (unix_ms % period + period - offset) % period;
    Duration::from_millis(period - into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn concurrent_runs_are_limited_and_every_shard_gets_its_turn() {
        let mut queue = RunQueue::new(Some(2));
        for number in 1..=3 {
            queue.add(at(10), number);
        }
        assert_eq!(queue.next(at(9)), None);
        for expected in [1, 2] {
            assert_eq!(queue.next(at(10)), Some(expected));
            queue.started();
        }
        assert_eq!(queue.next(at(10)), None);
        queue.ended();
        assert_eq!(queue.next(at(10)), Some(3));
    }

    #[test]
    fn a_slot_starts_once_per_period_at_the_shards_offset() {
        let period = Duration::from_secs(5);
        for hash in [0, 1, 4_999, 5_000, u64::MAX] {
            for now in [0, 1, 1_750_258_800_123] {
                let wait = u64::try_from(until_next(period, hash, now).as_millis()).unwrap();
                assert!((1..=5_000).contains(&wait));
                assert_eq!((now + wait) % 5_000, hash % 5_000);
                assert_eq!(until_next(period, hash, now + wait), period, "the next is a period on");
            }
        }
    }

    #[test]
    fn shards_are_spread_over_the_period() {
        let period = Duration::from_secs(10);
        let mut tenths = [0; 10];
        for number in 0..1_000 {
            let hash = tenure::placement::hash(&format!("tenant-{number}"));
            let wait = until_next(period, hash, 0).as_millis();
            tenths[usize::try_from((wait - 1) / 1_000).unwrap()] += 1;
        }
        assert!(tenths.iter().all(|tenth| (60..=140).contains(tenth)), "{tenths:?}");
    }
}
