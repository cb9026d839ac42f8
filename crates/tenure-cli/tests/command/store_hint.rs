//! The hint of read commands about a `.env` that configures an instance with another store.

use tenure_rig::command::World;

/// As root the default store is that of the whole machine, so the name is one that no other process uses.
const NAME: &str = "tests:store-hint";
const URL: &str = "redis://:secret@127.0.0.1:6390/0";

#[test]
fn a_command_on_the_default_store_names_the_store_of_the_instance() {
    let world = World::new();
    world.put(".env", format!("REDIS_URL={URL}\n"));
    let status = world.run(&["status", NAME]);
    status
        .exits(1)
        .says("Nobody leads 'tests:store-hint'.")
        .says("Asked: file:")
        .says("(the default)");
    for args in [&["status", NAME][..], &["status"], &["doctor"], &["fleet", "status", "poll"]] {
        let ran = world.run(args);
        ran.complains("this asks the default store").complains(".env");
        ran.complains("@127.0.0.1:6390/0").complains("give --store redis://");
        assert!(!ran.stderr.contains("secret"), "{args:?}: {}", ran.stderr);
    }
    let mut command = world.command(&["status", NAME]);
    let ran = command.env("REDIS_URL", "redis://127.0.0.1:6391/0").output().unwrap();
    let stderr = String::from_utf8(ran.stderr).unwrap();
    assert!(stderr.contains("REDIS_URL names redis://127.0.0.1:6391/0"), "{stderr}");
}

#[test]
fn a_store_that_was_chosen_needs_no_hint() {
    let world = World::new();
    world.put(".env", format!("REDIS_URL={URL}\n"));
    let directory = world.path().join("leases");
    let ran = world.run(&["status", NAME, "--lock-dir", directory.to_str().unwrap()]);
    ran.exits(1).says("(from --lock-dir)");
    assert_eq!(ran.stderr, "");
}

#[test]
fn without_an_instance_there_is_no_hint() {
    let world = World::new();
    let ran = world.run(&["status", NAME]);
    ran.exits(1).says("Asked: file:");
    assert_eq!(ran.stderr, "");
}
