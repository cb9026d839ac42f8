//! Simulation: the real state machine in a simulated world with many candidates and one store. Clocks drift and stop; requests
//! and replies are lost, late or repeated independently. One seed determines everything.
//!
//! Replay a failing seed: `TENURE_SEED=4711 cargo test -p tenure --test simulation one_seed -- --nocapture`.
//! More seeds: `TENURE_SEEDS=100000 cargo test -p tenure --test simulation`.

mod config;
mod fact;
mod faults;
mod invariants;
mod mutant;
mod node;
mod store;
mod world;

use config::Plan;
use mutant::Mutant;
use world::{RunOutcome, World};

/// How many seeds `make test` runs, one simulated hour each.
const SEEDS: u64 = 4_000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// Runs the seeds. Returns an error for the first seed that broke an invariant.
fn run(seeds: std::ops::Range<u64>, mutant: Mutant) -> Result<Vec<RunOutcome>, String> {
    let run = |seed| World::new(Plan::from_seed(seed), mutant).run();
    let all = tenure_rig::simulation::parallel_seeds::each(seeds, Result::is_err, run).into_iter();
    all.map(|(seed, outcome)| {
        outcome.map_err(|what| {
            format!(
                "seed {seed}: {what}\nreplay: TENURE_SEED={seed} cargo test -p tenure --test simulation one_seed -- --nocapture"
            )
        })
    })
    .collect()
}

#[test]
fn no_seed_breaks_an_invariant() {
    let seeds = number("TENURE_SEEDS").unwrap_or(SEEDS);
    let outcomes = match run(0..seeds, Mutant::None) {
        Ok(outcomes) => outcomes,
        Err(what) => panic!("{what}"),
    };
    let sum = |of: fn(&RunOutcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let (terms, faults, steps) = (sum(|o| o.terms), sum(|o| o.faults), sum(|o| o.steps));
    println!(
        "{seeds} simulated hours: {steps} steps, {terms} terms, {faults} faults, no invariant broken"
    );
    // A world without activity proves nothing.
    assert!(terms > seeds * 20, "only {terms} terms");
    assert!(faults > seeds * 20, "only {faults} faults");
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let history = |_| World::new(Plan::from_seed(seed), Mutant::None).run().map(|o| o.history);
        assert_eq!(history(1), history(2), "seed {seed}");
    }
}

#[test]
fn one_seed() {
    let Some(seed) = number("TENURE_SEED") else {
        return;
    };
    let plan = Plan::from_seed(seed);
    println!("{plan:#?}");
    let mut world = World::new(plan, Mutant::from_env());
    world.enable_trace();
    world.run().expect("no invariant broken");
}

/// Every removed safeguard must be detected by its invariant.
#[test]
fn every_mutant_is_caught() {
    for mutant in Mutant::ALL {
        let what = run(0..1_000, *mutant).err().unwrap_or_else(|| panic!("{mutant:?} got away"));
        let by = mutant.caught_by();
        assert!(
            by.iter().any(|name| what.contains(name)),
            "{mutant:?} should break {by:?}: {what}"
        );
        println!("{mutant:?}: {}", what.lines().next().unwrap_or_default());
    }
}
