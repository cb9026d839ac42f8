//! Members of a fleet whose lists of shards differ or cannot be read, and members that lost their store for a while.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use tenure_rig::background_process::BackgroundProcess;
use tenure_rig::command::{
    CommandResult, Sandbox, deny_open_files, eventually, pause, set_file_limit,
};

const SHARDS: &str = "s01,s02,s03,s04,s05,s06,s07,s08,s09,s10,s11,s12";

fn command(sandbox: &Sandbox, id: &str, source: &[&str]) -> Command {
    let mut command = sandbox.command(&["fleet", "run", "poll", "--node-id", id]);
    command.args(["--lease-duration", "2s", "--mock", "--every", "1h", "--reread", "1s"]);
    command.env("TENURE_LOCK_DIR", sandbox.path().join("leases")).args(source);
    command
}

fn start(sandbox: &Sandbox, id: &str, source: &[&str]) -> BackgroundProcess {
    BackgroundProcess::start(&mut command(sandbox, id, source), sandbox.path(), id)
}

/// `tenure fleet status`, with these arguments.
fn status(sandbox: &Sandbox, args: &[&str]) -> CommandResult {
    let mut command = sandbox.command(&["fleet", "status", "poll"]);
    command.env("TENURE_LOCK_DIR", sandbox.path().join("leases")).args(args);
    CommandResult::new(command.output().unwrap())
}

/// The number of shards that a member owns, according to its log.
fn owns(node: &BackgroundProcess) -> usize {
    let count = |text: &str| node.log().lines().filter(|line| line.contains(text)).count();
    count("Lease acquired: ") - count("Lease released: ")
}

#[test]
fn a_member_that_cannot_read_its_list_does_not_join_and_reports_why() {
    let sandbox = Sandbox::new();
    let first = start(&sandbox, "a", &["--shards", SHARDS]);
    eventually("it owns all", || owns(&first) == 12);
    let list = sandbox.path().join("list");
    let source = format!("cat {} || exit 3", list.display());
    let second = start(&sandbox, "b", &["--shards-command", &source]);
    second.says("poll: cannot list shards: the command");
    second.says("exited with 3");
    second.says("not joining the fleet, next try in 1s");
    pause(Duration::from_secs(4));
    assert_eq!(owns(&first), 12, "no shard was taken from it: {}", first.log());
    assert!(!second.log().contains("Joined the fleet"), "{}", second.log());
    fs::write(&list, SHARDS.replace(',', "\n")).unwrap();
    eventually("it has its share", || owns(&second) == 6 && owns(&first) == 6);
    assert_eq!((first.end(), second.end()), (Some(0), Some(0)));
}

#[test]
fn a_member_with_an_empty_list_or_one_line_leaves_no_shard_without_an_owner() {
    let sandbox = Sandbox::new();
    let first = start(&sandbox, "a", &["--shards", SHARDS]);
    eventually("it owns all", || owns(&first) == 12);
    let empty = sandbox.path().join("empty");
    fs::write(&empty, "").unwrap();
    let second = start(&sandbox, "b", &["--shards-file", empty.to_str().unwrap()]);
    second.says("Joined the fleet");
    pause(Duration::from_secs(3));
    assert_eq!(owns(&first), 12, "{}", first.log());
    assert_eq!(first.log().matches("Lease released: ").count(), 0, "{}", first.log());
    let third = start(&sandbox, "c", &["--shards", "s07"]);
    third.says("Joined the fleet");
    pause(Duration::from_secs(4));
    eventually("each shard has an owner", || owns(&first) + owns(&third) == 12);
    first.says("The members list different shards");
    let released = first.log().matches("Lease released: ").count();
    assert!(released <= 1, "only what c lists was given to it: {}", first.log());
    let status = |args: &[&str]| status(&sandbox, args);
    status(&[]).exits(0).says("\nThe members list different shards: a 12, b 0, c 1.\n");
    assert_eq!(status(&["--json"]).exits(0).json()["lists"], json!({"a": 12, "b": 0, "c": 1}));
    assert_eq!((first.end(), second.end(), third.end()), (Some(0), Some(0), Some(0)));
}

#[test]
fn a_removed_shard_is_not_shown_as_one_without_an_owner() {
    let sandbox = Sandbox::new();
    let list = sandbox.put("list", SHARDS.replace(',', "\n"));
    let source = ["--shards-file", list.to_str().unwrap()];
    let members = [start(&sandbox, "a", &source), start(&sandbox, "b", &source)];
    let owned = |count| members.iter().map(owns).sum::<usize>() == count;
    eventually("they own all", || owned(12));
    let new =
        sandbox.put("new", SHARDS.replace(',', "\n").replace("s03\n", "").replace("s07\n", ""));
    fs::rename(new, &list).unwrap();
    eventually("they own the rest", || owned(10));
    let status = |args: &[&str]| status(&sandbox, args);
    // Each member announces its new list a moment after reading it.
    eventually("the two are removed", || {
        status(&[]).exits(0).stdout.contains("10 shards: 10 owned. 2 removed.\n")
    });
    let text = &status(&[]).stdout;
    assert!(text.contains("\nRemoved (2)\n  s03  s07"), "{text}");
    let answer = status(&["--json"]).json();
    let removed = |shard: &&serde_json::Value| shard["removed"] == true;
    let shards = answer["shards"].as_array().unwrap();
    assert_eq!((shards.len(), shards.iter().filter(removed).count()), (12, 2), "{answer}");
    assert_eq!(members.map(BackgroundProcess::end), [Some(0), Some(0)]);
}

#[test]
fn a_member_whose_list_shrinks_to_nothing_leaves_its_shards_to_the_others() {
    let sandbox = Sandbox::new();
    let list = sandbox.put("list", SHARDS.replace(',', "\n"));
    let first = start(&sandbox, "a", &["--shards", SHARDS]);
    let second = start(&sandbox, "b", &["--shards-file", list.to_str().unwrap()]);
    eventually("each has its share", || owns(&first) == 6 && owns(&second) == 6);
    fs::rename(sandbox.put("empty", ""), &list).unwrap();
    eventually("the other owns all", || owns(&first) == 12 && owns(&second) == 0);
    pause(Duration::from_secs(4));
    assert_eq!(owns(&first), 12, "{}", first.log());
    assert_eq!((first.end(), second.end()), (Some(0), Some(0)));
}

/// While no observation succeeds, the last one is from before the outage and includes the member itself.
#[test]
fn a_member_that_lost_its_lease_in_an_outage_does_not_report_a_duplicate_id() {
    let sandbox = Sandbox::new();
    let node = start(&sandbox, "a", &["--shards", "s1,s2"]);
    eventually("it owns both", || owns(&node) == 2);
    // Moving the directory away would not be enough: the member keeps it open.
    let before = deny_open_files(node.pid());
    node.says("Left the fleet: reason=expired");
    // It checks for another member with its id 1 s after it left.
    pause(Duration::from_secs(3));
    set_file_limit(node.pid(), before);
    eventually("it is back", || node.log().matches("Joined the fleet").count() == 2);
    assert!(!node.log().contains("same id"), "{}", node.log());
    assert_eq!(node.end(), Some(0));
}
