//! The guard process, with the test as its leader: what it does when the connection closes while the leader lives or is dead.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use serde_json::{Value, json};
use tenure::{CandidateId, Claim, Clock, Hold, Name, Nonce, StoreExt as _};

use crate::local_candidates::{Fixture, NAME};
use tenure_rig::command::{CommandResult, eventually, pause};
use tenure_rig::slow_calls::{SlowCalls, children};

/// Long, so that no lease expires during a test.
const TTL: Duration = Duration::from_secs(60);

/// A lease, and a guard of `sleep` that knows it. Dropping the socket closes the connection.
fn guarded(fixture: &Fixture) -> (Hold, Child, OwnedFd) {
    let (line, guard_end) = line();
    let hold = send_setup(fixture, &line, std::process::id(), TTL);
    (hold, guard(fixture, guard_end), line)
}

/// The two ends of the connection: the leader's and the guard's.
fn line() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn guard(fixture: &Fixture, line: OwnedFd) -> Child {
    let mut command: Command = fixture.sandbox.command(&["guard", "sleep", "60"]);
    command.stdin(Stdio::from(line)).stderr(Stdio::piped()).spawn().unwrap()
}

/// Acquires a lease and sends it to the guard, with the leader's process id and the deadline.
fn send_setup(fixture: &Fixture, line: &OwnedFd, leader: u32, valid_for: Duration) -> Hold {
    let id = CandidateId::new("a").unwrap();
    let claim = Claim::new(Name::new(NAME).unwrap(), id, Nonce::random(), TTL);
    let granted = fixture.runtime.block_on(fixture.store.acquire_one(&claim));
    let hold = granted.unwrap().held().unwrap().hold;
    let setup = json!({
        "store": fixture.store.url(), "name": NAME, "candidate": "a",
        "nonce": hold.nonce.to_string(), "token": hold.token.get(),
        "deadline": (Clock::boot().now() + valid_for).as_nanos(), "stop_within_ms": 1000,
        "on_lose": null, "leader": leader, "log": { "json": false, "only_errors": false },
    });
    send(line, &setup);
    hold
}

fn send(line: &OwnedFd, message: &Value) {
    let message = serde_json::to_vec(message).unwrap();
    let sent = rustix::net::send(line, &message, SendFlags::empty()).unwrap();
    assert_eq!(sent, message.len());
}

/// The id of a process that has ended.
fn ended_process() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

fn holder(fixture: &Fixture) -> Option<Nonce> {
    let name = Name::new(NAME).unwrap();
    let lease = fixture.runtime.block_on(fixture.store.observe_one(&name)).unwrap().unwrap();
    lease.holder.and_then(|holder| holder.nonce)
}

#[test]
fn a_closed_connection_with_a_living_leader_kills_the_command_and_releases_nothing() {
    let fixture = Fixture::new();
    let (hold, mut guard, line) = guarded(&fixture);
    // The guard and the command.
    eventually("the command runs", || fixture.sandbox.processes().len() == 2);
    drop(line);
    assert!(guard.wait().unwrap().success());
    assert!(fixture.sandbox.processes().is_empty(), "the command is gone before its guard");
    assert_eq!(holder(&fixture), Some(hold.nonce), "still ours: the leader lives");
}

#[test]
fn a_guard_that_starts_after_its_leader_ended_normally_logs_nothing() {
    let fixture = Fixture::new();
    let (line, guard_end) = line();
    let hold = send_setup(&fixture, &line, ended_process(), TTL);
    send(&line, &json!("Dismissed"));
    drop(line);
    let ended = CommandResult::new(guard(&fixture, guard_end).wait_with_output().unwrap());
    assert_eq!(ended.exits(0).stderr, "");
    assert!(fixture.sandbox.processes().is_empty(), "the command was not started");
    assert_eq!(holder(&fixture), Some(hold.nonce), "the leader has released what it had to");
}

#[test]
fn a_guard_that_starts_after_its_leader_died_releases_the_lease() {
    let fixture = Fixture::new();
    let (line, guard_end) = line();
    send_setup(&fixture, &line, ended_process(), TTL);
    drop(line);
    let ended = CommandResult::new(guard(&fixture, guard_end).wait_with_output().unwrap());
    ended.exits(0).complains("[a] the leader's process died: released the lease");
    assert!(fixture.sandbox.processes().is_empty(), "the command was not started");
    assert_eq!(holder(&fixture), None);
}

#[test]
fn a_start_that_hangs_does_not_delay_the_kill_at_the_deadline() {
    if let Some(missing) = SlowCalls::missing() {
        return eprintln!("not tried: it {missing}");
    }
    let fixture = Fixture::new();
    let (line, guard_end) = line();
    let mut guard = guard(&fixture, guard_end);
    let slow = SlowCalls::start(guard.id(), "execve");
    eventually("it is traced", || slow.is_attached());
    send_setup(&fixture, &line, std::process::id(), Duration::from_secs(4));
    eventually("the start hangs", || children(guard.id()).len() == 1);
    // Past the deadline, and long before the exec would be done. The child that the guard killed meanwhile dies when it is no
    // longer traced, and runs nothing.
    pause(Duration::from_secs(8));
    drop(slow);
    let mut report = [0; 200];
    let (read, _) = rustix::net::recv(&line, &mut report, RecvFlags::empty()).unwrap();
    let report = String::from_utf8_lossy(&report[..read]);
    assert_eq!(report, r#"{"Failed":"the command was not started in time"}"#);
    send(&line, &json!("Dismissed"));
    assert!(guard.wait().unwrap().success());
}

const FAIR: u32 = 0;
const REAL_TIME: u32 = 2;

/// The scheduling class and the niceness of the first of `processes`.
fn class(processes: Vec<PathBuf>) -> Option<(u32, i32)> {
    class_in(&processes.first()?.join("stat"))
}

/// The scheduling class and the niceness in a `stat` file of `/proc`.
fn class_in(stat: &Path) -> Option<(u32, i32)> {
    let stat = std::fs::read_to_string(stat).ok()?;
    let words: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    // Fields are counted from the state, which is field 3.
    Some((words.get(41 - 3)?.parse().ok()?, words.get(19 - 3)?.parse().ok()?))
}

/// Whether this process, and so the guards it starts, may use the real-time class by privilege.
fn privileged() -> bool {
    const CAP_SYS_NICE: u32 = 23;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap() & (1 << CAP_SYS_NICE) != 0
}

#[test]
fn a_guard_has_real_time_priority_and_its_command_and_hook_do_not() {
    let fixture = Fixture::new();
    let stat_file = fixture.sandbox.path().join("told");
    // Only shell built-ins: a hook has two seconds, and on a busy machine each process start takes time.
    let hook = format!("read -r stat </proc/self/stat; echo \"$stat\" >{}", stat_file.display());
    let url = fixture.store.url();
    let tenure = fixture.sandbox.command(&[
        "--store",
        &url,
        "run",
        NAME,
        "--on-lose",
        &hook,
        "--",
        "sleep",
        "600",
    ]);
    let mut nice = Command::new("nice");
    nice.args(["-n", "5"]).arg(tenure.get_program()).args(tenure.get_args());
    for (name, value) in tenure.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    let mut leader = nice.current_dir(fixture.sandbox.path()).stdin(Stdio::null()).spawn().unwrap();
    let classes = || {
        Some((
            class(fixture.sandbox.running(&["guard"]))?,
            class(fixture.sandbox.running(&["600"]))?,
        ))
    };
    eventually("the command runs", || classes().is_some());
    let (guard, command) = classes().unwrap();
    // Added to the niceness that this test was started with.
    let own = class_in(Path::new("/proc/self/stat")).unwrap().1;
    let nice = (own + 5).min(19);
    let fair = (FAIR, nice);
    assert_eq!(command, fair);
    assert!(guard == (REAL_TIME, nice) || guard == fair && !privileged(), "{guard:?}");
    leader.kill().unwrap();
    leader.wait().unwrap();
    eventually("the hook was run", || class_in(&stat_file) == Some(fair));
    eventually("the guard ends", || fixture.sandbox.processes().is_empty());
}
