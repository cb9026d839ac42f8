//! The cost of each operation, compared with plain `SET NX` and `PEXPIRE` on the same server: `cargo bench -p tenure
//! --all-features`.
//!
//! Prints tables; asserts nothing but counts. Medians and maxima over many repeats, with the round trip of the store.

#![allow(clippy::unwrap_used)] // A bench fails like a test.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::file::{FileOptions, FileStore};
use tenure::{CandidateId, Claim, Clock, Election, Hold, Name, Nonce, Store, StoreExt as _};
use tenure_rig::servers::{Scratch, Server};

const REPEATS: usize = 50;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        is_leader().await;
        let tmpfs = Scratch::within(std::path::Path::new("/dev/shm"));
        let disk = Scratch::within(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")));
        let stores: Vec<(&str, Arc<dyn Store>)> = vec![
            ("file (tmpfs)", directory(&tmpfs).await),
            ("file (disk)", directory(&disk).await),
        ];
        for (what, store) in &stores {
            uncontended(what, store).await;
            handover(what, store).await;
        }
        match redis().await {
            None => println!("Redis: no server; scripts/servers redis-7 gets it"),
            Some((server, url)) => {
                let store = tenure::open(&url).await.unwrap();
                plain(&url).await;
                uncontended("Redis", &store).await;
                handover("Redis", &store).await;
                dead_holder("Redis", &store).await;
                idle_waiter(&url, &store).await;
                hundred_thousand(&url, &store).await;
                drop(server);
            }
        }
    });
}

async fn directory(scratch: &Scratch) -> Arc<dyn Store> {
    let path = scratch.path().join("leases");
    Arc::new(FileStore::open(path, FileOptions::default()).await.unwrap())
}

/// Median, 99th percentile and maximum, in the unit that fits.
fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    let (median, p99, max) = (at(50), at(99), times[times.len() - 1]);
    println!(
        "{what:<58} median {median:>10.1?}  p99 {p99:>10.1?}  max {max:>10.1?}  ({} times)",
        times.len()
    );
}

async fn is_leader() {
    let store = tenure::open("memory:").await.unwrap();
    let election = Election::builder("bench").start(store).await.unwrap();
    let leadership = election.leadership().await.unwrap();
    let clock = Clock::boot();
    let many: u32 = 5_000_000;
    let started = clock.now();
    for _ in 0..many {
        assert!(black_box(&election).is_leader() || !leadership.is_valid());
    }
    println!("is_leader(): {:.1?} each", clock.now().since(started) / many);
    let started = clock.now();
    for _ in 0..many {
        black_box(black_box(&leadership).is_valid());
    }
    println!("Leadership::is_valid(): {:.1?} each", clock.now().since(started) / many);
    let started = clock.now();
    for _ in 0..many {
        black_box(black_box(&leadership).should_stop());
    }
    println!("Leadership::should_stop(): {:.1?} each", clock.now().since(started) / many);
    drop(leadership);
    election.stop().await;
}

fn claim(name: &str, ttl: Duration) -> Claim {
    let (name, id) = (Name::new(name).unwrap(), CandidateId::new("bench").unwrap());
    Claim::new(name, id, Nonce::random(), ttl)
}

async fn timed<T>(clock: &Clock, what: impl Future<Output = T>) -> (Duration, T) {
    let started = clock.now();
    let value = what.await;
    (clock.now().since(started), value)
}

async fn uncontended(what: &str, store: &Arc<dyn Store>) {
    let clock = Clock::boot();
    let ttl = Duration::from_secs(60);
    let (mut acquires, mut renewals, mut releases) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..10 * REPEATS {
        let claims = [claim(&format!("bench:{}", round % 10), ttl)];
        let (took, answer) = timed(&clock, store.acquire(&claims)).await;
        let hold = answer.unwrap().remove(0).unwrap().held().unwrap().hold;
        acquires.push(took);
        let holds = [hold];
        renewals.push(timed(&clock, store.renew(&holds, ttl)).await.0);
        let [hold] = holds;
        releases.push(timed(&clock, store.release(&[hold.into()])).await.0);
    }
    report(&format!("{what}: acquire"), acquires);
    report(&format!("{what}: renew"), renewals);
    report(&format!("{what}: release"), releases);
}

/// From the end of the leader's work to the start of the next leadership.
async fn handover(what: &str, store: &Arc<dyn Store>) {
    let clock = Clock::boot();
    let start = async |id: &str| {
        let builder = Election::builder("bench:handover").id(id).ttl(Duration::from_secs(5));
        builder.start(store.clone()).await.unwrap()
    };
    let mut leader = start("a").await;
    let mut work = leader.leadership().await.unwrap();
    let mut gaps = Vec::new();
    for round in 0..REPEATS {
        let next = start(["b", "a"][round % 2]).await;
        // Let it settle: its watch is active, and it has observed the leader.
        clock.sleep(Duration::from_millis(50)).await;
        let started = clock.now();
        let stopped = leader.stop();
        drop(work);
        let ((), led) = tokio::join!(stopped, next.leadership());
        gaps.push(clock.now().since(started));
        (leader, work) = (next, led.unwrap());
    }
    report(&format!("{what}: clean stop to new leader"), gaps);
    drop(work);
    leader.stop().await;
}

/// A holder that vanished without a release: how long after its lease expired the next one leads.
async fn dead_holder(what: &str, store: &Arc<dyn Store>) {
    let clock = Clock::boot();
    let ttl = Duration::from_millis(1_000);
    let mut delays = Vec::new();
    for round in 0..REPEATS / 2 {
        let name = format!("bench:dead:{round}");
        let started = clock.now();
        let answer = store.acquire_one(&claim(&name, ttl)).await.unwrap();
        assert!(answer.is_held());
        let next = Election::builder(&name).id("next").ttl(ttl).start(store.clone()).await.unwrap();
        let work = next.leadership().await.unwrap();
        delays.push(clock.now().since(started + ttl));
        drop(work);
        next.stop().await;
    }
    report(&format!("{what}: dead holder, from expiry to new leader"), delays);
}

async fn redis() -> Option<(Server, String)> {
    let program = tenure_rig::servers::find("redis-7", "redis-server")?;
    let port = tenure_rig::servers::free_port();
    let arguments = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""];
    let url = format!("redis://127.0.0.1:{port}/0?startup_wait=0s");
    let probe = async || match tenure::open(&url).await {
        Ok(store) => store.examine().await.is_ok(),
        Err(_) => false,
    };
    let server = Server::start(Scratch::new(), program, arguments, probe).await.unwrap();
    Some((server, url.clone()))
}

/// The same server without Tenure: the cost of a round trip.
async fn plain(url: &str) {
    let clock = Clock::boot();
    let client = redis::Client::open(url.split('?').next().unwrap()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let (mut pings, mut sets, mut expires) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..10 * REPEATS {
        let key = format!("plain:{round}");
        let ping = redis::cmd("PING");
        pings.push(timed(&clock, ping.query_async::<String>(&mut connection)).await.0);
        let mut set = redis::cmd("SET");
        set.arg(&key).arg("id").arg("NX").arg("PX").arg(60_000);
        sets.push(timed(&clock, set.query_async::<String>(&mut connection)).await.0);
        let mut expire = redis::cmd("PEXPIRE");
        expire.arg(&key).arg(60_000);
        expires.push(timed(&clock, expire.query_async::<i64>(&mut connection)).await.0);
    }
    report("Redis, plain: PING", pings);
    report("Redis, plain: SET NX PX", sets);
    report("Redis, plain: PEXPIRE", expires);
}

/// How many script calls the server has executed.
async fn script_calls(url: &str) -> u64 {
    let client = redis::Client::open(url.split('?').next().unwrap()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut info = redis::cmd("INFO");
    let text: String = info.arg("commandstats").query_async(&mut connection).await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Another candidate holds the lease and renews it: what one waiter costs the server meanwhile.
async fn idle_waiter(url: &str, store: &Arc<dyn Store>) {
    let clock = Clock::boot();
    let ttl = Duration::from_millis(1_000);
    let holder = claim("bench:idle", ttl);
    let grant = store.acquire_one(&holder).await.unwrap().held().unwrap();
    let builder = Election::builder("bench:idle").id("waiter").ttl(ttl);
    let waiter = builder.start(store.clone()).await.unwrap();
    let renew = async || {
        let answer = store.renew_one(&grant.hold, ttl).await;
        assert!(answer.unwrap().is_held(), "the holder stays");
        clock.sleep(ttl / 3).await;
    };
    renew().await;
    let (before, started) = (script_calls(url).await, clock.now());
    let renewals: u32 = 60;
    for _ in 0..renewals {
        renew().await;
    }
    let ttls = clock.now().since(started).as_secs_f64() / ttl.as_secs_f64();
    let calls = script_calls(url).await - before - u64::from(renewals);
    println!("Redis: an idle waiter made {calls} calls in {ttls:.1} TTLs");
    drop(waiter);
}

async fn hundred_thousand(url: &str, store: &Arc<dyn Store>) {
    let clock = Clock::boot();
    let ttl = Duration::from_secs(60);
    let claims: Vec<Claim> = (0..100_000).map(|i| claim(&format!("many:{i}"), ttl)).collect();
    let before = script_calls(url).await;
    let (took, answers) = timed(&clock, store.acquire(&claims)).await;
    let calls = script_calls(url).await - before;
    let grants = answers.unwrap().into_iter();
    let holds: Vec<Hold> = grants.map(|grant| grant.unwrap().held().unwrap().hold).collect();
    println!("Redis: {} leases acquired in {took:.2?} by {calls} script calls", holds.len());
    let before = script_calls(url).await;
    let (took, answers) = timed(&clock, store.renew(&holds, ttl)).await;
    let calls = script_calls(url).await - before;
    let held = answers.unwrap().into_iter().filter(|a| a.as_ref().is_ok_and(|a| a.is_held()));
    println!("Redis: {} leases renewed in {took:.2?} by {calls} script calls", held.count());
    assert!(calls <= 100, "{calls} calls for one round of renewals");
}
