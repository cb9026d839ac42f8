//! `tenure doctor`.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

use crate::support::World;

#[test]
fn a_directory_is_described_in_text_and_in_json() {
    let world = World::new();
    let directory = world.path().join("leases");
    let url = format!("file:{}", directory.display());
    let text = world.run(&["--store", &url, "doctor"]);
    text.exits(0).says(&url).says("(from --store)").says("grade").says("this machine only");
    let ran = world.run(&["doctor", "--store", &url, "--json"]);
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
fn a_directory_that_others_may_write_is_an_operators_business() {
    let world = World::new();
    let open = world.path().join("open");
    std::fs::DirBuilder::new().mode(0o700).create(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let ran = world.run(&["--lock-dir", open.to_str().unwrap(), "--json", "doctor"]);
    let error: serde_json::Value = serde_json::from_str(&ran.exits(123).stderr).unwrap();
    assert_eq!(error["error"]["kind"], "denied");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let world = World::new();
    let mut child = world.start(&["--store", "memory:", "doctor"]);
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}
