//! The configuration that a seed stands for: the numbers of members and shards, the durations, the clock errors and the script.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tenure::store::{Grade, Limits};
use tenure::timing::{Timing, TimingOptions};

use tenure_rig::simulation::clock::{MILLI, SECOND, SimulatedClock, Time};

/// The limit of members × shards × TTLs per seed. Most seeds need less; a fleet of 16 × 256 fits with a TTL of half a minute.
const MAX_SEED_COST: u64 = 165_000;

/// What happens in a simulated world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// Faults of all kinds, then none.
    Chaos,
    /// No faults; a member joins.
    Join,
    /// No faults; a member leaves cleanly.
    Leave,
    /// All processes are killed at once and start again; no other faults.
    Restart,
    /// No faults, but the lists of shards become different, for a time or until the end; a member joins whose list cannot be
    /// read at first.
    Lists,
}

#[derive(Clone, Debug)]
pub(crate) struct SimConfig {
    pub(crate) seed: u64,
    pub(crate) script: Script,
    pub(crate) store_clock: SimulatedClock,
    /// The clocks of all hosts. There are more hosts than members at the start: others join, or start with the id of another
    /// member.
    pub(crate) hosts: Vec<SimulatedClock>,
    pub(crate) members: usize,
    pub(crate) shards: usize,
    pub(crate) timing: Arc<Timing>,
    /// The lists of some members lack some shards until the end.
    pub(crate) lists_differ: bool,
    /// Two members with the same id stay until the end.
    pub(crate) same_id_stays: bool,
    pub(crate) calm_from: Time,
    pub(crate) settled_at: Time,
    pub(crate) end: Time,
}

impl SimConfig {
    pub(crate) fn chaos(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let ttls: [u64; 7] = [2_000, 3_000, 4_000, 6_000, 10_000, 20_000, 30_000];
        let end = 1_200 * SECOND;
        let lists_differ = rng.u8(0..10) == 0;
        // If lists differ, each member waits one TTL for each member before it, so the TTL must be short.
        let ttl = ttls[rng.usize(0..if lists_differ { 4 } else { ttls.len() })];
        let members = if lists_differ { rng.usize(2..=6) } else { random_size(&mut rng, 16) };
        let most = MAX_SEED_COST * ttl / 1_200_000 / members as u64;
        let shards = random_size(&mut rng, 256).min(usize::try_from(most).expect("few"));
        let ttl_nanos = ttl * MILLI;
        let settle = 10 * ttl_nanos + 20 * SECOND;
        // If lists differ, all members must have had their turn.
        let turns = if lists_differ { 10 + 2 * members as u64 } else { 5 };
        let tail = turns * ttl_nanos + 20 * SECOND;
        SimConfig {
            seed,
            script: Script::Chaos,
            store_clock: SimulatedClock::any(&mut rng),
            hosts: (0..members + 2).map(|_| SimulatedClock::any(&mut rng)).collect(),
            members,
            shards,
            timing: timing(&mut rng, Duration::from_millis(ttl)),
            lists_differ,
            same_id_stays: rng.u8(0..8) == 0,
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
        SimConfig {
            seed,
            script,
            store_clock: SimulatedClock::any(&mut rng),
            hosts: (0..=members).map(|_| SimulatedClock::any(&mut rng)).collect(),
            members: if script == Script::Leave { members + 1 } else { members },
            shards: rng.usize(1..=256),
            timing: timing(&mut rng, Duration::from_millis(ttl)),
            lists_differ: false,
            same_id_stays: false,
            calm_from: settled,
            settled_at: 2 * settled,
            end: 2 * settled + 4 * ttl * MILLI,
        }
    }

    /// In half of the worlds the lists stay different.
    pub(crate) fn lists(seed: u64) -> Self {
        let mut config = SimConfig::quiet(seed, Script::Lists);
        // Sources are read every ten seconds.
        config.settled_at += 40 * SECOND;
        config.end += 60 * SECOND;
        config.lists_differ = seed.is_multiple_of(2);
        config
    }

    pub(crate) fn ttl(&self) -> Time {
        u64::try_from(self.timing.ttl.as_nanos()).expect("short")
    }
}

/// A random size: mostly small, sometimes the maximum.
fn random_size(rng: &mut Rng, most: usize) -> usize {
    match rng.u8(0..8) {
        0 => most,
        1..=2 => rng.usize(1..=most),
        3..=5 => rng.usize(1..=most / 2),
        _ => rng.usize(1..=most / 4),
    }
}

fn timing(rng: &mut Rng, ttl: Duration) -> Arc<Timing> {
    let mut options = TimingOptions::default();
    options.ttl = Some(ttl);
    if rng.u8(0..6) == 0 {
        options.renew_every = Some(ttl / 4);
        options.stop_within = Some(ttl / 4);
    }
    Arc::new(Timing::new(&options, &Limits::new(Grade::B)).expect("a valid plan"))
}
