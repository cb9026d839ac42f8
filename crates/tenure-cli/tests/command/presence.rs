//! Presence: the state, reason and priority of candidates, in every command that shows them.

use std::process::Command;

use serde_json::{Value, json};

use crate::local_candidates::{Fixture, NAME};
use tenure_rig::background_process::BackgroundProcess;
use tenure_rig::command::{eventually, status};

fn command(fixture: &Fixture, verb: &str, id: &str, args: &[&str]) -> Command {
    let mut command =
        fixture.sandbox.command(&[verb, NAME, "--node-id", id, "--lease-duration", "3s"]);
    command.env("TENURE_LOCK_DIR", fixture.directory()).args(args);
    command
}

/// A candidate that needs no command.
fn start(fixture: &Fixture, id: &str, args: &[&str]) -> BackgroundProcess {
    let mut all = vec!["--mock", "--every", "1h"];
    all.extend(args);
    BackgroundProcess::start(&mut command(fixture, "run", id, &all), fixture.sandbox.path(), id)
}

fn lease(fixture: &Fixture) -> Value {
    fixture.run(&["status", NAME, "--json"]).json()
}

/// The candidate `id` as `status NAME --json` shows it.
fn candidate(fixture: &Fixture, id: &str) -> Value {
    let lease = lease(fixture);
    let mut candidates = lease["candidates"].as_array().unwrap().iter();
    candidates.find(|one| one["candidateId"] == id).cloned().unwrap_or_default()
}

#[track_caller]
fn wait_for_state(fixture: &Fixture, id: &str, state: &str) {
    eventually(&format!("{id} is {state}"), || candidate(fixture, id)["state"] == state);
}

#[test]
fn drained_candidates_are_shown_by_every_command() {
    let fixture = Fixture::new();
    let first = start(&fixture, "web-1", &["--priority", "7", "--heartbeat", "100ms"]);
    wait_for_state(&fixture, "web-1", "leading");
    let second = start(&fixture, "web-2", &["--http", "0"]);
    wait_for_state(&fixture, "web-2", "waiting");
    assert_eq!(candidate(&fixture, "web-1")["priority"], 7);
    for id in ["web-2", "web-1"] {
        fixture.run(&["drain", NAME, id]).exits(0);
        wait_for_state(&fixture, id, "drained");
    }
    first.says("Status: FOLLOWER - nobody leads; drained");
    fixture.run(&["status"]).exits(0).says("2 (2 drained)");
    fixture.run(&["status", NAME]).exits(1).says("web-1      drained").says("PRIORITY");
    let doctor = fixture.run(&["doctor", NAME]);
    let answer = "- 2 candidates are running, both drained: tenure undrain billing:nightly web-1";
    assert!(doctor.exits(1).stdout.starts_with(answer), "{}", doctor.stdout);
    let doctor = fixture.run(&["doctor", NAME, "--json"]).exits(1).json();
    assert_eq!(doctor["lease"]["candidates"][0]["state"], "drained", "{doctor}");
    let port = second.port();
    eventually("HTTP shows both as drained", || {
        let status = status(port).unwrap_or_default();
        status["state"] == "drained"
            && status["candidates"].as_array().is_some_and(|all| {
                all.len() == 2 && all.iter().all(|one| one["state"] == "drained")
            })
    });
    fixture.run(&["undrain", NAME, "web-2"]).exits(0);
    wait_for_state(&fixture, "web-2", "leading");
}

#[test]
fn a_health_check_that_fails_from_the_start_is_logged_once_and_shown() {
    let fixture = Fixture::new();
    let args = ["--health", "no-such-command-here", "--health-every", "1s", "--http", "0"];
    let node = start(&fixture, "h1", &args);
    node.says("warning: health check failed: exit 127: ");
    wait_for_state(&fixture, "h1", "unhealthy");
    let reason = candidate(&fixture, "h1")["reason"].as_str().unwrap().to_owned();
    assert!(
        reason.starts_with("exit 127: ") && reason.contains("no-such-command-here"),
        "{reason}"
    );
    let doctor = fixture.run(&["doctor", NAME]);
    let answer = "- Nobody has led 'billing:nightly' on this store yet.\n- Candidate h1 is running; its health check fails \
                  (exit 127: ";
    assert!(doctor.exits(1).stdout.starts_with(answer), "{}", doctor.stdout);
    // The lease has candidates, but never had a leader.
    fixture.run(&["status"]).exits(0).says("1 (1 unhealthy)");
    fixture.run(&["status", "other*"]).exits(0).says("No such lease");
    let status = status(node.port()).unwrap();
    assert_eq!((&status["state"], &status["stateReason"]), (&json!("unhealthy"), &json!(reason)));
    let log = node.log();
    assert_eq!(log.matches("health check failed").count(), 1, "{log}");
    drop(node);
}

#[test]
fn a_duplicate_id_is_reported_when_a_second_candidate_lives_and_not_after_a_crash() {
    let fixture = Fixture::new();
    let serve = |log: &str| {
        let mut command = command(&fixture, "serve", "a", &["--http", "0"]);
        BackgroundProcess::start(&mut command, fixture.sandbox.path(), log)
    };
    let mut crashed = serve("crashed");
    eventually("a leads", || lease(&fixture)["currentLeader"] == "a");
    let token = lease(&fixture)["token"].clone();
    crashed.kill();
    // Clients may rely on the answers of `serve`, so its death releases nothing: the lease stays until it expires.
    let restarted = serve("restarted");
    eventually("the second run of a leads", || {
        let lease = lease(&fixture);
        lease["currentLeader"] == "a" && lease["token"] != token
    });
    let second = serve("second");
    second.says("a second candidate with the id 'a' is running and holds 'billing:nightly'");
    for node in [&restarted, &second] {
        let log = node.log();
        assert!(!log.contains("tenure:node:"), "{log}");
    }
    let log = restarted.log();
    assert!(!log.contains("second candidate") && !log.contains("warning"), "{log}");
}

#[test]
fn resign_to_a_candidate_that_cannot_lead_sends_no_request() {
    let fixture = Fixture::new();
    let _first = start(&fixture, "web-1", &[]);
    wait_for_state(&fixture, "web-1", "leading");
    let _second = start(&fixture, "web-2", &[]);
    let ill = ["--health", "exit 3", "--health-every", "1s"];
    let _third = start(&fixture, "web-3", &ill);
    wait_for_state(&fixture, "web-3", "unhealthy");
    wait_for_state(&fixture, "web-2", "waiting");
    let token = lease(&fixture)["token"].clone();
    let typo = fixture.run(&["resign", NAME, "--to", "web-9"]);
    typo.exits(1).says("'web-1' still leads 'billing:nightly': no candidate 'web-9' of");
    typo.says("web-2 could lead.");
    let unhealthy = fixture.run(&["resign", NAME, "--to", "web-3"]);
    unhealthy.exits(1).says("'web-3' is unhealthy (exit 3). web-2 could lead.");
    fixture.run(&["drain", NAME, "web-2"]).exits(0);
    wait_for_state(&fixture, "web-2", "drained");
    let drained = fixture.run(&["resign", NAME, "--to", "web-2", "--json"]).exits(1).json();
    assert_eq!((&drained["done"], &drained["currentLeader"]), (&json!(false), &json!("web-1")));
    assert!(drained["reason"].as_str().unwrap().contains("'web-2' is drained"), "{drained}");
    assert_eq!(lease(&fixture)["token"], token, "the leader was not disturbed");
    let again = fixture.run(&["resign", NAME]);
    again
        .exits(1)
        .says("web-1 handed over, but no other candidate was ready (web-2 is drained and ");
    again.says("web-3 is unhealthy (exit 3)): web-1 leads again");
    fixture.run(&["undrain", NAME, "web-2"]).exits(0);
    wait_for_state(&fixture, "web-2", "waiting");
    fixture.run(&["resign", NAME, "--to", "web-2"]).exits(0).says("'web-2' leads");
}

#[test]
fn a_drain_survives_a_restart_with_the_same_id() {
    let fixture = Fixture::new();
    let first = start(&fixture, "web-1", &[]);
    wait_for_state(&fixture, "web-1", "leading");
    fixture.run(&["drain", NAME, "web-1"]).exits(0);
    assert_eq!(first.end(), Some(0));
    let again = start(&fixture, "web-1", &["--heartbeat", "100ms"]);
    again.says("Status: FOLLOWER - nobody leads; drained");
    wait_for_state(&fixture, "web-1", "drained");
    assert!(!again.log().contains("BECAME LEADER"), "{}", again.log());
    fixture.run(&["undrain", NAME, "web-1"]).exits(0);
    wait_for_state(&fixture, "web-1", "leading");
    // The candidate is drained while it does not run, and undrained likewise.
    assert_eq!(again.end(), Some(0));
    let kept = fixture.run(&["drain", NAME, "web-1", "--wait", "100ms"]);
    kept.exits(1).says("The drain is kept").says("until 'tenure undrain billing:nightly web-1'");
    let drained = start(&fixture, "web-1", &[]);
    wait_for_state(&fixture, "web-1", "drained");
    assert_eq!(drained.end(), Some(0));
    fixture.run(&["undrain", NAME, "web-1", "--wait", "100ms"]).exits(1);
    let _leads = start(&fixture, "web-1", &[]);
    wait_for_state(&fixture, "web-1", "leading");
}
