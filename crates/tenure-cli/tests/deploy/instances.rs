//! Three processes with exactly the environment of compose.yaml, on one Redis: one leads, and when its whole process tree
//! is killed another leads and polls within five seconds.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use jiff::Timestamp;
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::Value;
use tenure::{Clock, Moment};

use crate::compose::Compose;
use crate::{text, trial};
use tenure_rig::background_process::BackgroundProcess;
use tenure_rig::command::{Sandbox, eventually};
use tenure_rig::http_peer;
use tenure_rig::servers::{self, Scratch, Server, free_port};
use tenure_rig::system::processes;
use tenure_rig::system::time::{now, pause, runtime};

const SERVER: &str = "redis-7";
/// The number of kills. `TENURE_KILLS=20` kills more often, and prints how long each failover took.
const KILLS: usize = 3;
/// The promised failover time, and the time that it takes to observe it.
const MAX_FAILOVER_TIME: Duration = Duration::from_secs(5);
const OBSERVATION_TIME: Duration = Duration::from_millis(250);

pub(crate) fn trials() -> Vec<Trial> {
    let missing = match servers::find(SERVER, "redis-server") {
        _ if !cfg!(feature = "redis") => Some("built without redis".to_owned()),
        None if !required() => Some(servers::install_hint(SERVER)),
        _ => None,
    };
    vec![trial(
        "compose::three_instances_one_polls_and_is_replaced",
        missing,
        killed_leader_is_replaced,
    )]
}

fn required() -> bool {
    let required = std::env::var("TENURE_REQUIRE_STORES").unwrap_or_default();
    required.split([',', ' ']).any(|word| word == "all" || word == SERVER)
}

/// A Redis server configured as in compose.yaml: durable and without eviction.
fn redis(port: u16) -> Server {
    let port_text = port.to_string();
    let words = "--bind 127.0.0.1 --dir . --appendonly yes --appendfsync always \
                 --no-appendfsync-on-rewrite no";
    let arguments = ["--port", &port_text, "--maxmemory-policy", "noeviction"];
    let arguments = arguments.into_iter().chain(words.split(' '));
    let program = servers::find(SERVER, "redis-server").expect("scripts/servers redis-7 gets it");
    let answers = async || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
    runtime()
        .block_on(Server::start(Scratch::in_memory(), program, arguments, answers))
        .expect("a Redis of our own")
}

/// One service of the compose file, as a process.
struct Worker {
    name: String,
    environment: BTreeMap<String, String>,
    node: Option<BackgroundProcess>,
}

impl Worker {
    /// A worker with the environment of its service, except for what only containers have: a host called redis, and a port of
    /// its own.
    fn new(compose: &Compose, name: &str, redis: u16) -> Worker {
        let mut environment = compose.whole_environment(name);
        let url = environment["REDIS_URL"].replace("redis:6379", &format!("127.0.0.1:{redis}"));
        assert!(url.contains("127.0.0.1"), "{url}");
        environment.insert("REDIS_URL".to_owned(), url);
        Worker { name: name.to_owned(), environment, node: None }
    }

    /// Runs `tenure run`, as the image does, with only the environment of the service.
    fn start(&mut self, sandbox: &Sandbox) {
        // Another program may use the port, also since the worker was killed.
        let port: u16 = self.environment["PORT"].parse().unwrap();
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_err() {
            self.environment.insert("PORT".to_owned(), free_port().to_string());
        }
        let mut command = sandbox.command(&["run"]);
        command.env_clear().env("TMPDIR", sandbox.path()).env("HOME", sandbox.path());
        command.envs(&self.environment);
        self.node = Some(BackgroundProcess::start(&mut command, sandbox.path(), &self.name));
    }

    fn status(&self) -> Option<Value> {
        let status = http_peer::status(self.environment["PORT"].parse().unwrap());
        // While the worker is dead, another program may answer on its port.
        status
            .filter(|status| status["candidateId"] == *self.name && status["name"] == "poll:leader")
    }

    fn leads(&self) -> bool {
        self.status().is_some_and(|status| status["isLeader"] == true)
    }

    /// Kills the descendants first, so that no guard is left to release the lease.
    fn kill_tree(&mut self) {
        let mut node = self.node.take().unwrap();
        for pid in processes::below(node.pid()) {
            processes::signal(pid, Signal::KILL);
        }
        node.kill();
    }
}

fn killed_leader_is_replaced() {
    let (sandbox, port) = (Sandbox::new(), free_port());
    let _redis = redis(port);
    let compose = Compose::read();
    let names = ["worker-1", "worker-2", "worker-3"];
    let mut workers = names.map(|name| Worker::new(&compose, name, port));
    workers.iter_mut().for_each(|worker| worker.start(&sandbox));
    eventually("each answers", || workers.iter().all(|worker| worker.status().is_some()));
    assert!(workers.iter().all(|worker| is_healthy(&worker.environment["PORT"])), "also followers");
    assert!(!is_healthy(&free_port().to_string()));
    let mut count = 0;
    let requested = std::env::var("TENURE_KILLS").ok();
    let kills = requested.as_deref().map_or(KILLS, |kills| kills.parse().unwrap());
    for kill in 1..=kills {
        eventually("each answers, and one leads", || {
            workers.iter().all(|worker| worker.status().is_some()) && leaders(&workers).len() == 1
        });
        eventually("it has polled", || {
            leaders(&workers).first().is_some_and(|leader| leader["lastPolled"].is_string())
        });
        count = assert_count_continues(&workers, count);
        let leader = workers.iter().position(Worker::leads).unwrap();
        assert_eq!(workers[leader].status().unwrap()["name"], "poll:leader");
        let (killed, at) = (now(), wall_ms());
        workers[leader].kill_tree();
        let (led, polled) = until_polled(&workers, at, killed);
        if requested.is_some() {
            println!(
                "{kill}: killed {}, another led after {led:?}, polled after {polled:?}",
                names[leader]
            );
        }
        assert!(led <= MAX_FAILOVER_TIME, "another led after {led:?}");
        assert!(polled <= MAX_FAILOVER_TIME + OBSERVATION_TIME, "another polled after {polled:?}");
        workers[leader].start(&sandbox);
    }
    assert_count_continues(&workers, count);
    // A worker that answers catches signals; a worker that has just started may not yet.
    eventually("each answers", || workers.iter().all(|worker| worker.status().is_some()));
    for worker in &mut workers {
        assert_eq!(worker.node.take().unwrap().end(), Some(0));
    }
    // A guard ends after it has noticed the end of its leader.
    eventually("no process is left", || sandbox.processes().is_empty());
}

/// The result of the image's health check for this port.
fn is_healthy(port: &str) -> bool {
    let dockerfile = text("Dockerfile").replace("\\\n", " ");
    let mut lines = dockerfile.lines().filter(|line| line.starts_with("HEALTHCHECK "));
    let (_, command) = lines.next().unwrap().split_once("CMD ").unwrap();
    let command: Vec<String> = serde_json::from_str(command).unwrap();
    let mut check = std::process::Command::new(&command[0]);
    check.args(&command[1..]).env("PORT", port).stderr(std::process::Stdio::null());
    check.status().unwrap().success()
}

/// The status of each worker that reports that it leads.
fn leaders(workers: &[Worker]) -> Vec<Value> {
    let all = workers.iter().filter_map(Worker::status);
    all.filter(|status| status["isLeader"] == true).collect()
}

/// The leader's count, which continues where it stopped.
fn assert_count_continues(workers: &[Worker], before: u64) -> u64 {
    let leaders = leaders(workers);
    assert_eq!(leaders.len(), 1, "{leaders:?}");
    let count = leaders[0]["count"].as_u64().unwrap();
    assert!(count > before, "{count} after {before}");
    count
}

/// The time until another worker leads, and until it has polled.
fn until_polled(workers: &[Worker], wall: i64, since: Moment) -> (Duration, Duration) {
    let mut led = None;
    loop {
        let leaders = leaders(workers);
        assert!(leaders.len() <= 1, "two lead: {leaders:?}");
        let took = now().since(since);
        if let Some(leader) = leaders.first() {
            let led = *led.get_or_insert(took);
            let polled = leader["lastPolled"].as_str().map(|at| at.parse::<Timestamp>().unwrap());
            if polled.is_some_and(|at| at.as_millisecond() >= wall) {
                return (led, took);
            }
        }
        assert!(took < MAX_FAILOVER_TIME * 3, "nobody polls");
        pause(Duration::from_millis(20));
    }
}

fn wall_ms() -> i64 {
    i64::try_from(Clock::boot().minting_micros() / 1_000).unwrap()
}
