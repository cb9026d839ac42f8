//! Usage errors: exit code 125 and a hint.

use tenure_rig::command::Sandbox;

#[test]
fn help_has_examples_and_is_exit_0() {
    let sandbox = Sandbox::new();
    sandbox.run(&["--help"]).exits(0).says("Examples:").says("tenure demo").says("TENURE_STORE");
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
        sandbox.run(&[command, "--help"]).exits(0).says("Examples:");
        sandbox.run(&["help", command]).exits(0).says("Examples:");
    }
    sandbox.run(&["fleet", "--help"]).exits(0).says("Examples:").says("Exit codes:");
    for command in ["run", "status", "who", "drain", "undrain", "pause", "resume", "plan"] {
        let ran = sandbox.run(&["fleet", command, "--help"]);
        ran.exits(0).says("Examples:").says("Exit codes:");
        assert_eq!(sandbox.run(&["help", "fleet", command]).exits(0).stdout, ran.stdout);
    }
    assert!(!sandbox.run(&["--help"]).stdout.contains("demo-node"), "that one is not for people");
}

#[test]
fn the_version_names_the_stores() {
    let ran = Sandbox::new().run(&["--version"]);
    let redis = if cfg!(feature = "redis") { " redis" } else { "" };
    let begins = format!("tenure {} (", env!("CARGO_PKG_VERSION"));
    let ends = format!("stores: memory file{redis})\n");
    assert!(ran.exits(0).stdout.starts_with(&begins), "{}", ran.stdout);
    assert!(ran.stdout.ends_with(&ends), "{}", ran.stdout);
}

#[test]
fn a_usage_error_exits_125_with_a_sentence() {
    let sandbox = Sandbox::new();
    for (args, says) in [
        (&["--frobnicate", "doctor"][..], "--frobnicate"),
        (&[], "Usage"),
        (&["frobnicate"], "frobnicate"),
        (&["--store", "zookeeper://h", "doctor"], "supported: memory: file:"),
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
        let ran = sandbox.run(args);
        ran.exits(125).complains(says);
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    sandbox.assert_nothing_left();
}

#[test]
fn with_json_a_usage_error_is_an_object_on_stderr() {
    let sandbox = Sandbox::new();
    for args in [&["--json", "--frobnicate", "doctor"][..], &["doctor", "--json", "--store", "x"]] {
        let ran = sandbox.run(args);
        let error: serde_json::Value = serde_json::from_str(&ran.exits(125).stderr).unwrap();
        assert_eq!(error["error"]["kind"], "invalid", "{error}");
        assert!(error["error"]["message"].as_str().is_some_and(|text| !text.is_empty()));
    }
}

#[test]
fn a_flag_takes_precedence_over_a_variable() {
    let sandbox = Sandbox::new();
    let directory = sandbox.path().join("d");
    let mut command = sandbox.command(&["doctor", "--lock-dir", directory.to_str().unwrap()]);
    let ran = tenure_rig::command::CommandResult::new(
        command.env("TENURE_STORE", "memory:").output().unwrap(),
    );
    ran.exits(0).says("(from --lock-dir)");
    let mut command = sandbox.command(&["doctor"]);
    let ran = tenure_rig::command::CommandResult::new(
        command.env("TENURE_STORE", "memory:").output().unwrap(),
    );
    ran.exits(0).says("memory: (from TENURE_STORE)");
}
