//! The cost of one observe on a server with 100,000 names of ended participants: `cargo bench -p tenure --all-features --bench
//! observe`.
//!
//! A server without dead names and servers with them run side by side, and their observes alternate, so that other load of the
//! machine affects all alike. Server time is the time that Redis itself reports for scripts (`INFO commandstats`).

#![allow(clippy::unwrap_used)] // A bench fails like a test.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tenure::store::Scope;
use tenure::{CandidateId, Claim, ClaimedWait, Clock, Name, Nonce, Store};
use tenure_rig::servers::{Scratch, Server};

const KIND: &str = "redis-7";
const DEAD_NAMES: usize = 100_000;
const ROUNDS: usize = 1_000;
const LONG_TTL: Duration = Duration::from_secs(3_600);
/// Long enough to claim all of them before the first has ended, because a claim removes ended presences.
const SHORT_TTL: Duration = Duration::from_secs(15);

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        if tenure_rig::servers::find(KIND, "redis-server").is_none() {
            println!("{}", tenure_rig::servers::install_hint(KIND));
            return;
        }
        run().await;
    });
}

/// A server with its store, and the kind of dead names in it.
struct Case {
    what: &'static str,
    store: Arc<dyn Store>,
    admin: MultiplexedConnection,
    _server: Server,
}

async fn run() {
    let mut cases = Vec::new();
    for what in ["none", "presences that ended", "presences in the index", "leases in the index"] {
        cases.push(Case::start(what).await);
    }
    cases[1].let_presences_end().await;
    cases[2].add_dead_names("tenure:node:job:dead-").await;
    cases[3].add_dead_names("dead:").await;
    let one = Scope::Names(vec![Name::new("job").unwrap()]);
    println!(
        "{ROUNDS} observes each, {DEAD_NAMES} dead names; wall time, and server time of each observe"
    );
    measure(&mut cases, "one name", &one, 1).await;
    let candidates = Scope::Prefix("tenure:node:job:".to_owned());
    measure(&mut cases, "candidates of one name", &candidates, 3).await;
    measure(&mut cases, "candidates of all names", &Scope::Prefix("tenure:node:".to_owned()), 3)
        .await;
    measure(&mut cases, "all names", &Scope::Prefix(String::new()), 4).await;
    measure(&mut cases, "all names, again", &Scope::Prefix(String::new()), 4).await;
}

impl Case {
    /// Starts a server with one lease and three live candidates.
    async fn start(what: &'static str) -> Self {
        let program = tenure_rig::servers::find(KIND, "redis-server").unwrap();
        let port = tenure_rig::servers::free_port();
        let arguments = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""];
        let url = format!("redis://127.0.0.1:{port}");
        let client = redis::Client::open(url.as_str()).unwrap();
        let probe = async || client.get_multiplexed_async_connection().await.is_ok();
        let server = Server::start(Scratch::in_memory(), program, arguments, probe).await.unwrap();
        let store = tenure::open(&format!("{url}?startup_wait=0s")).await.unwrap();
        let admin = client.get_multiplexed_async_connection().await.unwrap();
        let id = CandidateId::generate();
        let lease = Claim::new(Name::new("job").unwrap(), id, Nonce::random(), LONG_TTL);
        let mut claims = vec![lease];
        claims.extend(["a", "b", "c"].map(|id| presence(id, LONG_TTL)));
        acquire(&*store, &claims).await;
        Case { what, store, admin, _server: server }
    }

    /// Claims presences and waits until they have ended and the server has removed their keys.
    async fn let_presences_end(&mut self) {
        let claims: Vec<Claim> =
            (0..DEAD_NAMES).map(|i| presence(&format!("dead-{i}"), SHORT_TTL)).collect();
        acquire(&*self.store, &claims).await;
        Clock::boot().sleep(SHORT_TTL * 2).await;
        let left: usize =
            redis::cmd("ZCARD").arg("tenure:presence").query_async(&mut self.admin).await.unwrap();
        assert_eq!(left, DEAD_NAMES + 3, "claiming took longer than {SHORT_TTL:?}");
    }

    /// Adds names without a record to the index.
    async fn add_dead_names(&mut self, prefix: &str) {
        let script =
            "for i = 1, ARGV[2] do redis.call('ZADD', 'tenure:index', 0, ARGV[1] .. i) end";
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(0).arg(prefix).arg(DEAD_NAMES);
        command.exec_async(&mut self.admin).await.unwrap();
    }

    /// The microseconds of all scripts so far.
    async fn server_time(&mut self) -> u64 {
        let info: String =
            redis::cmd("INFO").arg("commandstats").query_async(&mut self.admin).await.unwrap();
        let scripts = info.lines().filter(|line| line.starts_with("cmdstat_eval"));
        let time = |line: &str| {
            line.split(',').find_map(|field| field.strip_prefix("usec=")?.parse().ok())
        };
        scripts.map(|line| time(line).unwrap_or(0)).sum()
    }
}

fn presence(id: &str, ttl: Duration) -> Claim {
    let id = CandidateId::new(id).unwrap();
    let name = Name::new("job").unwrap().node(&id);
    Claim::new(name, id, Nonce::random(), ttl).with_wait(ClaimedWait::Never)
}

async fn acquire(store: &dyn Store, claims: &[Claim]) {
    let answers = store.acquire(claims).await.unwrap();
    assert!(answers.into_iter().all(|answer| answer.unwrap().is_held()));
}

/// Observes `scope` in all cases in turn.
async fn measure(cases: &mut [Case], what: &str, scope: &Scope, expected: usize) {
    let clock = Clock::boot();
    let mut costs = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for (case, costs) in cases.iter_mut().zip(&mut costs) {
            let server = case.server_time().await;
            let started = clock.now();
            let found = case.store.observe(scope).await.unwrap();
            let wall = clock.now().since(started);
            assert_eq!(found.len(), expected);
            costs.push((wall, case.server_time().await - server));
        }
    }
    for (case, costs) in cases.iter().zip(costs) {
        let mut wall: Vec<_> = costs.iter().map(|cost| cost.0).collect();
        let mut server: Vec<_> = costs.iter().map(|cost| cost.1).collect();
        wall.sort_unstable();
        server.sort_unstable();
        println!(
            "{what:<24} {:<24} wall: first {:.0?}, median {:.0?}, max {:.0?}; server: first {} µs, median {} µs, max {} µs",
            case.what,
            costs[0].0,
            wall[ROUNDS / 2],
            wall[ROUNDS - 1],
            costs[0].1,
            server[ROUNDS / 2],
            server[ROUNDS - 1],
        );
    }
}
