//! Members of a fleet whose lists of shards differ or cannot be read, and members that lost their store for a while.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::node::Node;
use crate::support::{World, eventually, pause};

const SHARDS: &str = "s01,s02,s03,s04,s05,s06,s07,s08,s09,s10,s11,s12";

fn command(world: &World, id: &str, source: &[&str]) -> Command {
    let mut command = world.command(&["fleet", "run", "poll", "--node-id", id]);
    command.args(["--lease-duration", "2s", "--mock", "--every", "1h", "--reread", "1s"]);
    command.env("TENURE_LOCK_DIR", world.path().join("leases")).args(source);
    command
}

fn start(world: &World, id: &str, source: &[&str]) -> Node {
    Node::start(&mut command(world, id, source), world.path(), id)
}

/// How many shards it owns, by its own log.
fn owns(node: &Node) -> usize {
    let count = |text: &str| node.said().lines().filter(|line| line.contains(text)).count();
    count("Lease acquired: ") - count("Lease released: ")
}

#[test]
fn a_member_that_cannot_read_its_list_does_not_join_and_says_why() {
    let world = World::new();
    let first = start(&world, "a", &["--shards", SHARDS]);
    eventually("it owns all", || owns(&first) == 12);
    let list = world.path().join("list");
    let source = format!("cat {} || exit 3", list.display());
    let second = start(&world, "b", &["--shards-command", &source]);
    second.says("poll: cannot list shards: the command");
    second.says("exited with 3");
    second.says("not joining the fleet, next try in 1s");
    pause(Duration::from_secs(4));
    assert_eq!(owns(&first), 12, "no shard was taken from it: {}", first.said());
    assert!(!second.said().contains("Joined the fleet"), "{}", second.said());
    fs::write(&list, SHARDS.replace(',', "\n")).unwrap();
    eventually("it has its share", || owns(&second) == 6 && owns(&first) == 6);
    assert_eq!((first.end(), second.end()), (Some(0), Some(0)));
}

#[test]
fn a_member_with_an_empty_list_or_one_line_leaves_no_shard_without_an_owner() {
    let world = World::new();
    let first = start(&world, "a", &["--shards", SHARDS]);
    eventually("it owns all", || owns(&first) == 12);
    // A list that is younger than a TTL may be about to reach the others too, so shares are still offered.
    pause(Duration::from_secs(3));
    let empty = world.path().join("empty");
    fs::write(&empty, "").unwrap();
    let second = start(&world, "b", &["--shards-file", empty.to_str().unwrap()]);
    second.says("Joined the fleet");
    pause(Duration::from_secs(3));
    assert_eq!(owns(&first), 12, "{}", first.said());
    assert_eq!(first.said().matches("Lease released: ").count(), 0, "{}", first.said());
    let third = start(&world, "c", &["--shards", "s07"]);
    third.says("Joined the fleet");
    pause(Duration::from_secs(4));
    eventually("each shard has an owner", || owns(&first) + owns(&third) == 12);
    first.says("The members list different shards");
    let released = first.said().matches("Lease released: ").count();
    assert!(released <= 2, "only what c may list was offered: {}", first.said());
    assert_eq!((first.end(), second.end(), third.end()), (Some(0), Some(0), Some(0)));
}

#[test]
fn a_member_that_lost_its_lease_in_an_outage_is_not_told_of_another_with_its_id() {
    let world = World::new();
    let node = start(&world, "a", &["--shards", "s1,s2"]);
    eventually("it owns both", || owns(&node) == 2);
    let (leases, away) = (world.path().join("leases"), world.path().join("away"));
    fs::rename(&leases, &away).unwrap();
    node.says("Left the fleet: reason=expired");
    pause(Duration::from_secs(3));
    fs::remove_dir_all(&leases).ok();
    fs::rename(&away, &leases).unwrap();
    eventually("it is back", || node.said().matches("Joined the fleet").count() == 2);
    assert!(!node.said().contains("same id"), "{}", node.said());
    assert_eq!(node.end(), Some(0));
}
