//! The children of a fleet member that are not the work of a shard: the command that prints the shards, and the health check.
//! They survive the death of the guard and the end of the work.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use tenure_rig::background_process::BackgroundProcess;
use tenure_rig::command::{Sandbox, eventually, pause};

/// A shell command that records each of its runs and, while the condition `waits` holds, does not end before the file `go`
/// exists.
struct Script<'a> {
    sandbox: &'a Sandbox,
    name: &'a str,
}

impl Script<'_> {
    fn file(&self, what: &str) -> PathBuf {
        self.sandbox.path().join(format!("{}-{what}", self.name))
    }

    fn line(&self, waits: &str, then: &str) -> String {
        let [pids, go, done] = ["pids", "go", "done"].map(|what| self.file(what));
        let [pids, go, done] = [&pids, &go, &done].map(|path| path.display());
        // It also ends when the sandbox of a failed test is removed.
        format!(
            "echo $$ >> {pids}; while [ -e {pids} ] && {waits} && [ ! -e {go} ]; do sleep 0.05; done; \
             {then} && echo $$ >> {done}"
        )
    }

    /// The process ids of the shells, in the order of their start.
    fn pids(&self) -> Vec<i32> {
        numbers(&self.file("pids"))
    }

    /// The process ids of the shells that ran to their end.
    fn done(&self) -> Vec<i32> {
        numbers(&self.file("done"))
    }

    fn go(&self) {
        fs::write(self.file("go"), "").unwrap();
    }
}

fn numbers(path: &PathBuf) -> Vec<i32> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The last line may be incomplete.
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.parse().ok()).collect()
}

fn start(sandbox: &Sandbox, args: &[&str]) -> BackgroundProcess {
    let mut command = sandbox.command(&["fleet", "run", "poll", "--node-id", "a"]);
    command.env("TENURE_LOCK_DIR", sandbox.path().join("leases")).args(args);
    BackgroundProcess::start(&mut command, sandbox.path(), "a")
}

fn guard(sandbox: &Sandbox) -> Option<i32> {
    let guards = sandbox.running(&["guard-many"]);
    guards.first()?.file_name()?.to_str()?.parse().ok()
}

#[test]
fn a_shards_command_and_a_health_check_survive_the_death_of_the_guard() {
    let sandbox = Sandbox::new();
    let shards = Script { sandbox: &sandbox, name: "shards" };
    let health = Script { sandbox: &sandbox, name: "health" };
    let shards_line = shards.line("true", "printf 's1\\ns2\\n'");
    let health_line = health.line("true", "true");
    let node = start(
        &sandbox,
        &[
            "--shards-command",
            &shards_line,
            "--health",
            &health_line,
            "--health-every",
            "1m",
            "--mock",
            "--every",
            "1h",
        ],
    );
    eventually("both run", || shards.pids().len() == 1 && health.pids().len() == 1);
    eventually("there is a guard", || guard(&sandbox).is_some());
    let first = guard(&sandbox).unwrap();
    kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    // The member starts another guard after it has killed everything that the first one left.
    eventually("there is another", || guard(&sandbox).is_some_and(|pid| pid != first));
    shards.go();
    health.go();
    eventually("both end by themselves", || shards.done().len() == 1 && health.done().len() == 1);
    assert_eq!((shards.done(), health.done()), (shards.pids(), health.pids()), "{}", node.log());
    node.says("endpoint=s1");
    node.says("endpoint=s2");
    assert!(!node.log().contains("cannot be run"), "{}", node.log());
    assert_eq!(node.end(), Some(0));
    eventually("no process is left", || sandbox.processes().is_empty());
}

#[test]
fn a_shards_command_survives_the_end_of_unguarded_work() {
    let sandbox = Sandbox::new();
    let shards = Script { sandbox: &sandbox, name: "shards" };
    // The first run prints the list at once, the second waits.
    let waits = format!("[ $(wc -l < {}) -gt 1 ]", shards.file("pids").display());
    let line = shards.line(&waits, "echo s1");
    let work = format!("echo {{}} >> {}; sleep 0.2", sandbox.marks().display());
    let node = start(
        &sandbox,
        &[
            "--no-guard",
            "--shards-command",
            &line,
            "--reread",
            "300ms",
            "--every",
            "500ms",
            "--",
            "sh",
            "-c",
            &work,
        ],
    );
    eventually("the second run waits", || shards.pids().len() == 2);
    let before = sandbox.marked().len();
    eventually("work has ended beside it", || sandbox.marked().len() >= before + 4);
    pause(Duration::from_millis(200));
    shards.go();
    eventually("it ends by itself", || shards.done().len() >= 2);
    assert_eq!(shards.done()[..2], shards.pids()[..2], "{}", node.log());
    assert_eq!(node.end(), Some(0));
    eventually("no process is left", || sandbox.processes().is_empty());
}
