//! PURE: random numbers from a seed (PCG, 128 bits of state), for jitter and nonces.

use std::time::Duration;

#[derive(Debug, Clone)]
pub(crate) struct Rng(u128);

impl Rng {
    pub(crate) fn new(seed: u128) -> Self {
        let mut rng = Rng(seed);
        rng.next_u64();
        rng
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;
        const INCREMENT: u128 = 0x5851_F42D_4C95_7F2D_1405_7B7E_F767_814F;
        self.0 = self.0.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        // The upper half folded into the lower, rotated by the six highest bits: the casts truncate on purpose.
        #[allow(clippy::cast_possible_truncation)]
        let (folded, rotation) = (((self.0 >> 64) ^ self.0) as u64, (self.0 >> 122) as u32);
        folded.rotate_right(rotation)
    }

    pub(crate) fn next_u128(&mut self) -> u128 {
        u128::from(self.next_u64()) << 64 | u128::from(self.next_u64())
    }

    /// A random duration from zero up to `end`, exclusive; zero if `end` is zero.
    pub(crate) fn below(&mut self, end: Duration) -> Duration {
        let nanos = u64::try_from(end.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.next_u64().checked_rem(nanos).unwrap_or(0))
    }

    /// A random duration from half of `about` up to one and a half of it.
    pub(crate) fn jittered(&mut self, about: Duration) -> Duration {
        about / 2 + self.below(about)
    }
}
