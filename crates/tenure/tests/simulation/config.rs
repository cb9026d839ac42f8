//! The plan of one seed: the number of candidates, the durations, the errors of the clocks, and the possible faults.

use std::time::Duration;

use fastrand::Rng;
use tenure::store::{Grade, Limits};
use tenure::timing::{Timing, TimingOptions};

use tenure_rig::simulation::clock::{SECOND, SimulatedClock, Time};

pub(crate) const HOUR: Time = 3_600 * SECOND;

/// How the expiry of a lease is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    StoreClock,
    Observation,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) judge: Judge,
    pub(crate) store_clock: SimulatedClock,
    pub(crate) nodes: Vec<NodePlan>,
    /// The store may lose everything, or its clock may be set forward. No process restarts then: new candidates are not
    /// covered.
    pub(crate) forgetful: bool,
    /// The store may restart empty. It knows that, so new candidates are covered: they wait for one TTL.
    pub(crate) restarts_empty: bool,
    pub(crate) longest_ttl: Duration,
    pub(crate) calm_from: Time,
    pub(crate) end: Time,
}

#[derive(Clone, Debug)]
pub(crate) struct NodePlan {
    pub(crate) clock: SimulatedClock,
    pub(crate) timing: Timing,
    pub(crate) rank: u32,
}

impl Plan {
    pub(crate) fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let judge = if rng.u8(0..3) == 0 { Judge::Observation } else { Judge::StoreClock };
        let forgetful = judge == Judge::StoreClock && rng.u8(0..4) == 0;
        let ttls: [u64; 6] = [2_000, 3_000, 4_000, 6_000, 10_000, 20_000];
        let common = ttls[rng.usize(0..ttls.len())];
        let mixed = rng.u8(0..4) == 0;
        let nodes: Vec<NodePlan> = (0..rng.usize(3..=7))
            .map(|_| {
                let ttl = if mixed { ttls[rng.usize(0..ttls.len())] } else { common };
                NodePlan {
                    clock: SimulatedClock::any(&mut rng),
                    timing: timing(&mut rng, Duration::from_millis(ttl)),
                    rank: if rng.u8(0..8) == 0 { rng.u32(0..4) } else { 0 },
                }
            })
            .collect();
        let restarts_empty =
            judge == Judge::StoreClock && !forgetful && !mixed && rng.u8(0..3) == 0;
        Plan {
            seed,
            judge,
            store_clock: SimulatedClock::any(&mut rng),
            longest_ttl: nodes.iter().map(|node| node.timing.ttl).max().expect("some nodes"),
            nodes,
            forgetful,
            restarts_empty,
            calm_from: HOUR / 10 * 8,
            end: HOUR,
        }
    }
}

impl Plan {
    /// Whether records can vanish: then there is no expiry to compare with, and checkpoints are lost.
    pub(crate) fn loses_records(&self) -> bool {
        self.forgetful || self.restarts_empty
    }
}

/// Only durations that the validator accepts. The validator has its own tests.
fn timing(rng: &mut Rng, ttl: Duration) -> Timing {
    let mut options = TimingOptions::default();
    options.ttl = Some(ttl);
    if rng.u8(0..6) == 0 {
        options.renew_every = Some(ttl / 4);
        options.stop_within = Some(ttl / 4);
    }
    if rng.u8(0..6) == 0 {
        options.grace = Some(ttl / 3);
    }
    Timing::new(&options, &Limits::new(Grade::B)).expect("a valid plan")
}
