//! `tenure run`: the command it runs, exit codes, messages, and what it leaves behind.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::local_candidates::{Fixture, NAME};
use tenure_rig::command::{CommandResult, Sandbox, deny_open_files, eventually, signal};

/// Runs `tenure run NAME …` on the sandbox's own directory.
fn run(sandbox: &Sandbox, args: &[&str]) -> CommandResult {
    CommandResult::new(sandbox.candidate(NAME, "a", args).output().unwrap())
}

/// Starts the same in the background, with pipes.
fn start(sandbox: &Sandbox, args: &[&str]) -> Child {
    sandbox
        .candidate(NAME, "a", args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn done(child: Child) -> CommandResult {
    CommandResult::new(child.wait_with_output().unwrap())
}

/// Asserts that no process is left; the directory may be.
#[track_caller]
fn assert_no_process_left(sandbox: &Sandbox) {
    eventually("no process is left", || sandbox.processes().is_empty());
}

// ---- one test for each exit code ----

#[test]
fn the_exit_code_of_the_command_is_passed_through() {
    let sandbox = Sandbox::new();
    run(&sandbox, &["--", "true"]).exits(0);
    run(&sandbox, &["--", "sh", "-c", "exit 7"]).exits(7);
    run(&sandbox, &["--", "sh", "-c", "kill -9 $$"]).exits(137);
    run(&sandbox, &["--no-guard", "--", "sh", "-c", "exit 7"]).exits(7);
    assert_no_process_left(&sandbox);
}

#[test]
fn a_signal_without_a_running_command_is_exit_0() {
    let fixture = Fixture::new();
    let _leader = fixture.leader(NAME, "b");
    for sent in [Signal::INT, Signal::TERM] {
        let child = start(&fixture.sandbox, &["--", "sleep", "60"]);
        eventually("it waits", || !fixture.sandbox.processes().is_empty());
        // Signals are caught before the first line is logged, so wait for that.
        let mut child = child;
        let stderr = child.stderr.as_mut().unwrap();
        wait_for(stderr, "started");
        signal(&child, sent);
        done(child).exits(0);
    }
    assert_no_process_left(&fixture.sandbox);
}

#[test]
fn a_wait_that_times_out_is_120() {
    let fixture = Fixture::new();
    let _leader = fixture.leader(NAME, "b");
    let at_once = run(&fixture.sandbox, &["--wait", "0s", "--", "sleep", "60"]);
    at_once.exits(120).complains("Gave up after --wait 0s: b leads");
    let later = run(&fixture.sandbox, &["--wait", "300ms", "--", "sleep", "60"]);
    later.exits(120).complains("Gave up after --wait 300ms: b leads");
}

#[test]
fn lost_leadership_with_once_is_121() {
    let fixture = Fixture::new();
    let child = start(&fixture.sandbox, &["--once", "--", "sleep", "60"]);
    eventually("it leads", || fixture.run(&["status", NAME]).code == Some(0));
    fixture.run(&["resign", NAME]).exits(0);
    done(child).exits(121).complains("Lost leadership: asked to resign");
    assert_no_process_left(&fixture.sandbox);
}

#[test]
fn a_store_that_cannot_be_reached_is_122() {
    let sandbox = Sandbox::new();
    let args = ["run", NAME, "--wait", "0s", "--store", "redis://127.0.0.1:1", "--", "true"];
    if cfg!(feature = "redis") {
        sandbox.run(&args).exits(122).complains("Is Redis running?");
    }
}

#[test]
fn a_corrupt_lease_is_123() {
    let sandbox = Sandbox::new();
    run(&sandbox, &["--", "true"]).exits(0);
    let records = sandbox.path().join("leases").join("leases");
    fs::write(records.join(format!("{NAME}.lease")), "garbage").unwrap();
    run(&sandbox, &["--", "true"]).exits(123).complains("billing:nightly");
}

#[test]
fn nothing_to_run_or_two_things_is_125_with_a_hint() {
    let sandbox = Sandbox::new();
    run(&sandbox, &[]).exits(125).complains("'tenure run NAME -- CMD'").complains("--mock");
    run(&sandbox, &["--mock", "--", "true"]).exits(125).complains("give one of them");
    sandbox.run(&["run", "--", "true"]).exits(125).complains("'tenure run NAME -- CMD'");
    run(&sandbox, &["--lock-name", "b", "--", "true"]).exits(125).complains("give one");
    sandbox.run(&["run", "a", "true"]).exits(125).complains("'tenure run NAME -- CMD ARG'");
    sandbox.run(&["run", "a b", "--", "true"]).exits(125).complains("a b");
    sandbox.run(&["run", "tenure:x", "--", "true"]).exits(125).complains("choose another");
    run(&sandbox, &["--lease-duration", "5", "--", "true"]).exits(125).complains("5s for seconds");
    let backwards = ["--lease-duration", "1s", "--renew-interval", "2s", "--", "true"];
    run(&sandbox, &backwards).exits(125).complains("must be shorter than the lease");
    sandbox
        .run(&["run", "a", "--store", "memory:", "--", "true"])
        .exits(125)
        .complains("one process");
    let output = run(&sandbox, &["--json", "--mock", "--", "true"]).exits(125).stderr.clone();
    let output: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(output["error"]["kind"], "invalid");
}

#[test]
fn a_command_that_cannot_be_run_is_126_and_one_not_found_127_before_a_campaign() {
    let sandbox = Sandbox::new();
    for guard in [&[][..], &["--no-guard"]] {
        let with = |command: &str| run(&sandbox, &[guard, &["--", command]].concat());
        with("/etc/passwd").exits(126).complains("'/etc/passwd' cannot be run");
        with("no-such-command").exits(127).complains("'no-such-command' is not found");
        with("/no/such").exits(127);
    }
    assert!(!sandbox.path().join("leases").exists(), "nothing was tried");
}

#[test]
fn a_command_that_exec_refuses_is_126_too() {
    let sandbox = Sandbox::new();
    let script = sandbox.path().join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    for guard in [&[][..], &["--no-guard"]] {
        let ran = run(&sandbox, &[guard, &["--", script.to_str().unwrap()]].concat());
        ran.exits(126).complains("cannot be run: its interpreter is not found");
    }
    assert_no_process_left(&sandbox);
}

// ---- environment, arguments and signals of the command ----

#[test]
fn the_command_gets_three_tenure_variables_and_all_others() {
    let sandbox = Sandbox::new();
    for guard in [&[][..], &["--no-guard"]] {
        let mut command = sandbox.candidate(NAME, "a", &[guard, &["--", "env"]].concat());
        command.env("REDIS_URL", "redis://elsewhere").env("TENURE_STOP_WITHIN", "300ms");
        let ran = CommandResult::new(command.output().unwrap());
        ran.exits(0).says("REDIS_URL=redis://elsewhere").says("TENURE_NAME=billing:nightly");
        let mut tenure_variables: Vec<&str> =
            ran.stdout.lines().filter(|l| l.starts_with("TENURE_")).collect();
        tenure_variables.sort_unstable();
        let names: Vec<_> =
            tenure_variables.iter().map(|line| line.split('=').next().unwrap()).collect();
        assert_eq!(names, ["TENURE_CANDIDATE", "TENURE_NAME", "TENURE_TOKEN"]);
        assert_eq!(tenure_variables[0], "TENURE_CANDIDATE=a");
    }
}

#[test]
fn stdin_and_arguments_are_passed_unchanged() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.candidate(
        NAME,
        "a",
        &["--", "sh", "-c", "cat; printf '%s|' \"$@\"", "x", "a b", "--once"],
    );
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hello ").unwrap();
    done(child).exits(0).says("hello a b|--once|");
}

#[test]
fn signals_are_forwarded_to_the_command() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo usr1' USR1; trap 'echo term; exit 5' TERM; echo ready; \
                  while :; do sleep 0.01; done";
    for guard in [&[][..], &["--no-guard"]] {
        let mut child = start(&sandbox, &[guard, &["--", "sh", "-c", script]].concat());
        let stdout = child.stdout.as_mut().unwrap();
        wait_for(stdout, "ready");
        signal(&child, Signal::USR1);
        wait_for(child.stdout.as_mut().unwrap(), "usr1");
        signal(&child, Signal::TERM);
        done(child).exits(5).says("term").complains("Released leadership: reason=shutdown");
    }
    assert_no_process_left(&sandbox);
}

#[test]
fn a_command_killed_by_a_forwarded_signal_is_128_plus_its_number() {
    let sandbox = Sandbox::new();
    let mut child = start(&sandbox, &["--", "sh", "-c", "echo ready; exec sleep 60"]);
    wait_for(child.stdout.as_mut().unwrap(), "ready");
    signal(&child, Signal::TERM);
    done(child).exits(143);
    assert_no_process_left(&sandbox);
}

#[test]
fn a_second_interrupt_kills_the_command() {
    let sandbox = Sandbox::new();
    let mut child =
        start(&sandbox, &["--", "sh", "-c", "trap '' INT; echo ready; sleep 60; sleep 60"]);
    wait_for(child.stdout.as_mut().unwrap(), "ready");
    signal(&child, Signal::INT);
    // Two signals that arrive together count as one.
    let stderr = child.stderr.take();
    eventually("it took the first", || sandbox.processes().len() >= 3);
    std::thread::yield_now();
    eventually("it is gone after another", || {
        signal(&child, Signal::INT);
        sandbox.processes().len() <= 1
    });
    drop(stderr);
    done(child).exits(137);
}

// ---- the end of a term ----

#[test]
fn descendants_of_the_command_are_killed_before_the_release() {
    let sandbox = Sandbox::new();
    let script = "sleep 60 & setsid sleep 60 & (setsid sh -c 'trap \"\" TERM; sleep 60; sleep 60' &) ; exit 3";
    for guard in [&[][..], &["--no-guard"]] {
        let timing = ["--stop-within", "300ms"];
        run(&sandbox, &[guard, &timing, &["--", "sh", "-c", script]].concat()).exits(3);
        assert_no_process_left(&sandbox);
    }
}

#[test]
fn a_resign_request_stops_the_command_and_the_candidate_campaigns_again() {
    let fixture = Fixture::new();
    let marks = fixture.sandbox.path().join("marks");
    let script = format!("echo $TENURE_TOKEN >> {}; exec sleep 60", marks.display());
    let child = start(&fixture.sandbox, &["--", "sh", "-c", &script]);
    eventually("it leads", || fixture.run(&["status", NAME]).code == Some(0));
    let terms = || fs::read_to_string(&marks).unwrap_or_default().lines().count();
    eventually("it works", || terms() == 1);
    // There is no other candidate, so it leads again, in a new term.
    let resigned = fixture.run(&["resign", NAME]);
    resigned.exits(1).says("a handed over, but no other candidate was ready (none is running)");
    eventually("it works again", || terms() == 2);
    signal(&child, Signal::TERM);
    done(child)
        .exits(143)
        .complains("Lost leadership: asked to resign")
        .complains("Released leadership: reason=asked");
    let tokens = fs::read_to_string(&marks).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().unwrap()).collect();
    assert!(tokens[0] < tokens[1], "{tokens:?}");
    assert_no_process_left(&fixture.sandbox);
}

#[test]
fn the_hook_runs_after_the_work_and_before_the_release() {
    let sandbox = Sandbox::new();
    let (marks, lease) = (sandbox.path().join("marks"), sandbox.path().join("leases"));
    let hook = format!(
        "echo lost $TENURE_NAME >> {}; {} --lock-dir {} status {NAME} >> {}",
        marks.display(),
        env!("CARGO_BIN_EXE_tenure"),
        lease.display(),
        marks.display()
    );
    let work = format!("echo work >> {}", marks.display());
    run(&sandbox, &["--on-lose", &hook, "--", "sh", "-c", &work]).exits(0);
    let marks = fs::read_to_string(marks).unwrap();
    assert!(marks.starts_with("work\nlost billing:nightly\n"), "{marks}");
    assert!(marks.contains("billing:nightly  a "), "a still holds it: {marks}");
}

#[test]
fn a_hook_that_hangs_is_killed() {
    let sandbox = Sandbox::new();
    run(&sandbox, &["--on-lose", "sleep 60", "--", "true"]).exits(0);
    assert_no_process_left(&sandbox);
}

#[test]
fn without_a_guard_the_hook_runs_too() {
    let sandbox = Sandbox::new();
    let mark = sandbox.path().join("mark");
    let hook = format!("touch {}", mark.display());
    run(&sandbox, &["--no-guard", "--on-lose", &hook, "--", "true"]).exits(0);
    assert!(mark.exists());
}

#[test]
fn a_revoked_leader_reports_only_the_revocation() {
    let fixture = Fixture::new();
    let child = start(&fixture.sandbox, &["--once", "--", "sleep", "60"]);
    eventually("it leads", || fixture.run(&["status", NAME]).code == Some(0));
    fixture.run(&["revoke", NAME, "--yes"]).exits(0);
    let ran = done(child);
    ran.exits(121)
        .complains("Lost leadership: revoked, or taken by another candidate with this id");
    for never in ["ids should be unique", "frozen", "died"] {
        assert!(!ran.stderr.contains(never), "{}", ran.stderr);
    }
    assert_no_process_left(&fixture.sandbox);
}

#[test]
fn a_candidate_that_was_never_healthy_never_leads() {
    let sandbox = Sandbox::new();
    let gate = ["--health", "false", "--health-every", "50ms", "--wait", "500ms"];
    let ran = run(&sandbox, &[&gate[..], &["--", "echo", "ran"]].concat());
    assert_eq!(ran.exits(120).stdout, "");
}

#[test]
fn only_healthy_candidates_lead() {
    let fixture = Fixture::new();
    let healthy = fixture.sandbox.path().join("fit");
    fs::write(&healthy, "").unwrap();
    let health = format!("test -e {}", healthy.display());
    let gate = ["--health", &health, "--health-every", "50ms", "--health-fails", "2"];
    let child = start(&fixture.sandbox, &[&gate[..], &["--", "sleep", "60"]].concat());
    let leads = || fixture.run(&["status", NAME]).code == Some(0);
    eventually("it leads", leads);
    fs::remove_file(&healthy).unwrap();
    eventually("it does not lead", || !leads());
    fs::write(&healthy, "").unwrap();
    eventually("it leads again", leads);
    signal(&child, Signal::TERM);
    done(child).complains("Lost leadership: the health command fails");
    assert_no_process_left(&fixture.sandbox);
}

// ---- messages ----

#[test]
fn log_lines_beside_a_command_have_a_prefix() {
    let sandbox = Sandbox::new();
    let ran = run(&sandbox, &["--", "sh", "-c", "echo out; echo err >&2"]);
    ran.exits(0).complains("err\n");
    assert_eq!(ran.stdout, "out\n");
    let leases = sandbox.path().join("leases");
    let first = format!(
        "tenure: tenure {}: billing:nightly as a on file:{} (from TENURE_LOCK_DIR), TTL 4s, grade ",
        env!("CARGO_PKG_VERSION"),
        leases.display()
    );
    assert!(ran.stderr.starts_with(&first), "{}", ran.stderr);
    let lines: Vec<&str> = ran.stderr.lines().filter(|line| *line != "err").collect();
    assert!(lines.iter().all(|line| line.starts_with("tenure: ")), "{lines:#?}");
    assert!(lines[0].ends_with(", this machine only"), "{}", lines[0]);
    for says in [
        "✅ [a] Leader election started. Press Ctrl+C to stop",
        "[a] Successfully acquired leadership (token 1",
        "🎉 [a] BECAME LEADER - Starting leadership duties",
        "[a] Released leadership: reason=ended",
    ] {
        ran.complains(says);
    }
}

#[test]
fn logs_as_json_are_one_object_a_line_and_quiet_is_quiet() {
    let sandbox = Sandbox::new();
    let ran = run(&sandbox, &["--log-format", "json", "--", "true"]);
    let events: Vec<String> = ran.stderr.lines().map(event).collect();
    assert_eq!(events, ["first", "started", "acquired", "became", "released"]);
    assert_eq!(run(&sandbox, &["-q", "--", "true"]).exits(0).stderr, "");
}

fn event(line: &str) -> String {
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["candidate"], "a");
    line["event"].as_str().unwrap().to_owned()
}

#[test]
fn a_mock_continues_the_count_of_the_last_leader() {
    let sandbox = Sandbox::new();
    let mut last = 0;
    for _ in 0..2 {
        let mut child = start(&sandbox, &["--mock", "--every", "1s", "--heartbeat", "50ms"]);
        let stderr = child.stderr.as_mut().unwrap();
        let mut output = wait_for(stderr, "[a] poll ");
        let beat = "👑 [a] Status: LEADER - Heartbeat at ";
        if !output.contains(beat) {
            output += &wait_for(stderr, beat);
        }
        signal(&child, Signal::INT);
        let ran = done(child);
        ran.exits(0).complains("Released leadership: reason=shutdown");
        output += &ran.stderr;

        // On a slow machine there may be more than one poll.
        let counts = output.lines().filter_map(|line| line.strip_prefix("[a] poll "));
        let counts: Vec<u32> = counts.map(|count| count.parse().unwrap()).collect();
        let expected: Vec<u32> = (last + 1..).take(counts.len().max(1)).collect();
        assert_eq!(counts, expected, "{output}");
        last += u32::try_from(counts.len()).unwrap();
    }
    assert_no_process_left(&sandbox);
}

#[test]
fn an_unreachable_store_delays_the_exit_only_briefly() {
    let sandbox = Sandbox::new();
    let script = "echo ready; exec sleep 60";
    let mut child = start(&sandbox, &["--lease-duration", "60s", "--", "sh", "-c", script]);
    wait_for(child.stdout.as_mut().unwrap(), "ready");
    deny_open_files(child.id());
    signal(&child, Signal::TERM);
    done(child).exits(143).complains("what could not be given back runs out by itself");
    assert_no_process_left(&sandbox);
}

#[test]
fn no_guard_is_warned_about() {
    let sandbox = Sandbox::new();
    run(&sandbox, &["--no-guard", "--", "true"])
        .exits(0)
        .complains("runs on beside the next leader");
}

#[test]
fn users_cannot_start_the_guard() {
    let sandbox = Sandbox::new();
    sandbox.run(&["guard"]).exits(123).complains("only 'tenure run' may start it");
    sandbox.run(&["guard-many"]).exits(123).complains("only 'tenure fleet run' may start it");
    sandbox.run(&["guard-child"]).exits(125).complains("only 'tenure run' may start guard-child");
}

/// Reads until `text` has come; returns everything read.
#[track_caller]
fn wait_for(from: &mut impl Read, text: &str) -> String {
    let (mut output, mut byte) = (Vec::new(), [0]);
    while !String::from_utf8_lossy(&output).contains(text) {
        let read = from.read(&mut byte).unwrap();
        assert!(read > 0, "no {text:?} in {}", String::from_utf8_lossy(&output));
        output.push(byte[0]);
    }
    String::from_utf8_lossy(&output).into_owned()
}
