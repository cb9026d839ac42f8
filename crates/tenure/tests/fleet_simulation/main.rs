//! Whole fleets in a simulated world: the real steward and the real election machines of many members over many shards, one
//! store, and everything that goes wrong between them. One seed drives everything; twenty simulated minutes each.
//!
//! Replay a failing seed: `TENURE_SEED=47 cargo test -p tenure --test fleet_simulation one_seed -- --nocapture`.
//! More seeds: `TENURE_SEEDS=10000 cargo test -p tenure --test fleet_simulation`.

mod after_faults;
#[path = "../simulation/clock.rs"]
mod clock;
mod config;
mod faults;
mod host;
mod invariants;
mod member;
mod mutant;
mod network;
#[path = "../simulation/parallel_seeds.rs"]
mod parallel_seeds;
#[path = "../simulation/queue.rs"]
mod queue;
mod store;
mod world;

use config::{Plan, Script};
use mutant::Mutant;
use world::{Outcome, World};

/// How many seeds `make test` runs.
const SEEDS: u64 = 200;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn seeds() -> u64 {
    variable("TENURE_SEEDS").unwrap_or(SEEDS)
}

/// Runs the seeds and tells which broke something; one is enough for a mutant.
fn run(seeds: u64, plan: fn(u64) -> Plan, mutant: Mutant) -> Result<Vec<Outcome>, String> {
    let enough = |outcome: &Result<_, _>| outcome.is_err() && mutant != Mutant::None;
    let all = parallel_seeds::each(0..seeds, enough, |seed| World::new(plan(seed), mutant).run());
    let failures: Vec<String> = all
        .iter()
        .filter_map(|(seed, outcome)| Some(format!("seed {seed}: {}", outcome.as_ref().err()?)))
        .collect();
    if failures.is_empty() {
        return Ok(all.into_iter().filter_map(|(_, outcome)| outcome.ok()).collect());
    }
    Err(format!(
        "{}\n{} of {seeds} seeds; replay: TENURE_SCRIPT={:?} TENURE_SEED=… cargo test -p tenure --test fleet_simulation one_seed -- --nocapture",
        failures.join("\n"),
        failures.len(),
        plan(0).script,
    ))
}

fn sum(outcomes: &[Outcome], of: fn(&Outcome) -> u64) -> u64 {
    outcomes.iter().map(of).sum()
}

#[test]
fn no_seed_breaks_an_invariant() {
    let seeds = seeds();
    let outcomes = run(seeds, Plan::chaos, Mutant::None).unwrap_or_else(|what| panic!("{what}"));
    let of = |of: fn(&Outcome) -> u64| sum(&outcomes, of);
    let (terms, faults, handovers) = (of(|o| o.terms), of(|o| o.faults), of(|o| o.handovers));
    println!(
        "{seeds} fleets for 20 simulated minutes: {} steps, {terms} terms, {handovers} hand-overs, {} works that hung, \
         {} claims, {faults} faults, no invariant broken",
        of(|o| o.steps),
        of(|o| o.hung),
        of(|o| o.claims),
    );
    // A world in which nothing happens proves nothing.
    assert!(terms > seeds * 200, "only {terms} terms");
    assert!(handovers > seeds * 50, "only {handovers} hand-overs");
    assert!(faults > seeds * 20, "only {faults} faults");
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let history = |_| World::new(Plan::chaos(seed), Mutant::None).run().map(|o| o.history);
        assert_eq!(history(1), history(2), "seed {seed}");
    }
}

/// L6: moved ≤ ⌈S/N⌉ + N.
#[test]
fn one_that_joins_moves_no_more_than_its_share() {
    run(seeds() / 2, |seed| Plan::quiet(seed, Script::Join), Mutant::None)
        .unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn one_that_leaves_moves_no_more_than_its_share() {
    run(seeds() / 2, |seed| Plan::quiet(seed, Script::Leave), Mutant::None)
        .unwrap_or_else(|what| panic!("{what}"));
}

/// L7: not members × shards.
#[test]
fn a_fleet_that_starts_again_claims_each_shard_a_few_times() {
    run(seeds() / 2, |seed| Plan::quiet(seed, Script::Restart), Mutant::None)
        .unwrap_or_else(|what| panic!("{what}"));
}

/// F53, F54: no shard that a living member lists has no owner for longer than 2 × TTL.
#[test]
fn every_listed_shard_has_an_owner_while_lists_differ() {
    run(seeds() / 2, Plan::lists, Mutant::None).unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn one_seed() {
    let Some(seed) = variable("TENURE_SEED") else {
        return;
    };
    let plan = match std::env::var("TENURE_SCRIPT").as_deref() {
        Ok("Join") => Plan::quiet(seed, Script::Join),
        Ok("Leave") => Plan::quiet(seed, Script::Leave),
        Ok("Lists") => Plan::lists(seed),
        Ok("Restart") => Plan::quiet(seed, Script::Restart),
        _ => Plan::chaos(seed),
    };
    println!("{plan:#?}");
    let mut world = World::new(plan, Mutant::from_env());
    world.talk();
    world.run().unwrap_or_else(|what| panic!("{what}"));
}

/// Each guard taken away must be noticed, and by the invariant that is there for it.
#[test]
fn every_mutant_is_caught() {
    for mutant in Mutant::ALL {
        let what = run(SEEDS, mutant.plan(), *mutant)
            .err()
            .unwrap_or_else(|| panic!("{mutant:?} got away"));
        let by = mutant.caught_by();
        assert!(what.contains(by), "{mutant:?} should break {by:?}: {what}");
        println!("{mutant:?}: {}", what.lines().next().unwrap_or_default());
    }
}
