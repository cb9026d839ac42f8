//! The example `axum_service` under faults: three instances over one directory and under HTTP load. The leader is killed, stopped
//! and frozen in turn. At most one job runs at any time, another instance leads soon, and SIGTERM is exit code 0.
//!
//! Each instance is this test program again, with the source of the example as a module. An example on disk could be missing or
//! older than the library: `cargo test --test axum_service` builds none.

#![allow(clippy::unwrap_used)] // A test fails at the first surprise.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use rustix::process::Signal;
use tenure_rig::http_peer;
use tenure_rig::system::checker::{Thaw, Workers, judge};
use tenure_rig::system::freezer::freeze_between_changes;
use tenure_rig::system::history::{History, Line};
use tenure_rig::system::processes::MARK;
use tenure_rig::system::time::{now, pause, poll_until};
use tenure_rig::system::trial_directory::{TenureProcess, TrialDirectory};

#[path = "../examples/axum_service.rs"]
#[expect(dead_code, reason = "its main function is for `cargo run --example`")]
mod axum_service;

/// The first argument of a process that is an instance of the service.
const INSTANCE: &str = "--instance";

const INSTANCES: usize = 3;
/// How often each fault hits a leader.
const ROUNDS: usize = 3;
/// How many lines a leader writes before a fault hits it.
const LINES_BEFORE_FAULT: usize = 10;
const TTL_MS: &str = "2000";
const EVERY_MS: &str = "20";
/// Far more than a failover takes, for a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(60);
/// Far more than a process takes to notice that it was frozen.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);
/// The requests of the load, in total.
const MAX_REQUESTS: usize = 20_000;
/// A frozen instance does not answer: the load does not wait for it.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(200);
const PATHS: [&str; 5] = ["/status", "/leader", "/healthz", "/readyz", "/metrics"];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(INSTANCE) {
        return axum_service::run(arguments);
    }
    // The process that kills what is left if this test is killed.
    if let Some(code) = tenure_rig::system::run_role() {
        return code;
    }
    let trial = Trial::test("one_job_runs_while_leaders_are_killed_stopped_and_frozen", || {
        faults_under_load();
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

#[derive(Clone, Copy, Debug)]
enum LeaderFault {
    Kill,
    Terminate,
    Freeze,
}

fn faults_under_load() {
    let mut service = ServiceTrial::new();
    for _ in 0..INSTANCES {
        service.start();
    }
    let load = Load::start(&service.ports);
    let mut thaws = Vec::new();
    for _ in 0..ROUNDS {
        for fault in [LeaderFault::Kill, LeaderFault::Terminate, LeaderFault::Freeze] {
            thaws.extend(service.fail_over(fault));
        }
    }
    let answers = load.stop();

    service.check_final_state();
    service.stop_all();
    let verdict = judge(service.history.lines(), &thaws, Workers::One);
    let terms = ROUNDS * 3 + 1;
    if !verdict.is_clean() || verdict.terms < terms {
        service.room.fail(&format!("expected {terms} terms without overlap: {verdict}"));
    }
    // A process can be frozen between its check and its effect, so one line of each frozen term may be late.
    assert!(verdict.excused <= ROUNDS, "{} late lines", verdict.excused);
    println!("{verdict}; {} late; {answers} requests answered", verdict.excused);
}

/// The instances of the service, and the journal that all of them write.
struct ServiceTrial {
    room: TrialDirectory,
    instances: Vec<TenureProcess>,
    started: usize,
    history: History,
    /// The ports of the running instances, for the load.
    ports: Arc<Mutex<Vec<u16>>>,
}

impl Drop for ServiceTrial {
    fn drop(&mut self) {
        self.room.clear(&mut self.instances);
    }
}

impl ServiceTrial {
    fn new() -> ServiceTrial {
        let room = TrialDirectory::new();
        let history = History::create(&room.path().join("journal"));
        ServiceTrial { room, instances: Vec::new(), started: 0, history, ports: Arc::default() }
    }

    /// Starts one more instance, and returns when it listens.
    fn start(&mut self) {
        self.started += 1;
        let id = format!("instance-{}", self.started);
        let path = |name: &str| self.room.path().join(name).display().to_string();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(INSTANCE).args(["--id", &id, "--port", "0"]);
        command.args(["--store", &format!("file:{}", path("leases"))]);
        command.args(["--journal", &path("journal"), "--every", EVERY_MS, "--ttl", TTL_MS]);
        command.env(MARK, self.room.mark()).env("TMPDIR", self.room.path());
        self.instances.push(self.room.start(&id, command, None));
        let port = self.wait("it listens", |trial| trial.port_of(&id));
        self.ports.lock().unwrap().push(port);
    }

    fn port_of(&self, id: &str) -> Option<u16> {
        let log = std::fs::read_to_string(self.room.log_of(id)).ok()?;
        let address = log.lines().find_map(|line| line.rsplit_once("listens on http://"))?.1;
        address.rsplit_once(':')?.1.parse().ok()
    }

    /// Polls a condition, and fails the trial if it is not met in time.
    fn wait<T>(&mut self, what: &str, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        match poll_until(LIMIT, || found(self)) {
            Some(found) => found,
            None => self.room.fail(&format!("not within {LIMIT:?}: {what}")),
        }
    }

    /// The last line of the journal, and which instance wrote it. It has led for a while.
    fn leader(&mut self) -> (Line, usize) {
        self.wait("an instance leads", |trial| {
            let line = trial.history.newest()?;
            let at = trial.instances.iter().position(|instance| instance.pid() == line.pid)?;
            let lines = trial.history.lines().iter().filter(|other| other.token == line.token);
            (lines.count() >= LINES_BEFORE_FAULT).then_some((line, at))
        })
    }

    /// Lets a fault hit the leader, and waits until another instance leads. Returns the term that was frozen and resumed.
    fn fail_over(&mut self, fault: LeaderFault) -> Option<Thaw> {
        let (line, at) = self.leader();
        let port = self.port_of(&self.instances[at].id).unwrap();
        match fault {
            LeaderFault::Kill => self.instances[at].signal(Signal::KILL),
            LeaderFault::Terminate => self.instances[at].signal(Signal::TERM),
            LeaderFault::Freeze => _ = freeze_between_changes(self.instances[at].pid()),
        }
        let next = self.wait("another instance leads", |trial| {
            trial.history.first_after(line.token).filter(|next| next.pid != line.pid)
        });
        if let LeaderFault::Freeze = fault {
            let thaw = Thaw { token: line.token, from: now(), within: NOTICED_WITHIN };
            self.instances[at].signal(Signal::CONT);
            self.wait("the frozen instance follows and is healthy", |_| {
                let follows = http_peer::status(port)?["isLeader"] == false;
                (follows && code(port, "/healthz") == Some(200)).then_some(())
            });
            return Some(thaw);
        }
        let exit = self.wait("it ends", |trial| trial.instances[at].ended());
        if let LeaderFault::Terminate = fault
            && exit.code() != Some(0)
        {
            self.room.fail(&format!("{fault:?} of {}: {exit}, before {next:?}", line.candidate));
        }
        self.ports.lock().unwrap().retain(|known| *known != port);
        self.instances.remove(at);
        self.start();
        None
    }

    /// All instances run, one of them leads, and its run numbers continue those of the earlier leaders.
    fn check_final_state(&mut self) {
        let ports = self.ports.lock().unwrap().clone();
        assert_eq!(ports.len(), INSTANCES);
        self.wait("all are ready, and one leads", |_| {
            let ready = ports.iter().all(|port| code(*port, "/readyz") == Some(200));
            let leading = ports.iter().filter(|port| code(**port, "/leader") == Some(200));
            (ready && leading.count() == 1).then_some(())
        });
        let (line, at) = self.leader();
        let port = self.port_of(&self.instances[at].id).unwrap();
        self.wait("it has renewed", |_| {
            let metrics = http_peer::get(port, "/metrics")?.body;
            let renewed = !metrics.contains("tenure_renew_seconds_count 0\n");
            (metrics.contains("tenure_is_leader 1\n") && renewed).then_some(())
        });
        let lines = self.history.lines().len();
        let runs = http_peer::status(port).unwrap()["runs"].as_u64().unwrap();
        // The last runs of a term may not have been saved when it ended.
        let unsaved = 3 * (ROUNDS * 3 + 1);
        let runs = usize::try_from(runs).unwrap();
        assert!(runs + unsaved >= lines, "run {runs} after {lines} lines, led by {line:?}");
    }

    /// Sends SIGTERM to all instances: each ends with exit code 0.
    fn stop_all(&mut self) {
        for at in 0..self.instances.len() {
            self.instances[at].signal(Signal::TERM);
            let exit = self.wait("it ends", |trial| trial.instances[at].ended());
            assert_eq!(exit.code(), Some(0), "{}", self.instances[at].id);
        }
        self.room.empties().unwrap();
    }
}

fn code(port: u16, path: &str) -> Option<u16> {
    http_peer::get(port, path).map(|answer| answer.code)
}

/// The whole answer; `None` if it does not come in time.
fn get(port: u16, path: &str) -> Option<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut connection = TcpStream::connect_timeout(&address, REQUEST_TIMEOUT).ok()?;
    connection.set_read_timeout(Some(REQUEST_TIMEOUT)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    // An instance that is killed meanwhile may close the connection without an answer.
    (!answer.is_empty()).then_some(answer)
}

/// Requests to all instances, one after the other, from one thread.
struct Load {
    thread: JoinHandle<usize>,
    done: Arc<AtomicBool>,
}

impl Load {
    fn start(ports: &Arc<Mutex<Vec<u16>>>) -> Load {
        let (ports, done) = (ports.clone(), Arc::<AtomicBool>::default());
        let is_done = done.clone();
        let thread = std::thread::spawn(move || {
            let mut answers = 0;
            for (request, path) in (0..MAX_REQUESTS).zip(PATHS.iter().cycle()) {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                let port = {
                    let ports = ports.lock().unwrap();
                    ports[request % ports.len()]
                };
                // An instance that was killed or frozen does not answer.
                if let Some(answer) = get(port, path) {
                    let expected = ["HTTP/1.1 200 ", "HTTP/1.1 503 "];
                    let is_expected = expected.iter().any(|start| answer.starts_with(start));
                    assert!(is_expected, "{path}: {answer}");
                    answers += 1;
                }
                pause(Duration::from_millis(1));
            }
            answers
        });
        Load { thread, done }
    }

    /// Returns how many requests were answered.
    fn stop(self) -> usize {
        self.done.store(true, Ordering::Relaxed);
        let answers = self.thread.join().expect("every answer is expected");
        assert!(answers > 100, "only {answers} requests were answered");
        answers
    }
}
