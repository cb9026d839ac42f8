//! Simulation of whole fleets: the real planners and the real lease machines of many members over many shards, one store, and
//! faults between them. One seed determines everything; each seed runs for twenty simulated minutes.
//!
//! Replay a failing seed: `TENURE_SEED=47 cargo test -p tenure --test fleet_simulation one_seed -- --nocapture`.
//! More seeds: `TENURE_SEEDS=10000 cargo test -p tenure --test fleet_simulation`.

mod after_faults;
mod config;
mod faults;
mod host;
mod invariants;
mod member;
mod mutant;
mod network;
mod store;
mod world;

use config::{Script, SimConfig};
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

/// Runs the seeds and returns those that broke an invariant. For a mutant, the first one is enough.
fn run(seeds: u64, config: fn(u64) -> SimConfig, mutant: Mutant) -> Result<Vec<Outcome>, String> {
    let enough = |outcome: &Result<_, _>| outcome.is_err() && mutant != Mutant::None;
    let all = tenure_rig::simulation::parallel_seeds::each(0..seeds, enough, |seed| {
        World::new(config(seed), mutant).run()
    });
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
        config(0).script,
    ))
}

fn sum(outcomes: &[Outcome], of: fn(&Outcome) -> u64) -> u64 {
    outcomes.iter().map(of).sum()
}

#[test]
fn no_seed_breaks_an_invariant() {
    let seeds = seeds();
    let outcomes =
        run(seeds, SimConfig::chaos, Mutant::None).unwrap_or_else(|what| panic!("{what}"));
    let of = |of: fn(&Outcome) -> u64| sum(&outcomes, of);
    let (terms, faults, handovers) = (of(|o| o.terms), of(|o| o.faults), of(|o| o.handovers));
    println!(
        "{seeds} fleets for 20 simulated minutes: {} steps, {terms} terms, {handovers} hand-overs, {} works that hung, \
         {} claims, {faults} faults, no invariant broken",
        of(|o| o.steps),
        of(|o| o.hung),
        of(|o| o.claims),
    );
    // A simulation without terms, hand-overs and faults proves nothing.
    assert!(terms > seeds * 200, "only {terms} terms");
    assert!(handovers > seeds * 50, "only {handovers} hand-overs");
    assert!(faults > seeds * 20, "only {faults} faults");
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let history = |_| World::new(SimConfig::chaos(seed), Mutant::None).run().map(|o| o.history);
        assert_eq!(history(1), history(2), "seed {seed}");
    }
}

/// L6: moved ≤ ⌈S/N⌉ + N.
#[test]
fn a_join_moves_no_more_than_a_share() {
    run(seeds() / 2, |seed| SimConfig::quiet(seed, Script::Join), Mutant::None)
        .unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn a_leave_moves_no_more_than_a_share() {
    run(seeds() / 2, |seed| SimConfig::quiet(seed, Script::Leave), Mutant::None)
        .unwrap_or_else(|what| panic!("{what}"));
}

/// L7: not members × shards.
#[test]
fn a_restarted_fleet_claims_each_shard_only_a_few_times() {
    run(seeds() / 2, |seed| SimConfig::quiet(seed, Script::Restart), Mutant::None)
        .unwrap_or_else(|what| panic!("{what}"));
}

/// F53, F54: each shard that a running member lists gets an owner within 2 × TTL.
#[test]
fn every_listed_shard_has_an_owner_while_lists_differ() {
    run(seeds() / 2, SimConfig::lists, Mutant::None).unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn one_seed() {
    let Some(seed) = variable("TENURE_SEED") else {
        return;
    };
    let config = match std::env::var("TENURE_SCRIPT").as_deref() {
        Ok("Join") => SimConfig::quiet(seed, Script::Join),
        Ok("Leave") => SimConfig::quiet(seed, Script::Leave),
        Ok("Lists") => SimConfig::lists(seed),
        Ok("Restart") => SimConfig::quiet(seed, Script::Restart),
        _ => SimConfig::chaos(seed),
    };
    println!("{config:#?}");
    let mut world = World::new(config, Mutant::from_env());
    world.enable_trace();
    world.run().unwrap_or_else(|what| panic!("{what}"));
}

/// Each mutant removes one safeguard. It must be caught by the invariant that the safeguard protects.
#[test]
fn every_mutant_is_caught() {
    for mutant in Mutant::ALL {
        let what = run(SEEDS, mutant.config(), *mutant)
            .err()
            .unwrap_or_else(|| panic!("{mutant:?} got away"));
        let by = mutant.caught_by();
        assert!(what.contains(by), "{mutant:?} should break {by:?}: {what}");
        println!("{mutant:?}: {}", what.lines().next().unwrap_or_default());
    }
}
