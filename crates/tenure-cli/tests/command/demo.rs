//! `tenure demo`: it ends well, by itself and otherwise, and leaves nothing behind.

use rustix::process::Signal;

use crate::support::{Ran, World, eventually, signal};

#[test]
fn each_fault_is_followed_by_one_new_leader_and_no_count_is_lost() {
    let world = World::new();
    let ran = world.run(&["demo", "--json"]);
    let answer = ran.exits(0).json();
    assert_eq!(answer["ok"], true, "{answer}");
    assert_eq!(answer["complete"], true);
    let faults = answer["faults"].as_array().unwrap();
    let names: Vec<&str> = faults.iter().map(|fault| fault["fault"].as_str().unwrap()).collect();
    assert_eq!(names, ["kill", "term", "freeze"]);
    for fault in faults {
        assert_ne!(fault["node"], fault["newLeader"], "{fault}");
        assert!(fault["gapMs"].as_f64().unwrap() > 0.0, "{fault}");
        for count in ["twoLeaders", "lost", "doubled"] {
            assert_eq!(fault[count], 0, "{fault}");
        }
    }
    assert!(answer["counts"].as_u64().unwrap() > 20, "{answer}");
    world.assert_nothing_left();
}

#[test]
fn people_get_a_story_a_table_and_next_steps() {
    let world = World::new();
    let ran = world.run(&["demo", "--nodes", "2", "--fault", "kill,term"]);
    ran.exits(0)
        .says("BECAME LEADER")
        .says("By hand: kill -9 ")
        .says("By hand: kill -TERM ")
        .says("reason=shutdown")
        .says("fault     gap (ms)   two leaders at once   counter lost or doubled")
        .says("Next:");
    assert_eq!(ran.stderr, "", "nothing to complain about");
    world.assert_nothing_left();
}

#[test]
fn with_keep_the_directory_stays_and_is_named() {
    let world = World::new();
    let ran = world.run(&["demo", "--fault", "none", "--keep", "-q"]);
    let kept = ran.exits(0).stdout.lines().find_map(|line| line.strip_prefix("Kept: ")).unwrap();
    let journal = std::fs::read_to_string(format!("{kept}/journal")).unwrap();
    assert!(journal.lines().count() > 5, "{journal}");
}

/// The demo once its three processes are there, in the middle of things.
fn under_way(world: &World) -> std::process::Child {
    let child = world.start(&["demo", "--fault", "freeze"]);
    eventually("four processes", || world.processes().len() == 4);
    eventually("somebody leads", || {
        let files = std::fs::read_dir(world.path()).unwrap().flatten();
        let journals = files.map(|entry| std::fs::read_to_string(entry.path().join("journal")));
        journals.flatten().any(|journal| journal.contains(" count 2\n"))
    });
    child
}

#[test]
fn a_signal_ends_it_at_once_and_clean() {
    for stop in [Signal::INT, Signal::TERM] {
        let world = World::new();
        let child = under_way(&world);
        signal(&child, stop);
        let ran = Ran::new(child.wait_with_output().unwrap());
        ran.exits(0).says("Interrupted");
        world.assert_nothing_left();
    }
}

#[test]
fn its_processes_do_not_outlive_it_even_when_it_is_killed() {
    let world = World::new();
    let mut child = under_way(&world);
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    eventually("nobody is left", || world.processes().is_empty());
}

#[test]
fn nobody_reading_ends_it() {
    let world = World::new();
    let mut child = world.start(&["demo"]);
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    world.assert_nothing_left();
}
