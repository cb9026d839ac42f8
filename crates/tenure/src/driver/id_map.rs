//! Maps by numbers that we give out ourselves, one after the other.
//!
//! Hashed as they are: what was begun together lies together, so that a turn over a hundred thousand of them runs through
//! memory instead of jumping about in it. Nobody else chooses these numbers, so nobody can make them collide.

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
