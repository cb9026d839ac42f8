//! A queue of future events, earliest first. Events at the same time keep their insertion order.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::clock::Time;

pub struct Queue<T> {
    heap: BinaryHeap<Reverse<Queued<T>>>,
    stamps: u64,
}

struct Queued<T>(Time, u64, T);

impl<T> PartialEq for Queued<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl<T> Eq for Queued<T> {}
impl<T> PartialOrd for Queued<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Queued<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

impl<T> Queue<T> {
    pub fn new() -> Self {
        Queue { heap: BinaryHeap::new(), stamps: 0 }
    }

    pub fn push(&mut self, time: Time, item: T) {
        let stamp = self.stamp();
        self.heap.push(Reverse(Queued(time, stamp, item)));
    }

    pub fn pop(&mut self) -> Option<(Time, T)> {
        self.heap.pop().map(|Reverse(Queued(time, _, item))| (time, item))
    }

    /// A unique number, which distinguishes a timer from the timer that it replaces.
    pub fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }
}
