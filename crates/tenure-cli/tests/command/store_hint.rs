//! The hint of read commands about a `.env` that configures an instance with another store.

use tenure_rig::command::Sandbox;

/// As root the default store is that of the whole machine, so the name is one that no other process uses.
const NAME: &str = "tests:store-hint";
const URL: &str = "redis://:secret@127.0.0.1:6390/0";

#[test]
fn a_command_on_the_default_store_names_the_store_of_the_instance() {
    let sandbox = Sandbox::new();
    sandbox.put(".env", format!("REDIS_URL={URL}\n"));
    let status = sandbox.run(&["status", NAME]);
    status
        .exits(1)
        .says("Nobody leads 'tests:store-hint'.")
        .says("Asked: file:")
        .says("(the default)");
    for args in [&["status", NAME][..], &["status"], &["doctor"], &["fleet", "status", "poll"]] {
        let ran = sandbox.run(args);
        ran.complains("this asks the default store").complains(".env");
        ran.complains("@127.0.0.1:6390/0").complains("give --store redis://");
        assert!(!ran.stderr.contains("secret"), "{args:?}: {}", ran.stderr);
    }
    let mut command = sandbox.command(&["status", NAME]);
    let ran = command.env("REDIS_URL", "redis://127.0.0.1:6391/0").output().unwrap();
    let stderr = String::from_utf8(ran.stderr).unwrap();
    assert!(stderr.contains("REDIS_URL names redis://127.0.0.1:6391/0"), "{stderr}");
}

#[test]
fn a_store_that_was_chosen_needs_no_hint() {
    let sandbox = Sandbox::new();
    sandbox.put(".env", format!("REDIS_URL={URL}\n"));
    let directory = sandbox.path().join("leases");
    let ran = sandbox.run(&["status", NAME, "--lock-dir", directory.to_str().unwrap()]);
    ran.exits(1).says("(from --lock-dir)");
    assert_eq!(ran.stderr, "");
}

#[test]
fn without_an_instance_there_is_no_hint() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["status", NAME]);
    ran.exits(1).says("Asked: file:");
    assert_eq!(ran.stderr, "");
}
