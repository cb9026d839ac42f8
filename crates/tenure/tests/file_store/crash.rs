//! F30 and F31: every system call of the protocol fails, or is the last before a crash.

use std::process::{Command, Stdio};

use tenure::Ended;
use tenure::store::{Scope, Store};

use crate::child::{ChildProcess, command};
use crate::fixture::{LONG, Scratch, acquire, claim, name, open, wait};
use crate::{Check, Needs, check};

pub(crate) const CHECKS: &[(&str, Needs, Check)] = &[
    check!(crash_at_every_call_leaves_the_old_or_the_new_record, Strace),
    check!(failure_of_every_call_neither_grants_nor_frees, Strace),
    check!(nothing_is_reported_before_it_is_on_disk, Strace),
];

/// The system calls of the protocol that a starting program does not make. Each kind is counted separately.
const CALLS: &[&str] =
    &["mkdirat", "flock", "fchmod", "pwrite64", "fsync", "renameat", "renameat2", "unlinkat"];

pub(crate) fn can_trace() -> bool {
    let mut strace = Command::new("strace");
    strace.args(["-o", "/dev/null", "-e", "trace=none", "true"]).stderr(Stdio::null());
    strace.status().is_ok_and(|status| status.success())
}

/// The result of one run of every operation.
struct Run {
    lines: Vec<String>,
    /// The process ended by itself.
    ended: bool,
    /// The fault was injected.
    hit: bool,
}

impl Run {
    fn held(&self) -> Option<u64> {
        self.lines.iter().find_map(|line| line.strip_prefix("held ")?.parse().ok())
    }

    fn released(&self) -> bool {
        self.lines.iter().any(|line| line == "release done")
    }
}

/// Runs every operation once, with `fault` at the n-th `call`.
fn cycle(scratch: &Scratch, call: &str, fault: &str, n: u32) -> Run {
    let inner = command("cycle", &scratch.store());
    let trace = scratch.path().join("trace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(&trace);
    strace.args(["-e", &format!("trace={call}")]);
    strace.args(["-e", &format!("inject={call}:{fault}:when={n}")]);
    strace.arg(inner.get_program()).stderr(Stdio::null());
    strace.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let mut other = ChildProcess::start(&mut strace);
    let mut lines = Vec::new();
    while let Some(line) = other.next_line() {
        lines.push(line);
    }
    let ended = other.process.wait().expect("it ends").success();
    let trace = std::fs::read_to_string(trace).unwrap_or_default();
    Run { lines, ended, hit: !ended || trace.contains("INJECTED") }
}

/// Runs `check` for every occurrence of every kind of call, until a run makes fewer calls.
fn sweep(fault: &str, mut check: impl FnMut(&Run, &str, &str)) -> u32 {
    let mut points = 0;
    for call in CALLS {
        for n in 1.. {
            let scratch = Scratch::new();
            let run = cycle(&scratch, call, fault, n);
            let what = format!("{fault} at {call} {n}: {:?}", run.lines);
            check_store(&scratch, &run, &what);
            check(&run, call, &what);
            if !run.hit {
                break;
            }
            points += 1;
        }
    }
    points
}

/// After any fault the record is complete, and the next candidate leads at once with a greater token.
fn check_store(scratch: &Scratch, run: &Run, what: &str) {
    wait(async {
        let store = open(&scratch.store()).await.expect(what);
        for lease in store.observe(&Scope::name(&name())).await.expect(what) {
            lease.unwrap_or_else(|error| panic!("{error} after {what}"));
        }
        let answer = acquire(&store, &claim("b", LONG)).await.expect(what);
        let grant =
            answer.held().unwrap_or_else(|| panic!("a dead holder still holds after {what}"));
        assert!(Some(grant.hold.token.get()) > run.held(), "{what}");
        let before = grant.lineage.before;
        match run.held() {
            Some(token) if run.released() => {
                assert!(matches!(before, Ended::Released(last) if last.get() == token), "{what}");
            }
            // No lease that was reported as held is lost: the holder died, or its release took effect without an answer.
            Some(token) => {
                let died = matches!(before, Ended::Died(_) | Ended::Released(_));
                let known = died && before.token().is_some_and(|last| last.get() == token);
                assert!(known, "{before:?} after {what}");
            }
            None => {}
        }
    });
}

fn crash_at_every_call_leaves_the_old_or_the_new_record() {
    let points = sweep("signal=KILL", |_, _, _| ());
    assert!(points > 30, "only {points} calls were hit");
    eprintln!("{points} points");
}

fn failure_of_every_call_neither_grants_nor_frees() {
    let mut points = 0;
    for errno in ["EIO", "ENOSPC", "EROFS"] {
        points += sweep(&format!("error={errno}"), |run, call, what| {
            assert!(run.ended, "{what}");
            let known = |line: &String| {
                let outcomes = [" done", " Unavailable"];
                line.starts_with("held ") || outcomes.iter().any(|end| line.ends_with(end))
            };
            assert!(run.lines.iter().all(known), "{what}");
            let written = ["fsync", "renameat", "pwrite64"].contains(&call);
            let reported_error = run.lines.iter().any(|line| line.ends_with(" Unavailable"));
            assert!(reported_error || !(written && run.hit), "no error was reported for {what}");
        });
    }
    assert!(points > 90, "only {points} calls were hit");
    eprintln!("{points} points");
}

/// The record is synced before it is renamed, the directory after, and only then is the result reported.
fn nothing_is_reported_before_it_is_on_disk() {
    let scratch = Scratch::new();
    let inner = command("cycle", &scratch.store());
    let trace = scratch.path().join("trace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-qq", "-e", "trace=fsync,renameat,write", "-o"]).arg(&trace);
    strace.arg(inner.get_program()).stdout(Stdio::null());
    strace.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
    assert!(strace.status().expect("started").success());
    let trace = std::fs::read_to_string(trace).expect("readable");
    let mut calls = Vec::new();
    for line in trace.lines() {
        let reported = |what: &str| line.contains("write(1<") && line.contains(what);
        match line {
            _ if line.contains("fsync(") && line.contains("/store/tmp/") => {
                calls.push("sync record")
            }
            _ if line.contains("fsync(") && line.contains("/leases>") => calls.push("sync leases"),
            _ if line.contains("renameat(") => calls.push("rename"),
            _ if reported("held") || reported("save") || reported("release") => calls.push("say"),
            // A renewal is only reported, not synced.
            _ => {}
        }
    }
    let once = ["sync record", "rename", "sync leases", "say"];
    assert_eq!(calls, once.repeat(3), "{trace}");
}
