//! The cost of a hundred thousand leases in Redis, by operation, in calls of a thousand: `cargo bench -p tenure --all-features
//! --bench batches`.
//!
//! A member of a fleet shares its machine with the work, and all members share one server: so the CPU time on both sides
//! counts, not only the wall time. `KIND=valkey-8` selects another server.

#![allow(clippy::unwrap_used)] // A bench fails like a test.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tenure::store::Scope;
use tenure::{CandidateId, Claim, Clock, Hold, Name, Nonce, Release, Store};
use tenure_rig::servers::{Scratch, Server};

const BATCHES: usize = 100;
const BATCH: usize = 1_000;
const REPEATS: usize = 5;
const TTL: Duration = Duration::from_secs(60);

fn main() {
    // One thread, so that the CPU time of the process is that of the caller and the connection together.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let kind = std::env::var("KIND").unwrap_or_else(|_| "redis-7".to_owned());
        match Bench::start(&kind).await {
            None => println!("{}", tenure_rig::servers::install_hint(&kind)),
            Some(mut bench) => bench.run().await,
        }
    });
}

struct Bench {
    clock: Clock,
    store: Arc<dyn Store>,
    /// An administrator's connection to the server.
    admin: MultiplexedConnection,
    rows: Vec<(&'static str, Vec<Cost>)>,
    _server: Server,
}

/// The cost of 100 calls.
#[derive(Clone, Copy)]
struct Cost {
    wall: Duration,
    longest: Duration,
    client: Duration,
    server: Duration,
    calls: u64,
}

impl Bench {
    async fn start(kind: &str) -> Option<Self> {
        let program = if kind.starts_with("valkey") { "valkey-server" } else { "redis-server" };
        let program = tenure_rig::servers::find(kind, program)?;
        let port = tenure_rig::servers::free_port();
        let arguments = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""];
        let url = format!("redis://127.0.0.1:{port}");
        let client = redis::Client::open(url.as_str()).unwrap();
        let probe = async || client.get_multiplexed_async_connection().await.is_ok();
        let server = Server::start(Scratch::new(), program, arguments, probe).await.unwrap();
        let store = tenure::open(&format!("{url}?startup_wait=0s")).await.unwrap();
        println!("{}, {BATCHES} calls of {BATCH}", store.examine().await.unwrap().what);
        let admin = client.get_multiplexed_async_connection().await.unwrap();
        let clock = Clock::boot();
        Some(Bench { clock, store, admin, rows: Vec::new(), _server: server })
    }

    async fn run(&mut self) {
        for _ in 0..REPEATS {
            self.round().await;
        }
        println!(
            "{:<18} {:>14} {:>16} {:>16} {:>16} {:>6}",
            "median (max)",
            "total ms",
            "longest call ms",
            "client µs each",
            "server µs each",
            "calls"
        );
        for (what, costs) in &self.rows {
            let total = figures(costs, |cost| cost.wall.as_secs_f64() * 1e3);
            let longest = figures(costs, |cost| cost.longest.as_secs_f64() * 1e3);
            let client = figures(costs, |cost| each(cost.client));
            let server = figures(costs, |cost| each(cost.server));
            println!(
                "{what:<18} {:>6.0} ({:>4.0}) {:>8.1} ({:>4.1}) {:>8.2} ({:>4.2}) {:>8.2} ({:>4.2}) {:>6}",
                total.0,
                total.1,
                longest.0,
                longest.1,
                client.0,
                client.1,
                server.0,
                server.1,
                costs[0].calls
            );
        }
        let store = Arc::clone(&self.store);
        self.renewals_during_an_acquire("a connection of their own", store.detached()).await;
        self.renewals_during_an_acquire("the same connection", store).await;
        self.ping().await;
    }

    /// Every operation once, on a server that was emptied before.
    async fn round(&mut self) {
        redis::cmd("FLUSHALL").exec_async(&mut self.admin).await.unwrap();
        let id = CandidateId::generate();
        let claims = claims(&id);
        let mut holds: Vec<Vec<Hold>> = Vec::new();
        let store = Arc::clone(&self.store);
        self.measure("acquire, fresh", &claims, async |claims| {
            let grants = store.acquire(claims).await.unwrap().into_iter();
            holds.push(grants.map(|grant| grant.unwrap().held().unwrap().hold).collect());
        })
        .await;
        let others = self::claims(&CandidateId::generate());
        self.measure("acquire, taken", &others, async |claims| {
            let answers = store.acquire(claims).await.unwrap();
            assert!(answers.iter().all(|answer| !answer.as_ref().unwrap().is_held()));
        })
        .await;
        self.measure("renew", &holds, async |holds| {
            let answers = store.renew(holds, TTL).await.unwrap();
            assert!(answers.iter().all(|answer| answer.as_ref().unwrap().is_held()));
        })
        .await;
        let scopes: Vec<Scope> = claims
            .iter()
            .map(|claims| Scope::Names(claims.iter().map(|claim| claim.name.clone()).collect()))
            .collect();
        self.measure("observe, names", &scopes, async |scope| {
            assert_eq!(store.observe(scope).await.unwrap().len(), BATCH);
        })
        .await;
        let prefixes: Vec<Scope> =
            (0..BATCHES).map(|batch| Scope::Prefix(format!("bench:{batch:02}:"))).collect();
        self.measure("observe, prefix", &prefixes, async |scope| {
            assert_eq!(store.observe(scope).await.unwrap().len(), BATCH);
        })
        .await;
        let releases: Vec<Vec<Release>> =
            holds.into_iter().map(|holds| holds.into_iter().map(Release::from).collect()).collect();
        self.measure("release", &releases, async |releases| {
            assert!(store.release(releases).await.unwrap().iter().all(Result::is_ok));
        })
        .await;
    }

    async fn measure<T>(
        &mut self,
        what: &'static str,
        batches: &[T],
        mut work: impl AsyncFnMut(&T),
    ) {
        let (server, calls) = (self.server_time().await, self.calls().await);
        let (started, client) = (self.clock.now(), client_time());
        let mut longest = Duration::ZERO;
        for batch in batches {
            let sent = self.clock.now();
            work(batch).await;
            longest = longest.max(self.clock.now().since(sent));
        }
        let cost = Cost {
            wall: self.clock.now().since(started),
            longest,
            client: client_time() - client,
            server: self.server_time().await - server,
            calls: self.calls().await - calls,
        };
        match self.rows.iter_mut().find(|row| row.0 == what) {
            Some(row) => row.1.push(cost),
            None => self.rows.push((what, vec![cost])),
        }
    }

    /// Measures renewals of a thousand leases while one call acquires a hundred thousand.
    async fn renewals_during_an_acquire(&mut self, on: &str, renewer: Arc<dyn Store>) {
        redis::cmd("FLUSHALL").exec_async(&mut self.admin).await.unwrap();
        let id = CandidateId::generate();
        let held = (0..BATCH).map(|i| claim(&format!("held:{i}"), &id)).collect::<Vec<_>>();
        let grants = renewer.acquire(&held).await.unwrap().into_iter();
        let holds: Vec<Hold> = grants.map(|grant| grant.unwrap().held().unwrap().hold).collect();
        let (all, mut took, mut times) = (claims(&id).concat(), None, Vec::new());
        let started = self.clock.now();
        let acquire = async {
            self.store.acquire(&all).await.unwrap();
            took = Some(self.clock.now().since(started));
        };
        let renew = async {
            loop {
                let sent = self.clock.now();
                renewer.renew(&holds, TTL).await.unwrap();
                times.push(self.clock.now().since(sent));
                self.clock.sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! { () = acquire => {}, () = renew => {} }
        times.sort_unstable();
        println!(
            "one call that acquires all: {:.1?}; renewals of {BATCH} meanwhile on {on}: median {:.1?}, max {:.1?} \
             ({} times)",
            took.unwrap(),
            times[times.len() / 2],
            times[times.len() - 1],
            times.len()
        );
    }

    async fn ping(&mut self) {
        let mut times = Vec::new();
        for _ in 0..1_000 {
            let sent = self.clock.now();
            redis::cmd("PING").exec_async(&mut self.admin).await.unwrap();
            times.push(self.clock.now().since(sent));
        }
        times.sort_unstable();
        println!("PING: median {:.1?}, max {:.1?}", times[times.len() / 2], times[times.len() - 1]);
    }

    async fn info(&mut self, section: &str) -> String {
        redis::cmd("INFO").arg(section).query_async(&mut self.admin).await.unwrap()
    }

    /// The server's CPU time so far, including its background threads.
    async fn server_time(&mut self) -> Duration {
        let info = self.info("cpu").await;
        let seconds = |field: &str| {
            info.lines().find_map(|line| line.strip_prefix(field)?.parse::<f64>().ok()).unwrap()
        };
        Duration::from_secs_f64(seconds("used_cpu_user:") + seconds("used_cpu_sys:"))
    }

    /// How many scripts the server has executed.
    async fn calls(&mut self) -> u64 {
        let info = self.info("commandstats").await;
        let count = |line: &str| line.split(',').next()?.parse::<u64>().ok();
        let scripts = ["cmdstat_evalsha:calls=", "cmdstat_eval:calls="];
        let lines = info.lines().flat_map(|line| scripts.map(|script| line.strip_prefix(script)));
        lines.flatten().filter_map(count).sum()
    }
}

fn claim(name: &str, id: &CandidateId) -> Claim {
    Claim::new(Name::new(name).unwrap(), id.clone(), Nonce::random(), TTL)
}

fn claims(id: &CandidateId) -> Vec<Vec<Claim>> {
    let batch =
        |batch| (0..BATCH).map(|i| claim(&format!("bench:{batch:02}:{i:03}"), id)).collect();
    (0..BATCHES).map(batch).collect()
}

/// The CPU time of this process.
#[allow(clippy::disallowed_methods, reason = "no clock that tells the time")]
fn client_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
}

fn each(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6 / (BATCHES * BATCH) as f64
}

/// The median and the maximum.
fn figures(costs: &[Cost], figure: impl Fn(&Cost) -> f64) -> (f64, f64) {
    let mut figures: Vec<f64> = costs.iter().map(figure).collect();
    figures.sort_unstable_by(f64::total_cmp);
    (figures[figures.len() / 2], figures[figures.len() - 1])
}
