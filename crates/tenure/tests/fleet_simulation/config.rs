//! What one seed means: how many members and shards, which durations, whose clock is how wrong, what goes wrong.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tenure::store::{Grade, Limits};
use tenure::timing::{Options, Timing};

use super::clock::{Clock, MILLI, SECOND, Time};

/// Members × shards × TTLs: what a seed may cost. Most take less; a fleet of 16 × 256 fits with leases of half a minute.
const COST: u64 = 165_000;

/// What happens in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// Everything goes wrong, and then nothing any more.
    Chaos,
    /// Nothing goes wrong; one joins.
    Join,
    /// Nothing goes wrong; one leaves cleanly.
    Leave,
    /// Nothing goes wrong, but all die at once and start again.
    Restart,
    /// Nothing goes wrong, but some lists of shards become different, briefly or until the end; one member joins whose list
    /// cannot be read at first.
    Lists,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) script: Script,
    pub(crate) store_clock: Clock,
    /// More than members that are there at the beginning: others join, or are the doubles of some.
    pub(crate) hosts: Vec<Clock>,
    pub(crate) members: usize,
    pub(crate) shards: usize,
    pub(crate) timing: Arc<Timing>,
    /// Some members never see some shards.
    pub(crate) blind: bool,
    /// Two members with the same id stay until the end.
    pub(crate) twins_stay: bool,
    pub(crate) calm_from: Time,
    pub(crate) settled_at: Time,
    pub(crate) end: Time,
}

impl Plan {
    pub(crate) fn chaos(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let ttls: [u64; 7] = [2_000, 3_000, 4_000, 6_000, 10_000, 20_000, 30_000];
        let end = 1_200 * SECOND;
        let blind = rng.u8(0..10) == 0;
        // Where some never see some shards, those that do take their turns, a TTL each.
        let ttl = ttls[rng.usize(0..if blind { 4 } else { ttls.len() })];
        let members = if blind { rng.usize(2..=6) } else { some(&mut rng, 16) };
        let most = COST * ttl / 1_200_000 / members as u64;
        let shards = some(&mut rng, 256).min(usize::try_from(most).expect("few"));
        let ttl_nanos = ttl * MILLI;
        let settle = 10 * ttl_nanos + 20 * SECOND;
        // Where they take turns, all of them must have had one.
        let turns = if blind { 10 + 2 * members as u64 } else { 5 };
        let tail = turns * ttl_nanos + 20 * SECOND;
        Plan {
            seed,
            script: Script::Chaos,
            store_clock: Clock::any(&mut rng),
            hosts: (0..members + 2).map(|_| Clock::any(&mut rng)).collect(),
            members,
            shards,
            timing: timing(&mut rng, Duration::from_millis(ttl)),
            blind,
            twins_stay: rng.u8(0..8) == 0,
            calm_from: end - tail - settle,
            settled_at: end - tail,
            end,
        }
    }

    pub(crate) fn quiet(seed: u64, script: Script) -> Self {
        let mut rng = Rng::with_seed(seed);
        let ttl = [2_000, 4_000, 10_000][rng.usize(0..3)];
        let members = rng.usize(1..=12);
        let settled = 10 * ttl * MILLI + 5 * SECOND;
        Plan {
            seed,
            script,
            store_clock: Clock::any(&mut rng),
            hosts: (0..=members).map(|_| Clock::any(&mut rng)).collect(),
            members: if script == Script::Leave { members + 1 } else { members },
            shards: rng.usize(1..=256),
            timing: timing(&mut rng, Duration::from_millis(ttl)),
            blind: false,
            twins_stay: false,
            calm_from: settled,
            settled_at: 2 * settled,
            end: 2 * settled + 4 * ttl * MILLI,
        }
    }

    /// In half of the worlds the lists stay different.
    pub(crate) fn lists(seed: u64) -> Self {
        let mut plan = Plan::quiet(seed, Script::Lists);
        // Sources are read every ten seconds.
        plan.settled_at += 40 * SECOND;
        plan.end += 60 * SECOND;
        plan.blind = seed.is_multiple_of(2);
        plan
    }

    pub(crate) fn ttl(&self) -> Time {
        u64::try_from(self.timing.ttl.as_nanos()).expect("short")
    }
}

/// Mostly few, sometimes all.
fn some(rng: &mut Rng, most: usize) -> usize {
    match rng.u8(0..8) {
        0 => most,
        1..=2 => rng.usize(1..=most),
        3..=5 => rng.usize(1..=most / 2),
        _ => rng.usize(1..=most / 4),
    }
}

fn timing(rng: &mut Rng, ttl: Duration) -> Arc<Timing> {
    let mut options = Options { ttl: Some(ttl), ..Options::default() };
    if rng.u8(0..6) == 0 {
        options.renew_every = Some(ttl / 4);
        options.stop_within = Some(ttl / 4);
    }
    Arc::new(Timing::new(&options, &Limits::new(Grade::B)).expect("a valid plan"))
}
