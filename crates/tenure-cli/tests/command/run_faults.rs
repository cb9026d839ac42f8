//! `tenure run` when something around it fails: interrupts, a guard that dies repeatedly, a store that refuses checkpoints.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::local_candidates::{Fixture, NAME};
use tenure_rig::background_process::BackgroundProcess;
use tenure_rig::command::{Sandbox, deny_open_files, eventually, pause, set_file_limit, within};
use tenure_rig::slow_calls::{DELAY, SlowCalls};

fn count(node: &BackgroundProcess, text: &str) -> usize {
    node.log().matches(text).count()
}

#[test]
fn a_second_interrupt_after_two_seconds_does_not_kill() {
    let sandbox = Sandbox::new();
    let warning = "[a] Ctrl-C again within 2s kills the command";
    let marks = sandbox.marks();
    let script = format!("trap '' INT; echo ready >> {}; sleep 60; sleep 60", marks.display());
    let mut a = BackgroundProcess::candidate(&sandbox, NAME, "a", &["--", "sh", "-c", &script]);
    eventually("the command runs", || sandbox.marked() == ["ready"]);
    for presses in 1..=2 {
        a.signal(Signal::INT);
        eventually("it says what the next one does", || count(&a, warning) == presses);
        assert!(!sandbox.running(&["-c"]).is_empty(), "the command runs on");
        pause(Duration::from_millis(2_100));
    }
    // As a user would: two signals that come together count as one for a process that did not run between them.
    eventually("the command is killed", || {
        a.signal(Signal::INT);
        pause(Duration::from_millis(200));
        sandbox.running(&["-c"]).is_empty()
    });
    assert_eq!(a.code(), Some(137));
}

#[test]
fn a_leader_whose_guard_is_killed_repeatedly_releases_the_lease() {
    let fixture = Fixture::new();
    let sandbox = &fixture.sandbox;
    // Long, so that no other candidate leads because a lease has expired.
    let args = ["--lease-duration", "60s", "--", "sleep", "600"];
    let a = BackgroundProcess::candidate(sandbox, NAME, "a", &args);
    a.says("[a] BECAME LEADER");
    let b = BackgroundProcess::candidate(sandbox, NAME, "b", &args);
    b.says("a leads");
    let guards = || sandbox.running(&["guard", "sleep"]);
    for kills in 1..=2 {
        eventually("the guard and its command run", || {
            guards().len() == 1 && !sandbox.running(&["600"]).is_empty()
        });
        let guard = guards()[0].file_name().unwrap().to_str().unwrap().parse().unwrap();
        kill_process(Pid::from_raw(guard).unwrap(), Signal::KILL).unwrap();
        eventually("its leader sees that", || count(&a, "the guard died") == kills);
    }
    a.says(
        "[a] the command cannot be kept running here: releasing the lease, campaigning again in 1s",
    );
    b.says("[b] BECAME LEADER");
    a.says("[a] Released leadership: reason=resigned");
    // It campaigns again after its pause.
    assert_eq!(b.end(), Some(143));
    eventually("the first leads again", || count(&a, "[a] BECAME LEADER") == 2);
    assert_eq!(a.end(), Some(143));
    eventually("no process is left", || sandbox.processes().is_empty());
}

#[test]
fn a_checkpoint_that_cannot_be_saved_is_logged_once_in_an_outage() {
    let sandbox = Sandbox::new();
    let problem = "[a] cannot note down what is run";
    let a = BackgroundProcess::candidate(
        &sandbox,
        NAME,
        "a",
        &["--mock", "--every", "1s", "--lease-duration", "120s"],
    );
    for outages in 1..=2 {
        a.says(&format!("[a] poll {outages}"));
        let before = deny_open_files(a.pid());
        eventually("it is logged", || count(&a, problem) == outages);
        // The checkpoint is retried every half second.
        pause(Duration::from_secs(3));
        assert_eq!(count(&a, problem), outages, "{}", a.log());
        let polls = count(&a, "[a] poll ");
        set_file_limit(a.pid(), before);
        eventually("it polls again", || count(&a, "[a] poll ") > polls);
    }
    assert_eq!(a.end(), Some(0));
}

#[test]
fn a_checkpoint_that_hangs_does_not_delay_the_end() {
    if let Some(missing) = SlowCalls::missing() {
        return eprintln!("not tried: it {missing}");
    }
    let sandbox = Sandbox::new();
    let mut a = BackgroundProcess::candidate(
        &sandbox,
        NAME,
        "a",
        &["--mock", "--every", "1s", "--lease-duration", "120s"],
    );
    a.says("[a] poll 1");
    let slow = SlowCalls::start(a.pid(), "fsync");
    eventually("it is traced", || slow.is_attached());
    // By then a save of the next slot hangs.
    pause(Duration::from_secs(2));
    a.signal(Signal::TERM);
    // It waits half a second for the save, and five seconds for the release, which hangs too.
    within(DELAY / 2, "it ends", || {
        a.log().contains("what could not be given back runs out by itself")
    });
    drop(slow);
    assert_eq!(a.code(), Some(0));
}
