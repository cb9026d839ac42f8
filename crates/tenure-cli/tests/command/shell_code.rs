//! `tenure fleet run` with a shell: the name of a shard as an argument, as a variable, and as code.

use crate::node::Node;
use crate::support::{World, eventually};

const WARNED: &str = "{} is inside the code of 'sh -c'";
/// What is said of a command in which the shard does not appear.
const FORGOTTEN: &str = "{} stands nowhere in what is run";
const HOSTILE: &str = "x; echo injected";

/// A member that runs this for a shard with a hostile name, until it has written something.
fn run(world: &World, command: &[&str]) -> String {
    let mut member = world.command(&["fleet", "run", "poll", "--node-id", "a"]);
    member.env("TENURE_LOCK_DIR", world.path().join("leases"));
    member.args(["--shards", HOSTILE, "--"]).args(command);
    let node = Node::start(&mut member, world.path(), "a");
    eventually("the command has run", || !world.marked().is_empty());
    let said = node.said();
    assert_eq!(node.end(), Some(0));
    eventually("no process is left", || world.processes().is_empty());
    said
}

#[test]
fn a_shard_in_the_code_is_warned_about() {
    let world = World::new();
    let code = format!("(echo {{}}) >> {}; sleep 60", world.marks().display());
    let said = run(&world, &["env", "sh", "-c", &code]);
    assert!(said.contains(WARNED) && said.contains("write \"$TENURE_SHARD\" there"), "{said}");
    // Why it is warned about.
    assert!(world.marked().contains(&"injected".to_owned()), "{:?}", world.marked());
}

#[test]
fn a_shard_in_a_variable_or_an_argument_is_no_code() {
    for (code, arguments) in [("\"$TENURE_SHARD\"", &[][..]), ("\"$1\"", &["sh", "{}"])] {
        let world = World::new();
        let code = format!("echo {code} >> {}; sleep 60", world.marks().display());
        let said = run(&world, &[&["sh", "-c", &code], arguments].concat());
        assert!(!said.contains(WARNED) && !said.contains(FORGOTTEN), "{said}");
        assert_eq!(world.marked(), [HOSTILE]);
    }
}
