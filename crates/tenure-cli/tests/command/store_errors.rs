//! A store that answers with an error: exit code 123 at start-up and with `--wait`, later a reason to wait.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use rustix::process::Signal;

use tenure_rig::background_process::BackgroundProcess;
use tenure_rig::command::{CommandResult, Sandbox, eventually};

const REASON: &str = "is not a lease of Tenure";

/// Runs `tenure ARGS` with a store in this sandbox.
fn command(sandbox: &Sandbox, args: &[&str]) -> std::process::Command {
    let mut command = sandbox.command(args);
    command.env("TENURE_LOCK_DIR", sandbox.path().join("store"));
    command.env("TENURE_LEASE_DURATION", "1500ms");
    command
}

/// Changes the first byte of every record from `from` to `to`.
fn set_first_bytes(sandbox: &Sandbox, from: u8, to: u8) {
    for entry in fs::read_dir(sandbox.path().join("store/leases")).unwrap().flatten() {
        // Skip a record that was removed meanwhile.
        let Ok(file) = OpenOptions::new().read(true).write(true).open(entry.path()) else {
            continue;
        };
        let mut byte = [0];
        if file.read_exact_at(&mut byte, 0).is_ok() && byte == [from] {
            file.write_all_at(&[to], 0).unwrap();
        }
    }
}

fn damage(sandbox: &Sandbox) {
    set_first_bytes(sandbox, b'{', b'#');
}

fn repair(sandbox: &Sandbox) {
    set_first_bytes(sandbox, b'#', b'{');
}

/// Damages every record until `node` logs the reason and that it has `lost` its lease, repairs them, and waits until `node` has
/// logged `started` once more; SIGTERM then ends it with `code`.
fn assert_recovers(
    sandbox: &Sandbox,
    mut node: BackgroundProcess,
    [started, lost]: [&str; 2],
    code: i32,
) {
    node.says(started);
    eventually("it says what is wrong", || {
        damage(sandbox);
        node.log().contains(REASON) && node.log().contains(lost)
    });
    eventually("it begins again", || {
        repair(sandbox);
        node.log().matches(started).count() > 1
    });
    assert!(!node.log().contains("store unreachable"), "{}", node.log());
    node.signal(Signal::TERM);
    assert_eq!(node.code(), Some(code), "{}", node.log());
}

#[test]
fn a_leader_stops_its_work_reports_the_error_and_leads_again() {
    let sandbox = Sandbox::new();
    let args = ["run", "job", "--node-id", "a", "--", "sleep", "600"];
    let node = BackgroundProcess::start(&mut command(&sandbox, &args), sandbox.path(), "a");
    assert_recovers(
        &sandbox,
        node,
        ["BECAME LEADER", "[a] Lost leadership: "],
        128 + Signal::TERM.as_raw(),
    );
}

#[test]
fn serve_keeps_answering_and_leads_again() {
    let sandbox = Sandbox::new();
    let args = ["serve", "job", "--node-id", "a", "--http", "0"];
    let node = BackgroundProcess::start(&mut command(&sandbox, &args), sandbox.path(), "a");
    assert_recovers(&sandbox, node, ["BECAME LEADER", "[a] Lost leadership: "], 0);
}

#[test]
fn a_member_of_a_fleet_joins_again() {
    let sandbox = Sandbox::new();
    let args = ["fleet", "run", "poll", "--node-id", "a", "--shards", "x,y", "--mock"];
    let node = BackgroundProcess::start(&mut command(&sandbox, &args), sandbox.path(), "a");
    assert_recovers(&sandbox, node, ["Joined the fleet", "Left the fleet"], 0);
}

#[test]
fn a_store_error_at_start_up_is_123() {
    let sandbox = Sandbox::new();
    CommandResult::new(command(&sandbox, &["run", "job", "--", "true"]).output().unwrap()).exits(0);
    damage(&sandbox);
    for args in [
        &["run", "job", "--", "true"][..],
        &["run", "job", "--once", "--", "true"],
        &["run", "job", "--wait", "0s", "--", "true"],
        &["serve", "job", "--http", "0"],
    ] {
        let ran = CommandResult::new(command(&sandbox, args).output().unwrap());
        ran.exits(123).complains(REASON);
    }
}

#[test]
fn a_waiter_exits_123_when_wait_times_out() {
    let sandbox = Sandbox::new();
    let args = ["run", "job", "--node-id", "a", "--", "sleep", "600"];
    let leader = BackgroundProcess::start(&mut command(&sandbox, &args), sandbox.path(), "a");
    leader.says("BECAME LEADER");
    let args = ["run", "job", "--node-id", "b", "--wait", "6s", "--", "true"];
    let mut waiter = BackgroundProcess::start(&mut command(&sandbox, &args), sandbox.path(), "b");
    waiter.says("FOLLOWER - a leads");
    damage(&sandbox);
    assert_eq!(waiter.code(), Some(123), "{}", waiter.log());
    waiter.says("gave up after --wait 6s: ");
    waiter.says(REASON);
}
