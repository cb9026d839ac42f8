//! `tenure run` with neither a name nor a command: the whole instance, configured by five variables without the `TENURE_`
//! prefix.

use std::process::Command;

use tenure_rig::background_process::BackgroundProcess;
use tenure_rig::command::{CommandResult, Sandbox, eventually};
use tenure_rig::http_peer::{leads, status};

/// `tenure run ARGS` with these variables, on the sandbox's own directory.
fn command(sandbox: &Sandbox, args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = sandbox.command(&["run"]);
    command.env("TENURE_LOCK_DIR", sandbox.path().join("leases"));
    command.env("TENURE_NODE_ID", "worker-1").args(args).envs(variables.iter().copied());
    command
}

fn start(sandbox: &Sandbox, args: &[&str], variables: &[(&str, &str)]) -> BackgroundProcess {
    BackgroundProcess::start(&mut command(sandbox, args, variables), sandbox.path(), "worker-1")
}

#[test]
fn the_environment_configures_an_instance() {
    let sandbox = Sandbox::new();
    let port = tenure_rig::servers::free_port();
    let port = port.to_string();
    let names = [("REDIS_LOCK_KEY", "poll:leader"), ("REDIS_LOCK_TTL", "3000")];
    let names = [&names[..], &[("POLL_INTERVAL", "400"), ("PORT", &port)]].concat();
    let node = start(&sandbox, &[], &names);
    node.says("[worker-1] poll 2");
    assert_eq!(node.port().to_string(), port);
    let log = node.log();
    let first = log.lines().next().unwrap();
    assert!(first.contains(": poll:leader as worker-1 on file:"), "{first}");
    assert!(first.contains(", TTL 3s, ") && first.ends_with(&format!("http 127.0.0.1:{port}")));
    let status = status(node.port()).unwrap();
    assert_eq!((&status["name"], &status["isLeader"]), (&"poll:leader".into(), &true.into()));
    assert_eq!(status["candidateId"], "worker-1");
    assert!(status["lastPolled"].is_string() && status["lastRun"]["by"] == "worker-1");
    assert_eq!(node.end(), Some(0));
}

#[test]
fn a_file_configures_an_instance_and_variables_and_flags_take_precedence() {
    let sandbox = Sandbox::new();
    let file = "# What is elected.\nREDIS_LOCK_KEY=from:file\nREDIS_LOCK_TTL=5000\nPOLL_INTERVAL=300\nPORT=1\n";
    sandbox.put(".env", file);
    let variables = [("REDIS_LOCK_KEY", "from:environment"), ("PORT", "0")];
    let node = start(&sandbox, &["--lease-duration", "2s"], &variables);
    node.says("] poll 3");
    let first = node.log().lines().next().unwrap().to_owned();
    assert!(first.contains(": from:environment as worker-1"), "{first}");
    assert!(first.contains("TTL 2s") && !first.ends_with(":1"), "{first}");
    assert_eq!(node.end(), Some(0));
    let node = start(&sandbox, &["--http", "0", "--every", "1h"], &[]);
    node.says("BECAME LEADER");
    assert!(node.log().lines().next().unwrap().contains(": from:file as worker-1"));
    eventually("it leads", || leads(node.port()));
    assert_eq!(node.end(), Some(0));
}

#[test]
fn an_instance_has_defaults() {
    let sandbox = Sandbox::new();
    let node = start(&sandbox, &["--http", "0"], &[]);
    node.says("[worker-1] poll 1");
    let first = node.log().lines().next().unwrap().to_owned();
    assert!(first.contains(": leader-election-demo as ") && first.contains("TTL 4s"), "{first}");
    node.says("Status: LEADER - Heartbeat at ");
    assert_eq!(node.end(), Some(0));
}

#[test]
fn in_other_modes_the_variables_belong_to_the_command() {
    let sandbox = Sandbox::new();
    sandbox.put(".env", "REDIS_LOCK_TTL=1\n");
    let names = [("REDIS_URL", "redis://127.0.0.1:1"), ("PORT", "x"), ("POLL_INTERVAL", "x")];
    let ran = command(&sandbox, &["job", "--", "env"], &names).output().unwrap();
    let ran = CommandResult::new(ran);
    ran.exits(0).says("REDIS_URL=redis://127.0.0.1:1\n").says("PORT=x\n").says("POLL_INTERVAL=x\n");
    ran.complains("TTL 4s");
    assert!(!ran.stdout.contains("REDIS_LOCK_TTL") && !ran.stderr.contains("http "));
}

#[test]
fn invalid_variables_are_125_with_their_origin() {
    let sandbox = Sandbox::new();
    for (name, value, says) in [
        ("REDIS_LOCK_TTL", "4s", "REDIS_LOCK_TTL: '4s' is not a number of milliseconds"),
        ("REDIS_LOCK_TTL", "0", "REDIS_LOCK_TTL must not be zero"),
        ("POLL_INTERVAL", "-1", "POLL_INTERVAL: '-1' is not a number of milliseconds"),
        ("PORT", "70000", "PORT: '70000' is not a port"),
        ("REDIS_LOCK_KEY", "a b", "REDIS_LOCK_KEY: "),
        ("REDIS_URL", "radish://a", "radish"),
    ] {
        let mut command = command(&sandbox, &["--http", "0"], &[(name, value)]);
        if name == "REDIS_URL" {
            command.env_remove("TENURE_LOCK_DIR");
        }
        CommandResult::new(command.output().unwrap()).exits(125).complains(says);
    }
    sandbox.put(".env", "\nREDIS_LOCK_TTL=long\n");
    let ran = CommandResult::new(command(&sandbox, &[], &[]).output().unwrap());
    ran.exits(125).complains(".env line 2");
}
