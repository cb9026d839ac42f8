//! The candidate with the highest priority leads next, and the others wait for it.
//!
//! What holds on any machine is asserted: a candidate with r higher priorities before it is never granted the lease earlier
//! than r × 50 ms after the leader was told to end. That the highest priority leads every time holds on an idle machine and is
//! asserted only if `TENURE_TURNS` is set, which is the number of turns:
//!
//! `TENURE_TURNS=50 cargo test -p tenure-cli --test system -- priority --test-threads 1 --nocapture`

use std::sync::Arc;

use libtest_mimic::Trial;
use rustix::process::Signal;
use tenure::store::Scope;
use tenure::{Clock, Lease, Name, Store};
use tokio::runtime::Runtime;

use crate::trial;
use tenure_rig::system::election_trial::TIMEOUT;
use tenure_rig::system::time::{poll_until, runtime};
use tenure_rig::system::trial_directory::{TenureProcess, TrialDirectory};
use tenure_rig::system::trial_store::{StoreKind, TrialStore};

const TURNS: u32 = 5;
const RANK_STEP_MS: u64 = 50;
/// The waiting candidates, their priorities, and how many higher priorities each has before it.
const WAITERS: [(&str, &str, u64); 3] = [("low", "0", 2), ("middle", "3", 1), ("high", "9", 0)];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (place, store) in [(StoreKind::File, "file"), (StoreKind::Redis, "redis")] {
        for (signal, how) in [(Signal::TERM, "stopped"), (Signal::KILL, "killed")] {
            let name = format!("priority::leader_is_{how}::{store}");
            trials.push(trial(name, place, move || highest_leads_next(place, signal)));
        }
    }
    trials
}

fn highest_leads_next(place: StoreKind, signal: Signal) {
    let given = std::env::var("TENURE_TURNS").ok().map(|turns| turns.parse().unwrap());
    let turns = given.unwrap_or(TURNS);
    let mut scene = Scene::new(place);
    let mut led_by_highest = 0;
    for turn in 0..turns {
        let (leader, after_ms) = scene.hand_over(&format!("job-{turn}"), signal);
        println!("turn {turn}: {leader} leads after {after_ms} ms");
        let (.., rank) = *WAITERS.iter().find(|(id, ..)| *id == leader).expect("a waiter");
        led_by_highest += u32::from(rank == 0);
        // Both times are truncated to milliseconds.
        assert!(after_ms + 1 >= rank * RANK_STEP_MS, "{leader} leads after {after_ms} ms");
    }
    println!("the highest priority led {led_by_highest} of {turns} times");
    if given.is_some() {
        assert_eq!(led_by_highest, turns);
    }
}

struct Scene {
    actors: Vec<TenureProcess>,
    room: TrialDirectory,
    runtime: Runtime,
    store: Arc<dyn Store>,
    place: TrialStore,
}

impl Scene {
    fn new(kind: StoreKind) -> Scene {
        let room = TrialDirectory::new();
        let place = TrialStore::open(kind, room.path(), 0);
        let runtime = runtime();
        let store = runtime.block_on(tenure::open(&place.url())).unwrap();
        Scene { actors: Vec::new(), room, runtime, store, place }
    }

    /// Sends `signal` to a leader with three waiting candidates. Returns which of them is granted the lease next, and how many
    /// milliseconds later.
    fn hand_over(&mut self, name: &str, signal: Signal) -> (String, u64) {
        self.start(name, "first", "0");
        self.until("first leads", |scene| scene.leader(name).filter(|(id, _)| id == "first"));
        for (id, priority, _) in WAITERS {
            self.start(name, id, priority);
        }
        for (id, ..) in WAITERS {
            self.until(&format!("{id} knows the others"), |scene| {
                let known = scene.known_to(name, id);
                WAITERS.iter().all(|(other, ..)| known.iter().any(|id| id == other)).then_some(())
            });
        }
        let signalled_at = Clock::boot().minting_micros() / 1_000;
        self.actors[0].signal(signal);
        let (leader, since) = self.until("another candidate leads", |scene| {
            scene.leader(name).filter(|(id, _)| id != "first")
        });
        self.end();
        (leader, since.saturating_sub(signalled_at))
    }

    fn start(&mut self, name: &str, id: &str, priority: &str) {
        let words = format!(
            "run {name} --node-id {id} --priority {priority} --lease-duration 2s --http 127.0.0.1:0 -- sleep 600"
        );
        let mut command = self.room.command();
        command.args(words.split(' ')).env("TENURE_STORE", self.place.url());
        self.actors.push(self.room.start(&log(name, id), command, None));
    }

    /// The leader, and since when it holds the lease, in Unix milliseconds.
    fn leader(&self, name: &str) -> Option<(String, u64)> {
        let scope = Scope::name(&Name::new(name).unwrap());
        let lease: Lease = self.runtime.block_on(self.store.observe(&scope)).ok()?.pop()?.ok()?;
        Some((lease.leader()?.to_owned(), lease.since?))
    }

    /// The ids of the candidates that the waiting candidate `id` has read from the store.
    fn known_to(&self, name: &str, id: &str) -> Vec<String> {
        let status = self.room.status_of(&log(name, id)).unwrap_or_default();
        let candidates = status["candidates"].as_array().cloned().unwrap_or_default();
        candidates.iter().filter_map(|one| Some(one["candidateId"].as_str()?.to_owned())).collect()
    }

    fn until<T>(&self, what: &str, found: impl Fn(&Scene) -> Option<T>) -> T {
        let found = poll_until(TIMEOUT, || found(self));
        found.unwrap_or_else(|| self.room.fail(&format!("it never came to this: {what}")))
    }

    fn end(&mut self) {
        self.actors.iter_mut().for_each(|actor| actor.signal(Signal::TERM));
        let empty = poll_until(TIMEOUT, || self.room.empties().is_ok().then_some(()));
        assert!(empty.is_some(), "{:?}", self.room.empties());
        self.room.clear(&mut self.actors);
        self.actors.clear();
    }
}

impl Drop for Scene {
    /// Kills all processes of a trial that failed.
    fn drop(&mut self) {
        self.room.clear(&mut self.actors);
    }
}

/// The name of the log of the candidate `id` of `name`.
fn log(name: &str, id: &str) -> String {
    format!("{name}-{id}")
}
