//! Work on a schedule: each slot starts once, regardless of the leader, and an interrupted run is reported.
//!
//! A process here cannot get a different clock without a library between it and the kernel. `src/schedule/planner_tests.rs`,
//! where time is an argument, tests what different clocks mean for slots and for `--once`.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use tenure_rig::background_process::BackgroundProcess;
use tenure_rig::command::{CommandResult, Sandbox, eventually, pause};
use tenure_rig::http_peer::{PollTarget, get};

const NAME: &str = "shop:report";
/// A period of which no test reaches a second slot.
const LONG_PERIOD: &str = "365d";

fn run(sandbox: &Sandbox, args: &[&str]) -> CommandResult {
    CommandResult::new(sandbox.candidate(NAME, "a", args).output().unwrap())
}

/// The lease as `tenure status` shows it.
fn status(sandbox: &Sandbox) -> Value {
    let mut command = sandbox.command(&["status", NAME, "--json"]);
    let ran = command.env("TENURE_LOCK_DIR", sandbox.path().join("leases")).output();
    CommandResult::new(ran.unwrap()).json()
}

/// A script that records its candidate, and continues with `then`.
fn work(sandbox: &Sandbox, then: &str) -> String {
    format!("echo $TENURE_CANDIDATE >> {}; {then}", sandbox.marks().display())
}

#[test]
fn each_slot_runs_once_and_is_counted() {
    let sandbox = Sandbox::new();
    let work = work(&sandbox, "true");
    let a = BackgroundProcess::candidate(
        &sandbox,
        NAME,
        "a",
        &["--http", "0", "--every", "1s", "--", "sh", "-c", &work],
    );
    eventually("three runs", || sandbox.marked().len() >= 3);
    let shown = tenure_rig::http_peer::status(a.port()).unwrap();
    assert!(shown["lastPolled"].is_string() && shown["count"].as_u64() >= Some(3), "{shown}");
    // Between two slots, so that no run is interrupted.
    eventually("it has ended", || status(&sandbox)["lastRun"]["outcome"] == "ok");
    assert_eq!(a.end(), Some(0));
    let status = status(&sandbox);
    assert_eq!(status["count"], sandbox.marked().len(), "{status}");
    assert_eq!(status["lastRun"]["by"], "a");
    assert!(status["lastRun"]["startedAt"].is_string() && status["lastRun"]["endedAt"].is_string());
}

#[test]
fn the_next_leader_continues_the_count() {
    let sandbox = Sandbox::new();
    let count = |id: &str| {
        let mut node =
            BackgroundProcess::candidate(&sandbox, NAME, id, &["--mock", "--every", "300ms"]);
        node.says(&format!("[{id}] poll "));
        pause(Duration::from_millis(700));
        node.kill();
        let log = node.log();
        let polls = log.lines().filter_map(|line| line.split_once("] poll ")?.1.parse().ok());
        polls.collect::<Vec<u64>>()
    };
    let all = [count("a"), count("b")].concat();
    let last = u64::try_from(all.len()).unwrap();
    assert_eq!(all, (1..=last).collect::<Vec<_>>(), "none is lost, none is doubled");
}

#[test]
fn a_slot_during_the_last_run_is_skipped() {
    let sandbox = Sandbox::new();
    let lock = sandbox.path().join("lock");
    let lock = lock.display();
    let alone = format!("mkdir {lock} || echo two >> {}; ", sandbox.marks().display());
    let work = work(&sandbox, &format!("{alone} sleep 1.2; rmdir {lock}"));
    let a = BackgroundProcess::candidate(
        &sandbox,
        NAME,
        "a",
        &["--http", "0", "--every", "500ms", "--", "sh", "-c", &work],
    );
    a.says("shop:report: skipped ");
    a.says(" was still going");
    eventually("it is run again", || sandbox.marked().len() >= 3);
    let metrics = get(a.port(), "/metrics").unwrap().body;
    assert!(metrics.contains("tenure_runs_total{outcome=\"skipped\"} "), "{metrics}");
    assert!(metrics.contains("tenure_runs_total{outcome=\"ok\"} "), "{metrics}");
    a.end();
    assert!(sandbox.marked().iter().all(|mark| mark == "a"), "{:?}", sandbox.marked());
}

#[test]
fn an_interrupted_run_of_a_dead_leader_is_reported_and_not_repeated() {
    let sandbox = Sandbox::new();
    interrupt(&sandbox, &[]);
    let after = status(&sandbox);
    let left = &after["lastRun"];
    assert_eq!((&left["outcome"], &left["by"]), (&"interrupted".into(), &"a".into()), "{after}");
    assert!(left["endedAt"].is_null() && after["count"] == 1, "{after}");
    pause(Duration::from_millis(500));
    assert_eq!(sandbox.marked(), ["a"], "nobody has run it again");
}

#[test]
fn an_interrupted_run_is_repeated_on_request() {
    let sandbox = Sandbox::new();
    interrupt(&sandbox, &["--interrupted", "rerun"]);
    eventually("it is run again", || sandbox.marked() == ["a", "b"]);
    eventually("it is counted", || status(&sandbox)["count"] == 2);
}

/// Kills a leader during a run; returns when the next leader has reported the interrupted run.
fn interrupt(sandbox: &Sandbox, args: &[&str]) {
    let work = work(sandbox, "sleep 60");
    let args = [args, &["--every", LONG_PERIOD, "--", "sh", "-c", &work]].concat();
    let mut a = BackgroundProcess::candidate(sandbox, NAME, "a", &args);
    eventually("it runs", || sandbox.marked() == ["a"]);
    let b = BackgroundProcess::candidate(sandbox, NAME, "b", &args);
    b.says("FOLLOWER - a leads");
    a.kill();
    b.says(" on a was interrupted; ");
    if args[0] == "--interrupted" {
        eventually("it runs again", || sandbox.marked().len() == 2);
    }
    eventually("it is noted down", || status(sandbox)["currentLeader"] == "b");
    b.signal(Signal::TERM);
}

#[test]
fn missed_slots_run_once_or_are_skipped() {
    for (missed, runs) in [("skip", 1), ("run-once", 2)] {
        let sandbox = Sandbox::new();
        let work = work(&sandbox, "true");
        let sh = ["--", "sh", "-c", &work];
        run(&sandbox, &[&["--once", "--every", LONG_PERIOD], &sh[..]].concat()).exits(0);
        // The slots of another schedule, most of which passed without a leader.
        let a = BackgroundProcess::candidate(
            &sandbox,
            NAME,
            "a",
            &[&["--every", "1h", "--missed", missed], &sh[..]].concat(),
        );
        a.says("BECAME LEADER");
        eventually("the newest is run", || sandbox.marked().len() == runs);
        pause(Duration::from_millis(700));
        assert_eq!((sandbox.marked().len(), a.end()), (runs, Some(0)));
    }
}

#[test]
fn the_same_crontab_line_on_two_hosts_is_one_run() {
    let sandbox = Sandbox::new();
    let work = work(&sandbox, "sleep 2");
    let started = ["a", "b"].map(|id| {
        let args = ["--once", "--every", LONG_PERIOD, "--", "sh", "-c", &work];
        let mut command = sandbox.candidate(NAME, id, &args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    for child in started {
        CommandResult::new(child.wait_with_output().unwrap()).exits(0);
    }
    assert_eq!(sandbox.marked().len(), 1);
    // A late candidate finds the slot done, and a candidate whose work fails reports it.
    let late = run(&sandbox, &["--once", "--every", LONG_PERIOD, "--", "sh", "-c", &work]);
    late.exits(0).complains("shop:report: the run of ").complains(" was done by ");
    late.complains(" (ok); nothing to do");
    assert!(!late.stderr.contains("BECAME LEADER"), "{}", late.stderr);
    assert_eq!(sandbox.marked().len(), 1);
    let failed = run(&sandbox, &["--once", "--every", "1h", "--", "sh", "-c", "exit 7"]);
    failed
        .exits(7)
        .complains("warning: shop:report: the run of ")
        .complains(" failed: exit code 7 after ");
    assert!(!failed.stderr.contains("next at"), "{}", failed.stderr);
}

#[test]
fn a_failed_run_is_reported_and_shown_by_status() {
    let sandbox = Sandbox::new();
    let a = BackgroundProcess::candidate(
        &sandbox,
        NAME,
        "a",
        &["--every", "2s", "--", "sh", "-c", "exit 3"],
    );
    a.says("warning: shop:report: the run of ");
    a.says(" failed: exit code 3 after ");
    a.says("s; next at ");
    eventually("it is noted down", || status(&sandbox)["lastRun"]["outcome"] == "failed");
    let mut command = sandbox.command(&["status", NAME]);
    let ran = command.env("TENURE_LOCK_DIR", sandbox.path().join("leases")).output();
    let ran = CommandResult::new(ran.unwrap());
    ran.says("\nLast run: ").says(" on a, ");
    assert!(status(&sandbox)["lastRun"]["slotAt"].is_string());
    // The end may interrupt a run, which then has its own exit code.
    a.end();
}

#[test]
fn the_hook_runs_at_the_end_of_the_term_and_not_of_a_run() {
    let sandbox = Sandbox::new();
    let (work, hook) =
        (work(&sandbox, "true"), format!("echo lost >> {}", sandbox.marks().display()));
    for guard in [&[][..], &["--no-guard"]] {
        let args = ["--on-lose", &hook, "--every", "300ms", "--", "sh", "-c", &work];
        let a = BackgroundProcess::candidate(&sandbox, NAME, "a", &[guard, &args].concat());
        eventually("three runs", || sandbox.marked().len() >= 3);
        // The end may interrupt a run.
        a.end();
        let all = sandbox.marked();
        let (last, runs) = all.split_last().unwrap();
        assert!(last == "lost" && runs.iter().all(|run| run == "a"), "{all:?}");
        fs::remove_file(sandbox.marks()).unwrap();
    }
    // A leader killed during a run cannot run the hook: its guard does.
    let long = self::work(&sandbox, "sleep 60");
    let args = ["--on-lose", &hook, "--every", "1s", "--", "sh", "-c", &long];
    let mut a = BackgroundProcess::candidate(&sandbox, NAME, "a", &args);
    eventually("it runs", || sandbox.marked() == ["a"]);
    a.kill();
    eventually("the guard has run it", || sandbox.marked() == ["a", "lost"]);
}

#[test]
fn http_polls_are_counted_and_logged_and_never_fatal() {
    let (sandbox, target) = (Sandbox::new(), PollTarget::start());
    let refused = format!("http://127.0.0.1:{}/", unused_port());
    for (url, says, outcome) in [
        (target.url("/ok"), "poll 2: HTTP 200", "ok"),
        (target.url("/bad"), " failed: HTTP 500", "failed"),
        (target.url("/elsewhere"), " failed: HTTP 302", "failed"),
        (target.url("/slow"), " failed: no answer in time", "failed"),
        (refused, " failed: cannot connect", "failed"),
    ] {
        let args = ["--get", &url, "--every", "200ms", "--timeout", "100ms"];
        let a = BackgroundProcess::candidate(&sandbox, NAME, "a", &args);
        a.says(says);
        let before = a.log().matches("] poll ").count();
        eventually("it goes on", || a.log().matches("] poll ").count() > before);
        assert_eq!(a.end(), Some(0));
        // The end may have interrupted the last run.
        let last = status(&sandbox)["lastRun"]["outcome"].clone();
        assert!(last == outcome || last == "stopped", "{url}: {last}");
    }
    let heads = target.heads();
    assert!(heads.iter().all(|head| head.contains("tenure-token: 1")), "{heads:?}");
    assert!(!heads[0].contains("cookie") && heads[0].contains("user-agent: tenure/"));
}

/// A port without a listener, which the kernel does not assign again soon.
fn unused_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn invalid_usage_is_125_before_anything_is_started() {
    let sandbox = Sandbox::new();
    for (args, says) in [
        (&["--cron", "0 25 * * *", "--", "true"][..], "--cron '0 25 * * *', character 3"),
        (&["--cron", "@dayly", "--", "true"], "character 1"),
        (&["--cron", "* * * * *", "--timezone", "Mars/Olympus", "--", "true"], "Europe/Berlin"),
        (&["--cron", "* * * * *", "--every", "5s", "--", "true"], "give one"),
        (&["--every", "0s", "--", "true"], "must not be zero"),
        (&["--every", "5", "--", "true"], "5s"),
        (&["--missed", "skip", "--", "true"], "give --every or --cron"),
        (&["--get", "ftp://a/b"], "only http and https"),
        (&["--get", "http://127.0.0.1/", "--", "true"], "give one of them"),
    ] {
        run(&sandbox, args).exits(125).complains(says);
    }
    assert!(!sandbox.path().join("leases").join("leases").exists(), "nothing was tried");
}
