//! [`IdMap`]: a map whose keys are ids that the library assigns in sequence.
//!
//! The hash of an id is the id itself: entries that were added together are close in memory, so that a pass over a hundred
//! thousand of them is sequential instead of random access. Collision attacks are impossible, because only the library assigns
//! ids.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type IdMap<T> = HashMap<u64, T, BuildHasherDefault<IdentityHasher>>;

#[derive(Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) | u64::from(*byte);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
