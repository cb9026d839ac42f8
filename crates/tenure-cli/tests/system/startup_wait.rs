//! A Redis server that started a moment ago. If it is durable, the first candidate leads at once. If it is not, the first
//! candidate holds the lease for one TTL without leading, and no reader names a leader meanwhile (I15).

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;
use tenure::Moment;

use crate::trial;
use tenure_rig::servers::{self, Scratch, Server, free_port};
use tenure_rig::system::time::{now, poll_until, runtime};
use tenure_rig::system::trial_directory::{TenureProcess, TrialDirectory};
use tenure_rig::system::trial_store::{SERVER, StoreKind, answers};

const TTL: Duration = Duration::from_secs(4);
/// Long enough for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn trials() -> Vec<Trial> {
    let named = |name: &str| format!("startup_wait::{name}");
    vec![
        trial(named("no_reader_names_a_leader::redis"), StoreKind::Redis, no_reader_names_a_leader),
        trial(named("no_fleet_reader_names_an_owner::redis"), StoreKind::Redis, no_owner_is_named),
        trial(
            named("durable_server_lets_the_first_lead_at_once::redis"),
            StoreKind::Redis,
            durable,
        ),
    ]
}

/// A server that has just been started.
struct Fresh {
    server: Server,
    port: u16,
    started: Moment,
}

impl Fresh {
    fn start(persistence: &str) -> Fresh {
        let port = free_port();
        let text = port.to_string();
        let words = format!("--bind 127.0.0.1 --dir . --port {text} {persistence}");
        let words = words.split(' ').chain(["--save", ""]).map(str::to_owned);
        let program = servers::find(SERVER, "redis-server").unwrap();
        let started = now();
        let server = Server::start(Scratch::in_memory(), program, words, async || answers(port));
        Fresh { server: runtime().block_on(server).unwrap(), port, started }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn stop(self) {
        runtime().block_on(self.server.stop()).unwrap();
    }
}

const VOLATILE: &str = "--appendonly no";
const DURABLE: &str = "--appendonly yes --appendfsync always --no-appendfsync-on-rewrite no";

/// A room with candidates on one server.
struct Scene {
    room: TrialDirectory,
    fresh: Fresh,
    actors: Vec<TenureProcess>,
}

impl Scene {
    fn new(persistence: &str) -> Scene {
        let room = TrialDirectory::new();
        Scene { room, fresh: Fresh::start(persistence), actors: Vec::new() }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.room.command();
        command.args(words).env("TENURE_STORE", self.fresh.url());
        command
    }

    fn start(&mut self, id: &str, words: &[&str]) {
        let mut command = self.command(words);
        command.env("TENURE_NODE_ID", id);
        self.actors.push(self.room.start(id, command, None));
    }

    fn log(&self, id: &str) -> String {
        std::fs::read_to_string(self.room.log_of(id)).unwrap_or_default()
    }

    fn wait_for(&self, id: &str, text: &str) -> Moment {
        let found = poll_until(PATIENCE, || self.log(id).contains(text).then(now));
        found.unwrap_or_else(|| panic!("{id} never said {text:?}:\n{}", self.log(id)))
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).stdin(Stdio::null()).output().unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.run(words);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{words:?}: {error}: {}", String::from_utf8_lossy(&output.stderr))
        })
    }

    /// The body of `/status` of a candidate.
    fn status(&self, id: &str) -> Value {
        self.room.status_of(id).expect("it answers over HTTP")
    }

    fn finish(mut self) {
        for actor in &mut self.actors {
            actor.signal(rustix::process::Signal::TERM);
        }
        let empty = poll_until(PATIENCE, || self.room.empties().is_ok().then_some(()));
        assert!(empty.is_some(), "{:?}", self.room.empties());
        self.room.clear(&mut self.actors);
        self.fresh.stop();
    }
}

fn no_reader_names_a_leader() {
    let mut scene = Scene::new(VOLATILE);
    let work = "run job --lease-duration 4s --http 127.0.0.1:0 --heartbeat 500ms -- sleep 600";
    let work: Vec<&str> = work.split(' ').collect();
    scene.start("q1", &work);
    scene.wait_for("q1", "Has the lease, starts in");
    scene.start("q2", &work);
    scene.start("watch", &["watch", "job", "--json"]);
    scene.wait_for("q2", "http 127.0.0.1");

    // All reads before q1 reports that it leads.
    let mut reads = 0;
    loop {
        let lease = scene.json(&["status", "job", "--json"]);
        let text = scene.run(&["status", "job"]);
        let doctor = scene.json(&["doctor", "job", "--json"]);
        let (first, second) = (scene.status("q1"), scene.status("q2"));
        let rows = scene.json(&["status", "--json"]);
        if scene.log("q1").contains("BECAME LEADER") {
            break;
        }
        reads += 1;
        assert_eq!((&lease["currentLeader"], &lease["state"]), (&Value::Null, &"starting".into()));
        assert!(lease["startsInMs"].as_u64().unwrap() <= 5_000, "{lease}");
        assert_eq!(lease["startReason"], "restarted");
        assert_eq!(lease["candidates"].as_array().unwrap().len(), 2, "{lease}");
        assert!(!lease["candidates"].to_string().contains("leading"), "{lease}");
        assert_eq!(rows[0]["currentLeader"], Value::Null);
        let printed = String::from_utf8_lossy(&text.stdout);
        assert_eq!(text.status.code(), Some(1), "{printed}");
        assert!(
            printed.contains("Nobody leads 'job'. q1 has the lease and starts in "),
            "{printed}"
        );
        assert_eq!(doctor["lease"]["currentLeader"], Value::Null, "{doctor}");
        for (status, state) in [(&first, "starting"), (&second, "waiting")] {
            assert_eq!(status["isLeader"], false, "{status}");
            assert_eq!((&status["currentLeader"], &status["state"]), (&Value::Null, &state.into()));
        }
        assert!(first["startsInMs"].as_u64().unwrap() <= 5_000, "{first}");
    }
    assert!(reads > 0, "the wait was over before anything was read");
    let led = scene.wait_for("q1", "BECAME LEADER");
    println!("{reads} reads; the first leader after {:?}", led.since(scene.fresh.started));
    assert!(led.since(scene.fresh.started) >= TTL, "sooner than one TTL after the server's start");
    scene.wait_for("q2", "FOLLOWER - q1 leads");
    scene.wait_for("q1", "Status: STARTING - has the lease, starts in");

    // The watcher received the leader only when it led.
    scene.wait_for("watch", "became");
    let watched = scene.log("watch");
    let events: Vec<Value> =
        watched.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let first_named = events.iter().position(|event| event["to"] == "q1").expect("it leads");
    assert_eq!(events[first_named]["event"], "became", "{watched}");
    assert!(events[..first_named].iter().all(|event| event["to"].is_null()), "{watched}");
    assert!(events[..first_named].iter().any(|event| event["holder"] == "q1"), "{watched}");
    scene.finish();
}

fn no_owner_is_named() {
    let mut scene = Scene::new(VOLATILE);
    let work = "fleet run poll --lease-duration 4s --shards a,b,c --mock --every 1s";
    scene.start("m1", &work.split(' ').collect::<Vec<_>>());
    scene.wait_for("m1", "starting in");
    let mut reads = 0;
    loop {
        let status = scene.json(&["fleet", "status", "poll", "--json"]);
        let who = scene.json(&["fleet", "who", "poll", "a", "--json"]);
        if scene.log("m1").contains("Lease acquired") {
            break;
        }
        reads += 1;
        assert!(!status["shards"].to_string().contains("m1"), "{status}");
        assert_eq!(who["owner"], Value::Null, "{who}");
    }
    assert!(reads > 0, "the wait was over before anything was read");
    let owned = scene.wait_for("m1", "Lease acquired");
    assert!(owned.since(scene.fresh.started) >= TTL, "sooner than one TTL after the start");
    scene.finish();
}

fn durable() {
    for work in
        [&["run", "job", "--mock"][..], &["fleet", "run", "poll", "--shards", "a,b", "--mock"][..]]
    {
        let mut scene = Scene::new(DURABLE);
        let begun = now();
        scene.start("q1", work);
        let says = if work[0] == "run" { "BECAME LEADER" } else { "Lease acquired" };
        let led = scene.wait_for("q1", says);
        println!("{}: the first leader {:?} after it was started", work[0], led.since(begun));
        let log = scene.log("q1");
        assert!(!log.contains("starts in") && !log.contains("starting in"), "{log}");
        scene.finish();
    }
}
