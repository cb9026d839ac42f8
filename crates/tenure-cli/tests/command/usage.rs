//! Usage errors: exit code 125 and a hint.

use tenure_rig::command::World;

#[test]
fn help_has_examples_and_is_exit_0() {
    let world = World::new();
    world.run(&["--help"]).exits(0).says("Examples:").says("tenure demo").says("TENURE_STORE");
    for command in [
        "demo",
        "doctor",
        "status",
        "resign",
        "drain",
        "undrain",
        "revoke",
        "watch",
        "completions",
        "man",
    ] {
        world.run(&[command, "--help"]).exits(0).says("Examples:");
        world.run(&["help", command]).exits(0).says("Examples:");
    }
    world.run(&["fleet", "--help"]).exits(0).says("Examples:").says("Exit codes:");
    for command in ["run", "status", "who", "drain", "undrain", "pause", "resume", "plan"] {
        let ran = world.run(&["fleet", command, "--help"]);
        ran.exits(0).says("Examples:").says("Exit codes:");
        assert_eq!(world.run(&["help", "fleet", command]).exits(0).stdout, ran.stdout);
    }
    assert!(!world.run(&["--help"]).stdout.contains("demo-node"), "that one is not for people");
}

#[test]
fn the_version_names_the_stores() {
    let ran = World::new().run(&["--version"]);
    let redis = if cfg!(feature = "redis") { " redis" } else { "" };
    let begins = format!("tenure {} (", env!("CARGO_PKG_VERSION"));
    let ends = format!("stores: memory file{redis})\n");
    assert!(ran.exits(0).stdout.starts_with(&begins), "{}", ran.stdout);
    assert!(ran.stdout.ends_with(&ends), "{}", ran.stdout);
}

#[test]
fn a_usage_error_exits_125_with_a_sentence() {
    let world = World::new();
    for (args, says) in [
        (&["--frobnicate", "doctor"][..], "--frobnicate"),
        (&[], "Usage"),
        (&["frobnicate"], "frobnicate"),
        (&["--store", "zookeeper://h", "doctor"], "there are memory: file:"),
        (&["--store", "nowhere", "doctor"], "is not a store URL"),
        (&["--store", "file:/tmp?farce=1", "doctor"], "farce"),
        (&["--store", "memory:", "--lock-dir", "/x", "doctor"], "give one"),
        (&["--lock-dir", "/a?b", "doctor"], "'?'"),
        (&["--store", "memory:", "demo"], "one process only"),
        (&["demo", "--nodes", "1"], "2..=20"),
        (&["demo", "--fault", "flood"], "kill"),
        (&["demo", "--fault", "none,kill"], "goes with no other"),
        (&["--log-level", "loud", "doctor"], "debug"),
        (&["demo-node"], "tenure demo"),
    ] {
        let ran = world.run(args);
        ran.exits(125).complains(says);
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    world.assert_nothing_left();
}

#[test]
fn with_json_a_usage_error_is_an_object_on_stderr() {
    let world = World::new();
    for args in [&["--json", "--frobnicate", "doctor"][..], &["doctor", "--json", "--store", "x"]] {
        let ran = world.run(args);
        let error: serde_json::Value = serde_json::from_str(&ran.exits(125).stderr).unwrap();
        assert_eq!(error["error"]["kind"], "invalid", "{error}");
        assert!(error["error"]["message"].as_str().is_some_and(|text| !text.is_empty()));
    }
}

#[test]
fn a_flag_takes_precedence_over_a_variable() {
    let world = World::new();
    let directory = world.path().join("d");
    let mut command = world.command(&["doctor", "--lock-dir", directory.to_str().unwrap()]);
    let ran = tenure_rig::command::CommandResult::new(
        command.env("TENURE_STORE", "memory:").output().unwrap(),
    );
    ran.exits(0).says("(from --lock-dir)");
    let mut command = world.command(&["doctor"]);
    let ran = tenure_rig::command::CommandResult::new(
        command.env("TENURE_STORE", "memory:").output().unwrap(),
    );
    ran.exits(0).says("memory: (from TENURE_STORE)");
}
