//! What candidates show of themselves: state, reason and priority, in every command that shows them.

use std::process::Command;

use serde_json::{Value, json};

use crate::local_candidates::{NAME, Place};
use crate::node::Node;
use crate::support::{eventually, status};

fn command(place: &Place, verb: &str, id: &str, args: &[&str]) -> Command {
    let mut command = place.world.command(&[verb, NAME, "--node-id", id, "--lease-duration", "3s"]);
    command.env("TENURE_LOCK_DIR", place.directory()).args(args);
    command
}

/// A candidate that needs no command.
fn start(place: &Place, id: &str, args: &[&str]) -> Node {
    let mut all = vec!["--mock", "--every", "1h"];
    all.extend(args);
    Node::start(&mut command(place, "run", id, &all), place.world.path(), id)
}

fn lease(place: &Place) -> Value {
    place.run(&["status", NAME, "--json"]).json()
}

/// The candidate `id` as `status NAME --json` shows it.
fn candidate(place: &Place, id: &str) -> Value {
    let lease = lease(place);
    let mut candidates = lease["candidates"].as_array().unwrap().iter();
    candidates.find(|one| one["candidateId"] == id).cloned().unwrap_or_default()
}

#[track_caller]
fn becomes(place: &Place, id: &str, state: &str) {
    eventually(&format!("{id} is {state}"), || candidate(place, id)["state"] == state);
}

#[test]
fn drained_candidates_are_shown_by_every_command() {
    let place = Place::new();
    let first = start(&place, "web-1", &["--priority", "7", "--heartbeat", "100ms"]);
    becomes(&place, "web-1", "leading");
    let second = start(&place, "web-2", &["--http", "0"]);
    becomes(&place, "web-2", "waiting");
    assert_eq!(candidate(&place, "web-1")["priority"], 7);
    for id in ["web-2", "web-1"] {
        place.run(&["drain", NAME, id]).exits(0);
        becomes(&place, id, "drained");
    }
    first.says("Status: FOLLOWER - nobody leads; drained");
    place.run(&["status"]).exits(0).says("2 (2 drained)");
    place.run(&["status", NAME]).exits(1).says("web-1      drained").says("PRIORITY");
    let doctor = place.run(&["doctor", NAME]);
    let answer = "- 2 candidates are running, both drained: tenure undrain billing:nightly web-1";
    assert!(doctor.exits(1).stdout.starts_with(answer), "{}", doctor.stdout);
    let doctor = place.run(&["doctor", NAME, "--json"]).exits(1).json();
    assert_eq!(doctor["lease"]["candidates"][0]["state"], "drained", "{doctor}");
    let port = second.port();
    eventually("HTTP shows both as drained", || {
        let status = status(port).unwrap_or_default();
        status["state"] == "drained"
            && status["candidates"].as_array().is_some_and(|all| {
                all.len() == 2 && all.iter().all(|one| one["state"] == "drained")
            })
    });
    place.run(&["undrain", NAME, "web-2"]).exits(0);
    becomes(&place, "web-2", "leading");
}

#[test]
fn a_health_check_that_fails_from_the_start_is_logged_once_and_shown() {
    let place = Place::new();
    let args = ["--health", "no-such-command-here", "--health-every", "1s", "--http", "0"];
    let node = start(&place, "h1", &args);
    node.says("warning: health check failed: exit 127: ");
    becomes(&place, "h1", "unhealthy");
    let reason = candidate(&place, "h1")["reason"].as_str().unwrap().to_owned();
    assert!(
        reason.starts_with("exit 127: ") && reason.contains("no-such-command-here"),
        "{reason}"
    );
    let doctor = place.run(&["doctor", NAME]);
    let answer = "- Nobody has led 'billing:nightly' on this store yet.\n- Candidate h1 is running; its health check fails \
                  (exit 127: ";
    assert!(doctor.exits(1).stdout.starts_with(answer), "{}", doctor.stdout);
    // It has candidates, though it was never led.
    place.run(&["status"]).exits(0).says("1 (1 unhealthy)");
    place.run(&["status", "other*"]).exits(0).says("No such lease");
    let status = status(node.port()).unwrap();
    assert_eq!((&status["state"], &status["stateReason"]), (&json!("unhealthy"), &json!(reason)));
    let said = node.said();
    assert_eq!(said.matches("health check failed").count(), 1, "{said}");
    drop(node);
}

#[test]
fn a_duplicate_id_is_reported_when_a_second_candidate_lives_and_not_after_a_crash() {
    let place = Place::new();
    let serve = |log: &str| {
        let mut command = command(&place, "serve", "a", &["--http", "0"]);
        Node::start(&mut command, place.world.path(), log)
    };
    let mut crashed = serve("crashed");
    eventually("a leads", || lease(&place)["currentLeader"] == "a");
    let token = lease(&place)["token"].clone();
    crashed.kill();
    // Answers of `serve` may be relied upon, so its death frees nothing: the lease is there until it expires.
    let restarted = serve("restarted");
    eventually("the second run of a leads", || {
        let lease = lease(&place);
        lease["currentLeader"] == "a" && lease["token"] != token
    });
    let second = serve("second");
    second.says("a second candidate with the id 'a' is running and holds 'billing:nightly'");
    for node in [&restarted, &second] {
        let said = node.said();
        assert!(!said.contains("tenure:node:"), "{said}");
    }
    let said = restarted.said();
    assert!(!said.contains("second candidate") && !said.contains("warning"), "{said}");
}

#[test]
fn resign_to_a_candidate_that_cannot_lead_disturbs_nobody() {
    let place = Place::new();
    let _first = start(&place, "web-1", &[]);
    becomes(&place, "web-1", "leading");
    let _second = start(&place, "web-2", &[]);
    let ill = ["--health", "exit 3", "--health-every", "1s"];
    let _third = start(&place, "web-3", &ill);
    becomes(&place, "web-3", "unhealthy");
    becomes(&place, "web-2", "waiting");
    let token = lease(&place)["token"].clone();
    let typo = place.run(&["resign", NAME, "--to", "web-9"]);
    typo.exits(1).says("'web-1' still leads 'billing:nightly': no candidate 'web-9' of");
    typo.says("web-2 could lead.");
    let unhealthy = place.run(&["resign", NAME, "--to", "web-3"]);
    unhealthy.exits(1).says("'web-3' is unhealthy (exit 3). web-2 could lead.");
    place.run(&["drain", NAME, "web-2"]).exits(0);
    becomes(&place, "web-2", "drained");
    let drained = place.run(&["resign", NAME, "--to", "web-2", "--json"]).exits(1).json();
    assert_eq!((&drained["done"], &drained["currentLeader"]), (&json!(false), &json!("web-1")));
    assert!(drained["reason"].as_str().unwrap().contains("'web-2' is drained"), "{drained}");
    assert_eq!(lease(&place)["token"], token, "the leader was not disturbed");
    let again = place.run(&["resign", NAME]);
    again
        .exits(1)
        .says("web-1 handed over, but no other candidate was ready (web-2 is drained and ");
    again.says("web-3 is unhealthy (exit 3)): web-1 leads again");
    place.run(&["undrain", NAME, "web-2"]).exits(0);
    becomes(&place, "web-2", "waiting");
    place.run(&["resign", NAME, "--to", "web-2"]).exits(0).says("'web-2' leads");
}

#[test]
fn a_drain_is_kept_over_a_restart_with_the_same_id() {
    let place = Place::new();
    let first = start(&place, "web-1", &[]);
    becomes(&place, "web-1", "leading");
    place.run(&["drain", NAME, "web-1"]).exits(0);
    assert_eq!(first.end(), Some(0));
    let again = start(&place, "web-1", &["--heartbeat", "100ms"]);
    again.says("Status: FOLLOWER - nobody leads; drained");
    becomes(&place, "web-1", "drained");
    assert!(!again.said().contains("BECAME LEADER"), "{}", again.said());
    place.run(&["undrain", NAME, "web-1"]).exits(0);
    becomes(&place, "web-1", "leading");
    // Drained while it does not run, and undrained likewise.
    assert_eq!(again.end(), Some(0));
    let kept = place.run(&["drain", NAME, "web-1", "--wait", "100ms"]);
    kept.exits(1).says("The drain is kept").says("until 'tenure undrain billing:nightly web-1'");
    let drained = start(&place, "web-1", &[]);
    becomes(&place, "web-1", "drained");
    assert_eq!(drained.end(), Some(0));
    place.run(&["undrain", NAME, "web-1", "--wait", "100ms"]).exits(1);
    let _leads = start(&place, "web-1", &[]);
    becomes(&place, "web-1", "leading");
}
