//! PURE: which shard is to be worked on when, and how many at a time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tenure::Moment;

/// By the number of a term: whoever has lost it finds nothing to do when its time comes.
#[derive(Debug)]
pub(super) struct RunQueue {
    due: BTreeMap<Moment, Vec<u32>>,
    ready: VecDeque<u32>,
    running: usize,
    most: usize,
}

impl RunQueue {
    /// At most `most` run at a time.
    pub(super) fn new(most: Option<u32>) -> RunQueue {
        let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
        RunQueue { due: BTreeMap::new(), ready: VecDeque::new(), running: 0, most }
    }

    pub(super) fn add(&mut self, at: Moment, number: u32) {
        self.due.entry(at).or_default().push(number);
    }

    pub(super) fn wake_at(&self) -> Option<Moment> {
        self.due.first_key_value().map(|(at, _)| *at)
    }

    /// The next that may begin at `now`, if there is one. Whoever begins says so.
    pub(super) fn next(&mut self, now: Moment) -> Option<u32> {
        while let Some(lot) = self.due.first_entry().filter(|lot| *lot.key() <= now) {
            self.ready.extend(lot.remove());
        }
        if self.running >= self.most { None } else { self.ready.pop_front() }
    }

    pub(super) fn begun(&mut self) {
        self.running += 1;
    }

    pub(super) fn ended(&mut self) {
        self.running = self.running.saturating_sub(1);
    }
}

/// How long until the next slot of a shard begins: each has its own place within the period, which is the same on every member,
/// so that work is spread evenly and goes on in step wherever the shard is.
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
    fn no_more_than_so_many_run_at_a_time_and_all_have_their_turn() {
        let mut agenda = RunQueue::new(Some(2));
        for number in 1..=3 {
            agenda.add(at(10), number);
        }
        assert_eq!(agenda.next(at(9)), None);
        for expected in [1, 2] {
            assert_eq!(agenda.next(at(10)), Some(expected));
            agenda.begun();
        }
        assert_eq!(agenda.next(at(10)), None);
        agenda.ended();
        assert_eq!(agenda.next(at(10)), Some(3));
    }

    #[test]
    fn a_slot_begins_once_a_period_at_the_shards_own_time() {
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
