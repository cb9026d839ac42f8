//! A candidate's or the store's clock: its own offset and rate against true time.

use fastrand::Rng;
use tenure::Moment;

/// True time, in nanoseconds since the start of the world.
pub type Time = u64;

pub const MILLI: Time = 1_000_000;
pub const SECOND: Time = 1_000 * MILLI;

/// Clocks may drift apart by 1000 ppm; each is off by less than half of that, so any two keep within.
const RATE_PPB: i64 = 450_000;

#[derive(Clone, Copy, Debug)]
pub struct SimulatedClock {
    pub offset: u64,
    /// How much faster than true time the clock runs, in billionths.
    pub rate_ppb: i64,
}

impl SimulatedClock {
    /// A random clock within the allowed error.
    pub fn any(rng: &mut Rng) -> Self {
        SimulatedClock {
            offset: rng.u64(1..1_000_000) * SECOND,
            rate_ppb: rng.i64(-RATE_PPB..=RATE_PPB),
        }
    }

    pub fn at(&self, time: Time) -> Moment {
        let time = i128::from(time);
        let shown =
            i128::from(self.offset) + time + time * i128::from(self.rate_ppb) / 1_000_000_000;
        Moment::from_nanos(u64::try_from(shown).expect("worlds are short"))
    }

    /// The first true time at which the clock shows `moment` or later; zero if it always has.
    pub fn when(&self, moment: Moment) -> Time {
        let ahead = i128::from(moment.as_nanos()) - i128::from(self.offset);
        if ahead <= 0 {
            return 0;
        }
        let rate = 1_000_000_000 + i128::from(self.rate_ppb);
        let mut time = u64::try_from(ahead * 1_000_000_000 / rate).unwrap_or(u64::MAX);
        // Rounding of the two directions may differ by a nanosecond or two.
        while self.at(time) < moment {
            time += 1;
        }
        time
    }
}
