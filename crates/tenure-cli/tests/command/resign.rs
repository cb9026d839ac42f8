//! `tenure resign`, `drain`, `undrain`, `revoke`, against real candidates.

use serde_json::json;

use crate::local_candidates::{Fixture, NAME};
use tenure_rig::command::{Sandbox, eventually};

#[test]
fn resign_moves_leadership_and_reports_the_new_leader() {
    let fixture = Fixture::new();
    let a = fixture.leader(NAME, "a");
    let b = fixture.candidate(NAME, "b");
    eventually("b has seen a", || b.current_leader().as_deref() == Some("a"));
    let ran = fixture.run(&["resign", NAME, "--to", "b"]);
    ran.exits(0).says("'a' has resigned: 'b' leads 'billing:nightly' now.");
    eventually("b leads", || b.is_leader() && !a.is_leader());
    fixture
        .run(&["resign", NAME, "--to", "b"])
        .exits(0)
        .says("'b' leads 'billing:nightly' already.");
    let answer = fixture.run(&["resign", NAME, "--to", "a", "--json"]).exits(0).json();
    assert_eq!(answer, json!({"name": NAME, "done": true, "currentLeader": "a"}));
}

#[test]
fn resign_without_a_leader_is_exit_0() {
    let fixture = Fixture::new();
    fixture.run(&["resign", NAME]).exits(0).says("nothing to resign from");
    let answer = fixture.run(&["resign", NAME, "--json"]).exits(0).json();
    assert_eq!(answer, json!({"name": NAME, "done": true, "currentLeader": null}));
}

#[test]
fn a_leader_that_does_not_release_is_exit_1() {
    let fixture = Fixture::new();
    let builder = tenure::Election::builder(NAME).id("a");
    let a = fixture.runtime.block_on(builder.start(fixture.store.clone())).unwrap();
    // The work does not stop: the term is not over before it is dropped.
    let leadership = fixture.runtime.block_on(a.leadership()).unwrap();
    let ran = fixture.run(&["resign", NAME, "--wait", "300ms"]);
    ran.exits(1).says("has not resigned within 300ms: 'a' leads");
    drop(leadership);
}

#[test]
fn drain_and_undrain_are_handled_by_the_named_candidate() {
    let fixture = Fixture::new();
    let a = fixture.leader(NAME, "a");
    let ran = fixture.run(&["drain", NAME, "a"]);
    ran.exits(0).says("'a' is drained: nobody leads 'billing:nightly' now.");
    assert!(!a.is_leader());
    let answer = fixture.run(&["undrain", NAME, "a", "--json"]).exits(0).json();
    assert_eq!(answer["done"], true, "{answer}");
    eventually("a leads again", || a.is_leader());
    let ran = fixture.run(&["drain", NAME, "nobody", "--wait", "200ms"]);
    ran.exits(1).says("'nobody' has not answered within 200ms: 'a' leads 'billing:nightly' now.");
    let answer = fixture.run(&["undrain", NAME, "x", "--wait", "200ms", "--json"]).exits(1).json();
    assert_eq!(answer, json!({"name": NAME, "done": false, "currentLeader": "a"}));
}

#[test]
fn revoke_waits_for_the_expiry_and_revoke_now_does_not() {
    let fixture = Fixture::new();
    let a = fixture.leader(NAME, "a");
    let token = a.status().token.unwrap().get();
    let ran = fixture.run(&["revoke", NAME, "--yes"]);
    ran.exits(0).says("can be had again in ").says("when the time of 'a' has run out");
    eventually("a has noticed, and leads in a new term", || {
        a.is_leader() && a.status().token.is_some_and(|now| now.get() > token)
    });
    let answer = fixture.run(&["revoke", NAME, "--now", "--yes", "--json"]).exits(0).json();
    assert_eq!(answer["currentLeader"], json!(null), "{answer}");
    assert_eq!(answer["expiresInMs"], json!(null));
    assert!(answer["token"].as_u64().unwrap() > token);
}

#[test]
fn revoke_asks_for_confirmation_and_needs_yes_without_a_terminal() {
    let fixture = Fixture::new();
    let a = fixture.leader(NAME, "a");
    let token = a.status().token;
    for args in [&["revoke", NAME][..], &["revoke", NAME, "--now"]] {
        fixture.run(args).exits(125).complains("give --yes");
    }
    assert!(a.is_leader() && a.status().token == token);
    fixture.run(&["revoke", "never-used", "--yes"]).exits(125).complains("there is no lease");
}

#[test]
fn invalid_usage_exits_125_and_an_unreachable_store_122() {
    let sandbox = Sandbox::new();
    for (args, says) in [
        (&["resign"][..], "NAME"),
        (&["resign", "tenure:ask:a"], "Tenure's own"),
        (&["resign", "a", "--to", "b c"], "' '"),
        (&["resign", "a", "--wait", "10"], "10s for seconds"),
        (&["drain", "a"], "ID"),
        (&["undrain", "a", "b", "--wait", "soon"], "is no duration"),
        (&["revoke"], "NAME"),
    ] {
        sandbox.run(args).exits(125).complains(says);
    }
    if cfg!(feature = "redis") {
        for args in [&["resign", "a"][..], &["drain", "a", "b"], &["revoke", "a", "--yes"]] {
            let mut all = vec!["--store", "redis://127.0.0.1:1"];
            all.extend(args);
            sandbox.run(&all).exits(122);
        }
    }
}
