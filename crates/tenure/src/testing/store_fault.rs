//! [`StoreFault`]: what goes wrong with a call of a store, and [`FaultQueue`]: which call gets which fault.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::Error;

/// An operation of a [`Store`](crate::Store) that a fault can be injected into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreOperation {
    /// [`Store::acquire`](crate::Store::acquire): a claim.
    Acquire,
    /// [`Store::renew`](crate::Store::renew): a renewal.
    Renew,
    /// [`Store::release`](crate::Store::release): a release.
    Release,
    /// [`Store::save`](crate::Store::save): a checkpoint.
    Save,
    /// [`Store::revoke`](crate::Store::revoke): break-glass.
    Revoke,
    /// [`Store::observe`](crate::Store::observe): a read.
    Observe,
    /// [`Store::examine`](crate::Store::examine): an inspection.
    Examine,
}

impl StoreOperation {
    /// All operations, for a store that fails as a whole.
    pub const ALL: [StoreOperation; 7] = [
        StoreOperation::Acquire,
        StoreOperation::Renew,
        StoreOperation::Release,
        StoreOperation::Save,
        StoreOperation::Revoke,
        StoreOperation::Observe,
        StoreOperation::Examine,
    ];
}

/// What goes wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFault {
    /// The call fails with this error. The store does not get it.
    Error(Error),
    /// The store carries out the call, and its answer is lost: the caller gets this error instead.
    LostReply(Error),
    /// The call reaches the store only after this time.
    Delay(Duration),
    /// The store carries out the call at once, and its answer arrives only after this time.
    DelayedReply(Duration),
    /// The call waits before it reaches the store, until the store is healed: as if the store were frozen.
    Hold,
    /// The store carries out the call, and its answer waits until the store is healed.
    HeldReply,
}

impl StoreFault {
    /// The store cannot be reached: no call gets through.
    pub fn unreachable() -> StoreFault {
        StoreFault::Error(Error::unavailable("injected: the store cannot be reached"))
    }

    /// The store carries out the call, and the reply is lost.
    pub fn lost_reply() -> StoreFault {
        StoreFault::LostReply(Error::unavailable("injected: the reply was lost"))
    }
}

/// The faults of the calls of one operation.
#[derive(Debug, Default)]
pub(super) struct FaultQueue {
    /// The number of calls so far.
    pub(super) calls: u64,
    /// The faults of the next calls, in order, each with the number of calls that get it.
    next: VecDeque<(u64, StoreFault)>,
    /// The fault of every later call.
    every: Option<StoreFault>,
}

impl FaultQueue {
    pub(super) fn set_next(&mut self, count: u64, fault: StoreFault) {
        if count > 0 {
            self.next.push_back((count, fault));
        }
    }

    pub(super) fn set_every(&mut self, fault: StoreFault) {
        self.every = Some(fault);
    }

    pub(super) fn clear(&mut self) {
        self.next.clear();
        self.every = None;
    }

    /// Counts a call, and returns its fault.
    pub(super) fn take(&mut self) -> Option<StoreFault> {
        self.calls += 1;
        let Some((count, fault)) = self.next.front_mut() else { return self.every.clone() };
        *count -= 1;
        let (is_used_up, fault) = (*count == 0, fault.clone());
        if is_used_up {
            self.next.pop_front();
        }
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_the_next_calls_come_before_that_of_every_call() {
        let mut queue = FaultQueue::default();
        assert_eq!(queue.take(), None);
        queue.set_every(StoreFault::Hold);
        queue.set_next(2, StoreFault::unreachable());
        queue.set_next(0, StoreFault::HeldReply);
        queue.set_next(1, StoreFault::lost_reply());
        let faults: Vec<_> = (0..5).map(|_| queue.take().unwrap()).collect();
        let expected = [
            StoreFault::unreachable(),
            StoreFault::unreachable(),
            StoreFault::lost_reply(),
            StoreFault::Hold,
            StoreFault::Hold,
        ];
        assert_eq!(faults, expected);
        queue.clear();
        assert_eq!(queue.take(), None);
        assert_eq!(queue.calls, 7);
    }
}
