//! `tenure demo`: its result, its interruption, and that it leaves nothing behind.

mod fleet;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdout};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use tenure_rig::command::{CommandResult, Sandbox, eventually, signal, status};

#[test]
fn each_fault_is_followed_by_one_new_leader_and_no_count_is_lost() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["demo", "--json"]);
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
    for (number, candidate) in (1..).zip(answer["candidates"].as_array().unwrap()) {
        assert_eq!(candidate["candidateId"], format!("node-{number}"));
        assert!(candidate["url"].as_str().unwrap().starts_with("http://127.0.0.1:3"), "{answer}");
    }
    sandbox.assert_nothing_left();
}

#[test]
fn text_output_has_progress_a_table_and_next_steps() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["demo", "--nodes", "2", "--fault", "kill,term"]);
    ran.exits(0)
        .says("BECAME LEADER")
        .says("By hand: kill -9 ")
        .says("By hand: kill -TERM ")
        .says("Look:    curl localhost:3")
        .says("connection refused: its process is gone")
        .says("reason=shutdown")
        .says("is started again")
        .says("fault     gap (ms)   two leaders at once   counter lost or doubled")
        .says("Next:")
        .says("tenure run ")
        .says("tenure status")
        .says("docs/GUIDE.md");
    assert_eq!(ran.stderr, "", "nothing to complain about");
    sandbox.assert_nothing_left();
}

/// A running demo without faults, and its output.
struct IdleDemo {
    child: Child,
    lines: BufReader<ChildStdout>,
    output: String,
    /// The process id and the port of each node.
    nodes: BTreeMap<String, (Pid, u16)>,
    /// A part of the store's URL that is unique to this demo.
    mark: String,
}

impl IdleDemo {
    /// Starts the demo; returns when all processes have started and one leads.
    fn start(sandbox: &Sandbox) -> IdleDemo {
        let mut child = sandbox.start(&["demo", "--fault", "none"]);
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mark = sandbox.path().to_str().unwrap().to_owned();
        let mut demo =
            IdleDemo { child, lines, output: String::new(), nodes: BTreeMap::new(), mark };
        while demo.nodes.len() < 3 || !demo.output.contains("BECAME LEADER") {
            demo.read_next();
        }
        demo
    }

    /// Reads one line, and records a process that has started.
    fn read_next(&mut self) {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        self.output.push_str(&line);
        assert!(!line.is_empty(), "it has ended:\n{}", self.output);
        let Some((id, rest)) = line.split_once("] Leader election started, process ") else {
            return;
        };
        let (_, id) = id.split_once('[').unwrap();
        let (pid, url) = rest.split_once(", http://localhost:").unwrap();
        let port = url.split_whitespace().next().unwrap().parse().unwrap();
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        self.nodes.insert(id.to_owned(), (pid, port));
    }

    /// The ids of the processes that report that they lead.
    fn leaders(&self) -> Vec<String> {
        // On the port of a killed process, a process of another test's demo may answer now.
        let of_this_demo = |it: &Value| it["store"].as_str().unwrap().contains(&self.mark);
        let leads = |(_, port): &(Pid, u16)| {
            status(*port).filter(of_this_demo).is_some_and(|it| it["isLeader"] == true)
        };
        self.nodes.iter().filter(|(_, node)| leads(node)).map(|(id, _)| id.clone()).collect()
    }

    fn end(self, sandbox: &Sandbox) {
        signal(&self.child, Signal::INT);
        // Read to the end: the demo must not find stdout closed.
        let IdleDemo { mut child, lines, .. } = self;
        let output: Vec<String> = lines.lines().map(Result::unwrap).collect();
        assert!(child.wait().unwrap().success(), "{output:#?}");
        sandbox.assert_nothing_left();
    }
}

#[test]
fn each_process_serves_its_status_and_exactly_one_leads() {
    let sandbox = Sandbox::new();
    let demo = IdleDemo::start(&sandbox);
    assert_eq!(demo.leaders().len(), 1);
    eventually("all know the count", || {
        demo.nodes.iter().all(|(id, (_, port))| {
            let it = status(*port).unwrap();
            assert_eq!(it["candidateId"], **id);
            // Only the leader counts, but all processes show the count.
            it["count"].as_u64() >= Some(3) && it["lastPolled"].is_string() == it["isLeader"]
        })
    });
    demo.end(&sandbox);
}

#[test]
fn a_leader_killed_by_hand_is_replaced_and_started_again() {
    let sandbox = Sandbox::new();
    let mut demo = IdleDemo::start(&sandbox);
    let leader = demo.leaders().pop().unwrap();
    let (pid, port) = demo.nodes[&leader];
    eventually("it has counted", || status(port).unwrap()["count"].as_u64() >= Some(3));
    kill_process(pid, Signal::KILL).unwrap();
    eventually("another one leads", || {
        let leaders = demo.leaders();
        leaders.len() == 1 && leaders[0] != leader
    });
    while demo.nodes[&leader].0 == pid {
        demo.read_next();
    }
    let (_, port) = demo.nodes[&leader];
    assert_eq!(status(port).unwrap()["isLeader"], false);
    demo.end(&sandbox);
}

#[test]
fn ports_in_use_are_skipped_and_reported() {
    let sandbox = Sandbox::new();
    // Other demos may run at the same time: a port that cannot be bound here is theirs, perhaps only for a moment.
    let taken: Vec<_> =
        (3000..3008).flat_map(|port| TcpListener::bind(("127.0.0.1", port))).collect();
    let demo = IdleDemo::start(&sandbox);
    let ports: Vec<u16> = demo.nodes.values().map(|(_, port)| *port).collect();
    for held in &taken {
        assert!(!ports.contains(&held.local_addr().unwrap().port()), "{ports:?}");
    }
    assert!(ports == [3000, 3001, 3002] || demo.output.contains("taken"), "{}", demo.output);
    assert_eq!(demo.leaders().len(), 1);
    demo.end(&sandbox);
}

#[test]
fn keep_leaves_the_directory_and_prints_it() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["demo", "--fault", "none", "--keep", "-q"]);
    let kept = ran.exits(0).stdout.lines().find_map(|line| line.strip_prefix("Kept: ")).unwrap();
    let journal = std::fs::read_to_string(format!("{kept}/journal")).unwrap();
    assert!(journal.lines().count() > 5, "{journal}");
}

/// Starts the demo; returns when its three processes exist.
fn start_demo(sandbox: &Sandbox) -> std::process::Child {
    let child = sandbox.start(&["demo", "--fault", "freeze"]);
    eventually("four processes", || sandbox.processes().len() == 4);
    eventually("somebody leads", || {
        let files = std::fs::read_dir(sandbox.path()).unwrap().flatten();
        let journals = files.map(|entry| std::fs::read_to_string(entry.path().join("journal")));
        let counted = |line: &str| line.trim_end().ends_with(" count 2");
        journals.flatten().any(|journal| journal.lines().any(counted))
    });
    child
}

#[test]
fn a_signal_ends_the_demo_at_once_and_cleanly() {
    for stop in [Signal::INT, Signal::TERM] {
        let sandbox = Sandbox::new();
        let child = start_demo(&sandbox);
        signal(&child, stop);
        let ran = CommandResult::new(child.wait_with_output().unwrap());
        ran.exits(0).says("Interrupted");
        sandbox.assert_nothing_left();
    }
}

#[test]
fn its_processes_end_with_the_demo_even_if_it_is_killed() {
    let sandbox = Sandbox::new();
    let mut child = start_demo(&sandbox);
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    eventually("nobody is left", || sandbox.processes().is_empty());
}

#[test]
fn a_closed_stdout_ends_the_demo() {
    let sandbox = Sandbox::new();
    let mut child = sandbox.start(&["demo"]);
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    sandbox.assert_nothing_left();
}
