//! `tenure doctor`.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

use serde_json::json;

use crate::local_candidates::{Fixture, NAME};
use tenure_rig::command::Sandbox;

#[test]
fn a_directory_is_described_in_text_and_in_json() {
    let sandbox = Sandbox::new();
    let directory = sandbox.path().join("leases");
    let url = format!("file:{}", directory.display());
    let text = sandbox.run(&["--store", &url, "doctor"]);
    text.exits(0).says(&url).says("(from --store)").says("grade").says("this machine only");
    let ran = sandbox.run(&["doctor", "--store", &url, "--json"]);
    let answer = ran.exits(0).json();
    assert_eq!(answer["store"], url.as_str());
    assert_eq!(answer["ok"], true);
    assert_eq!(answer["shared"], false);
    assert!(["A", "B", "C"].contains(&answer["grade"].as_str().unwrap()));
    assert!(answer["roundTripMs"].as_f64().unwrap() > 0.0);
    let checks = answer["checks"].as_array().unwrap();
    assert!(!checks.is_empty());
    for check in checks {
        assert!(["good", "weak", "bad"].contains(&check["verdict"].as_str().unwrap()), "{check}");
        assert!(check["what"].is_string() && check["found"].is_string(), "{check}");
    }
}

#[test]
fn a_directory_that_others_may_write_is_123() {
    let sandbox = Sandbox::new();
    let open = sandbox.path().join("open");
    std::fs::DirBuilder::new().mode(0o700).create(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let ran = sandbox.run(&["--lock-dir", open.to_str().unwrap(), "--json", "doctor"]);
    let error: serde_json::Value = serde_json::from_str(&ran.exits(123).stderr).unwrap();
    assert_eq!(error["error"]["kind"], "denied");
}

#[test]
fn a_closed_stdout_is_not_an_error() {
    let sandbox = Sandbox::new();
    let mut child = sandbox.start(&["--store", "memory:", "doctor"]);
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn an_unused_name_is_compared_with_existing_names() {
    let fixture = Fixture::new();
    fixture.run(&["doctor", NAME]).exits(0).says("Nobody has ever led 'billing:nightly' on file:");
    let _leader = fixture.leader(NAME, "a");
    let ran = fixture.run(&["doctor", "billing:nighty"]);
    ran.exits(0).says("There is 'billing:nightly'").says("(from TENURE_LOCK_DIR)");
    ran.says("'tenure run billing:nighty --print-config'");
    let answer = fixture.run(&["doctor", "quite:other", "--json"]).exits(0).json();
    let lease = &answer["lease"];
    assert_eq!(lease["name"], "quite:other");
    assert_eq!(lease["currentLeader"], json!(null));
    assert_eq!(lease["token"], json!(null));
    assert_eq!(lease["expiresInMs"], json!(null));
    assert!(
        lease["findings"][1].as_str().unwrap().contains("There is another lease here"),
        "{lease}"
    );
    assert_eq!(fixture.run(&["doctor", "--json"]).exits(0).json()["lease"], json!(null));
}

#[test]
fn the_leader_is_reported_and_later_how_its_term_ended() {
    let fixture = Fixture::new();
    let leader = fixture.leader(NAME, "a");
    let token = leader.status().token.unwrap().get();
    let ran = fixture.run(&["doctor", NAME]);
    ran.exits(0).says(&format!("'a' leads 'billing:nightly' in term {token} since 20"));
    ran.says("tenure resign billing:nightly --to ID");
    let lease = fixture.run(&["doctor", NAME, "--json"]).exits(0).json()["lease"].clone();
    assert_eq!((&lease["currentLeader"], &lease["token"]), (&json!("a"), &json!(token)));
    assert!(lease["expiresInMs"].as_u64().is_some_and(|ms| ms <= 3_000), "{lease}");
    fixture.run(&["drain", NAME, "a"]).exits(0);
    let ran = fixture.run(&["doctor", NAME]);
    ran.exits(0).says("Nobody leads 'billing:nightly': its holder released it in term");
    ran.says("tenure undrain billing:nightly ID");
}

#[test]
fn a_revoked_lease_is_reported_as_revoked() {
    let fixture = Fixture::new();
    let builder = tenure::Election::builder(NAME).id("a").ttl(std::time::Duration::from_secs(60));
    let election = fixture.runtime.block_on(builder.start(fixture.store.clone())).unwrap();
    let leadership = fixture.runtime.block_on(election.leadership()).unwrap();
    fixture.run(&["revoke", NAME, "--yes"]).exits(0);
    let ran = fixture.run(&["doctor", NAME]);
    ran.exits(0).says("was revoked: 'a' cannot renew it any more");
    drop(leadership);
}

#[test]
fn an_unreadable_lease_is_a_failed_check() {
    let fixture = Fixture::new();
    let _leader = fixture.leader("good", "a");
    std::fs::write(fixture.directory().join("leases/bad.lease"), "\x1b[2Jnonsense").unwrap();
    let ran = fixture.run(&["doctor", "bad"]);
    ran.exits(1).says("bad.lease").says("until an operator").says("Nobody can lead 'bad' as it is");
    assert!(!ran.stdout.contains('\x1b'), "{:?}", ran.stdout);
    let answer = fixture.run(&["doctor", "bad", "--json"]).exits(1).json();
    assert_eq!(answer["ok"], false);
    fixture.run(&["doctor", "a b"]).exits(125).complains("' '");
}
