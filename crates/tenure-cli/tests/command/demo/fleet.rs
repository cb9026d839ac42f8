//! `tenure demo --fleet`: shares are even after each event, and nothing is left behind.

use std::io::{BufRead, BufReader, Read};
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use tenure_rig::command::{CommandResult, Sandbox, eventually, signal};

#[test]
fn shares_are_even_after_each_event_and_only_necessary_moves_happen() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["demo", "--fleet", "--json"]);
    let answer = ran.exits(0).json();
    assert_eq!((&answer["ok"], &answer["complete"]), (&true.into(), &true.into()), "{answer}");
    assert_eq!((&answer["nodes"], &answer["shards"]), (&3.into(), &30.into()));
    assert_eq!((&answer["ttlMs"], &answer["error"]), (&2_000.into(), &Value::Null));
    let events = answer["events"].as_array().unwrap();
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["start", "kill", "join", "leave"]);
    let expected = [
        r#"{"m1":10,"m2":10,"m3":10}"#,
        r#"{"m2":15,"m3":15}"#,
        r#"{"m2":10,"m3":10,"m4":10}"#,
        r#"{"m3":15,"m4":15}"#,
    ];
    for (event, expected) in events.iter().zip(expected) {
        assert_eq!(event["shares"].to_string(), expected, "{event}");
        assert_eq!((&event["overlaps"], &event["trouble"]), (&0.into(), &Value::Null), "{event}");
        assert!(event["allAtWorkMs"].as_f64().unwrap() > 0.0, "{event}");
    }
    for event in &events[1..] {
        assert_eq!((&event["moved"], &event["besides"]), (&10.into(), &0.into()), "{event}");
        assert!(event["unownedMs"].as_f64() >= event["unownedMedianMs"].as_f64(), "{event}");
        assert!(event["pid"].is_u64(), "{event}");
    }
    assert_eq!(answer["overlaps"], 0);
    assert!(answer["terms"].as_u64().unwrap() >= 60, "{answer}");
    assert!(answer["effects"].as_u64().unwrap() > 300, "{answer}");
    sandbox.assert_nothing_left();
}

#[test]
fn text_output_in_a_pipe_has_no_escape_codes() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["demo", "--fleet", "--nodes", "2"]);
    ran.exits(0)
        .says("a fleet of 2 members and 30 shards, TTL 2s")
        .says("✅ [m2] Fleet member started, process ")
        .says("   m1 15, m2 15\n")
        .says("   15/15, every shard at work after ")
        .says("1. m1 is killed")
        .says("By hand: kill -9 ")
        .says("   30 after ")
        .says("2. m3 joins")
        .says("   m2 15, m3 15\n")
        .says("15 shards moved")
        .says("3. m2 is asked to stop")
        .says("By hand: kill -TERM ")
        .says("what happened     shares        all at work (ms)   moved   besides   unowned (ms)   overlaps")
        .says("2 members start   15/15 ")
        .says("m1 is killed      30 ")
        .says("m3 joins          15/15 ")
        .says("m2 leaves         30 ")
        .says(": 0 while another member was at the same shard")
        .says("Next:")
        .says("tenure fleet run ")
        .says("docs/GUIDE.md");
    assert!(!ran.stdout.contains('\x1b'), "{}", ran.stdout);
    sandbox.assert_nothing_left();
}

#[test]
fn faults_of_an_election_are_refused() {
    let sandbox = Sandbox::new();
    for fault in ["kill", "kill,term,freeze", "none,kill"] {
        let ran = sandbox.run(&["demo", "--fleet", "--fault", fault]);
        ran.exits(125).complains("--fault is for the demo of an election");
    }
    sandbox.run(&["demo", "--help"]).exits(0).says("tenure demo --fleet");
    sandbox.assert_nothing_left();
}

#[test]
fn members_do_not_use_the_users_settings() {
    let sandbox = Sandbox::new();
    sandbox.put("tenure.toml", "http = \"127.0.0.1:1\"\n");
    let mut command = sandbox.command(&["demo", "--fleet", "--fault", "none", "--json"]);
    let command = command.env("TENURE_LEASE_DURATION", "5m").env("TENURE_SHARDS", "a,b");
    let answer = CommandResult::new(command.output().unwrap()).exits(0).json();
    assert_eq!(answer["events"][0]["shares"].to_string(), r#"{"m1":10,"m2":10,"m3":10}"#);
    assert_eq!(answer["events"].as_array().unwrap().len(), 1);
}

/// Starts a demo without events; reads its output until it contains `last`.
fn start_kept_demo(
    sandbox: &Sandbox,
    last: &str,
) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut child = sandbox.start(&["demo", "--fleet", "--fault", "none", "--keep"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut output = String::new();
    while !output.contains(last) {
        assert_ne!(lines.read_line(&mut output).unwrap(), 0, "it has ended:\n{output}");
    }
    (child, lines, output)
}

#[test]
fn keep_runs_on_with_hints_and_a_member_killed_by_hand_is_replaced() {
    let sandbox = Sandbox::new();
    let (mut child, mut lines, mut output) = start_kept_demo(&sandbox, "It goes on until Ctrl+C.");
    for command in ["fleet status demo\n", "fleet drain demo m1", "fleet pause demo shard-07"] {
        assert!(output.contains(command), "{output}");
    }
    let (_, rest) = output.split_once("[m2] Fleet member started, process ").unwrap();
    let pid = Pid::from_raw(rest.lines().next().unwrap().parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    while !output.ends_with("   m1 15, m3 15\n") {
        assert_ne!(lines.read_line(&mut output).unwrap(), 0, "it has ended:\n{output}");
    }
    assert!(output.contains("m2 was ended by hand"), "{output}");
    signal(&child, Signal::INT);
    lines.read_to_string(&mut output).unwrap();
    assert!(child.wait().unwrap().success(), "{output}");
    assert!(!output.contains("Interrupted"), "that is its end:\n{output}");
    assert!(output.contains("every member is asked to stop"), "{output}");
    assert!(output.contains("\nby hand  "), "{output}");
    sandbox.assert_nothing_left();
}

#[test]
fn ctrl_c_ends_the_demo_cleanly_at_any_moment() {
    for moment in ["no member yet", "no work yet", "all at work", "one was killed"] {
        let sandbox = Sandbox::new();
        let mut child = sandbox.start(&["demo", "--fleet", "-q"]);
        let processes = || sandbox.processes().len();
        match moment {
            "no member yet" => eventually(moment, || processes() > 0),
            "no work yet" => eventually(moment, || processes() > 3),
            _ => eventually(moment, || sandbox.running(&["demo-shard"]).len() == 30),
        }
        if moment == "one was killed" {
            eventually(moment, || sandbox.running(&["demo-shard"]).len() < 30);
        }
        signal(&child, Signal::INT);
        let code = child.wait().unwrap().code();
        let early = moment == "no member yet";
        // This early the demo may not catch the signal yet.
        assert!(code == Some(0) || early && code.is_none(), "{moment}: {code:?}");
        sandbox.assert_nothing_left();
    }
}

#[test]
fn its_members_and_their_work_end_with_the_demo_even_if_it_is_killed() {
    let sandbox = Sandbox::new();
    let mut child = sandbox.start(&["demo", "--fleet"]);
    eventually("all at work", || sandbox.running(&["demo-shard"]).len() == 30);
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    eventually("nobody is left", || sandbox.processes().is_empty());
}

#[test]
fn a_closed_stdout_ends_the_demo() {
    let sandbox = Sandbox::new();
    let (mut child, lines, _) = start_kept_demo(&sandbox, "10/10/10");
    drop(lines);
    assert!(child.wait().unwrap().success());
    sandbox.assert_nothing_left();
}

#[test]
fn a_second_worker_of_a_shard_is_detected_and_is_exit_1() {
    let sandbox = Sandbox::new();
    let (mut child, mut lines, mut output) = start_kept_demo(&sandbox, "It goes on until Ctrl+C.");
    let directory = std::fs::read_dir(sandbox.path()).unwrap().flatten().next().unwrap().path();
    let journal = directory.join("journals/shard-07");
    let mut intruder = sandbox.command(&["demo-shard", journal.to_str().unwrap()]);
    let mut intruder =
        intruder.env("TENURE_CANDIDATE", "m9").env("TENURE_TOKEN", "1").spawn().unwrap();
    eventually("it has worked", || {
        std::fs::read_to_string(&journal).unwrap().contains(" m9 1 count 2 ")
    });
    signal(&intruder, Signal::TERM);
    assert!(intruder.wait().unwrap().success());
    signal(&child, Signal::INT);
    lines.read_to_string(&mut output).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{output}");
    // Its first line, two counts and its last line.
    assert!(output.contains(" 4 while another member was at the same shard"), "{output}");
    sandbox.assert_nothing_left();
}
