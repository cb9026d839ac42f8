//! Runs many seeds on all cores.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Returns the results in the order of the seeds. Seeds that were not started when a result was `enough` are left out.
pub fn each<T: Send>(
    seeds: Range<u64>,
    enough: impl Fn(&T) -> bool + Sync,
    run: impl Fn(u64) -> T + Sync,
) -> Vec<(u64, T)> {
    let (next, over) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let worker = || {
        let mut all = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || over.load(Ordering::Relaxed) {
                return all;
            }
            let one = run(seed);
            over.fetch_or(enough(&one), Ordering::Relaxed);
            all.push((seed, one));
        }
    };
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let mut all: Vec<(u64, T)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(worker)).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, Vec<(u64, T)>>| {
            worker.join().expect("no panic in the world")
        };
        workers.into_iter().flat_map(join).collect()
    });
    all.sort_by_key(|(seed, _)| *seed);
    all
}
