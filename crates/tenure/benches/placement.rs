//! How long a placement plan takes: `cargo bench -p tenure --bench placement`.
//!
//! On one core, from names and from precomputed hashes. Prints a table, and asserts the promises about spread and moves.

use std::hint::black_box;
use std::time::Duration;

use tenure::Clock;
use tenure::placement::{HeldShard, PlacementMember, PlacementShard, hash, plan, plan_hashed};

const REPEATS: usize = 9;

fn main() {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "one thread of {cores} cores, {REPEATS} times each; names: plan(), hashes: plan_hashed()"
    );
    println!(
        "{:<34} {:>24} {:>24} {:>9} {:>9}  {:<14}",
        "",
        "names: median, max",
        "hashes: median, max",
        "moved",
        "at most",
        "smallest, largest share"
    );
    fleet(1_000_000, 100);
    fleet(100_000, 3);
}

/// Plans one fleet from nothing, unchanged, after a join and after a leave.
fn fleet(shards: usize, members: usize) {
    let names: Vec<String> = (0..shards).map(|number| format!("tenant-{number:07}")).collect();
    let ids: Vec<String> = (0..=members).map(|number| format!("web-{number}")).collect();
    let all: Vec<PlacementMember<'_>> = ids.iter().map(|id| PlacementMember::new(id)).collect();
    let what = format!("{shards} × {members}");

    let settled =
        row(&format!("{what}, from nothing"), &names, &all[..members], &vec![None; shards]);
    row(&format!("{what}, nothing changed"), &names, &all[..members], &settled);
    row(&format!("{what}, after one joined"), &names, &all, &settled);
    // The last member is missing from the shorter list, so its shards have no owner there.
    row(&format!("{what}, after one left"), &names, &all[..members - 1], &settled);
}

fn row(
    what: &str,
    names: &[String],
    members: &[PlacementMember<'_>],
    owners: &[Option<usize>],
) -> Vec<Option<usize>> {
    let held: Vec<HeldShard<'_>> =
        names.iter().zip(owners).map(|(name, owner)| HeldShard::new(name, *owner)).collect();
    let items: Vec<PlacementShard> = held
        .iter()
        .map(|held| PlacementShard {
            hash: hash(held.shard),
            owner: held.owner.and_then(|owner| u32::try_from(owner).ok()),
            adopted: false,
        })
        .collect();

    let by_name = timed(|| plan(black_box(members), black_box(&held)));
    let by_hash = timed(|| plan_hashed(black_box(members), black_box(&items)));

    let planned = plan(members, &held);
    let same =
        plan_hashed(members, &items).iter().zip(&planned).all(|(u, v)| u.map(|u| u as usize) == *v);
    assert!(same, "{what}: names and hashes come to the same");
    let mut shares = vec![0_usize; members.len()];
    planned.iter().flatten().for_each(|member| shares[*member] += 1);
    let (least, most) = (shares.iter().min().copied(), shares.iter().max().copied());
    let (least, most) = (least.unwrap_or(0), most.unwrap_or(0));
    assert!(most - least <= 1, "{what}: {least} to {most} each");
    let moved =
        planned.iter().zip(owners).filter(|(to, from)| from.is_some() && to != from).count();
    let bound = names.len().div_ceil(members.len()) + members.len();
    assert!(moved <= bound, "{what}: {moved} moved, at most {bound} should");
    println!("{what:<34} {by_name:>24} {by_hash:>24} {moved:>9} {bound:>9}  {least}, {most}");
    planned
}

fn timed<T>(mut work: impl FnMut() -> T) -> String {
    let clock = Clock::boot();
    let mut times: Vec<Duration> = (0..REPEATS)
        .map(|_| {
            let begun = clock.now();
            black_box(work());
            clock.now().since(begun)
        })
        .collect();
    times.sort_unstable();
    format!("{:.1?}, {:.1?}", times[REPEATS / 2], times[REPEATS - 1])
}
