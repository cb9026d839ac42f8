//! `tenure status`.

use std::time::Duration;

use serde_json::json;
use tenure::presence::Presence;
use tenure::{CandidateId, Name};

use crate::local_candidates::{Fixture, NAME};
use tenure_rig::command::Sandbox;

#[test]
fn an_unused_name_has_no_leader() {
    let fixture = Fixture::new();
    fixture.run(&["status", NAME]).exits(1).says("Nobody leads 'billing:nightly'.");
    let answer = fixture.run(&["status", NAME, "--json"]).exits(1).json();
    let pinned = json!({"name": NAME, "currentLeader": null, "state": "free",
        "startsInMs": null, "startReason": null, "token": null, "expiresInMs": null,
        "since": null, "count": null, "lastRun": null, "candidates": []});
    assert_eq!(answer, pinned);
    fixture.run(&["status"]).exits(0).says("No leases yet on file:");
    assert_eq!(fixture.run(&["status", "--json"]).exits(0).json(), json!([]));
}

#[test]
fn a_leader_is_shown_in_text_and_in_json() {
    let fixture = Fixture::new();
    let leader = fixture.leader(NAME, "a");
    let token = leader.status().token.unwrap().get();
    let ran = fixture.run(&["status", NAME]);
    ran.exits(0).says("NAME  ").says("LEADER").says("EXPIRES IN").says(&token.to_string());
    let ran = fixture.run(&["status", NAME, "--json"]);
    assert!(ran.exits(0).stdout.starts_with(r#"{"name":"billing:nightly","currentLeader":"a","#));
    let answer = ran.json();
    assert_eq!(answer["token"], token);
    assert!((1..=3_000).contains(&answer["expiresInMs"].as_u64().unwrap()), "{answer}");
    let since = answer["since"].as_str().unwrap();
    assert!(since.starts_with("20") && since.ends_with('Z') && since.len() == 24, "{since}");
    assert_eq!(answer.as_object().unwrap().len(), 11, "{answer}");
    fixture.runtime.block_on(leader.stop());
    let answer = fixture.run(&["status", NAME, "--json"]).exits(1).json();
    assert_eq!(answer["currentLeader"], json!(null));
    assert_eq!(answer["expiresInMs"], json!(null));
    assert_eq!(answer["token"], token, "of the last term");
}

#[test]
fn a_prefix_selects_and_own_names_are_hidden() {
    let fixture = Fixture::new();
    let _a = fixture.leader("a:x", "node-1");
    let _b = fixture.leader("b:x", "node-1");
    let (name, id) = (Name::new("a:x").unwrap(), CandidateId::new("node-1").unwrap());
    let presence = Presence::new(&name, &id, Duration::from_secs(60));
    let _present = fixture.runtime.block_on(presence.announce(fixture.store.clone())).unwrap();
    let names = |args: &[&str]| -> Vec<String> {
        let answer = fixture.run(args).exits(0).json();
        let name = |row: &serde_json::Value| row["name"].as_str().unwrap().to_owned();
        answer.as_array().unwrap().iter().map(name).collect()
    };
    assert_eq!(names(&["status", "--json"]), ["a:x", "b:x"]);
    assert_eq!(names(&["status", "--json", "a*"]), ["a:x"]);
    assert_eq!(names(&["status", "--json", "c*"]), [""; 0]);
    assert_eq!(names(&["status", "--json", "tenure:*"]), ["tenure:node:a:x:node-1"]);
}

#[test]
fn an_unreadable_lease_is_reported_and_the_others_are_shown() {
    let fixture = Fixture::new();
    let _leader = fixture.leader("good", "a");
    std::fs::write(fixture.directory().join("leases/bad.lease"), "\x1b[2Jnonsense").unwrap();
    let ran = fixture.run(&["status"]);
    ran.exits(0).says("good").complains("bad.lease");
    assert!(!ran.stderr.contains('\x1b'), "{:?}", ran.stderr);
    let ran = fixture.run(&["status", "--json"]);
    assert_eq!(ran.exits(0).json().as_array().unwrap().len(), 1);
    ran.complains(r#""kind":"corrupt""#);
    fixture.run(&["status", "bad"]).exits(123).complains("bad.lease");
}

#[test]
fn invalid_usage_and_an_unreachable_store() {
    let sandbox = Sandbox::new();
    sandbox.run(&["status", "a b"]).exits(125).complains("' '");
    sandbox.run(&["status", "a*b"]).exits(125).complains("'*'");
    sandbox.run(&["--store", "memory:", "status"]).exits(125).complains("one process only");
    if cfg!(feature = "redis") {
        sandbox.run(&["--store", "redis://127.0.0.1:1", "status", "a"]).exits(122);
    }
}
