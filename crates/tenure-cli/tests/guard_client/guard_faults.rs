//! Faults of the guard itself: its stderr is blocked, it has no descriptors left, it is frozen, it panics.

use std::process::{Child, Command};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use tenure::Clock;

use crate::fixture::{Fixture, Kind, eventually, is_alive, now, pause, shards, signal};
use crate::member::{MemberConfig, MemberEvent, MemberOrder};
use crate::trial;
use tenure_cli::guard;
use tenure_rig::descriptors::Descriptors;
use tenure_rig::slow_calls::{SlowCalls, children};
use tenure_rig::stderr_faults::{Stderr, turns};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for kind in [Kind::File, Kind::Redis] {
        for stderr in Stderr::BOTH {
            let name = format!("stderr_{}_and_the_member_is_frozen", stderr.name());
            trials.push(trial(&name, kind, move |kind| frozen(kind, stderr)));
            let name = format!("stderr_{}_and_the_member_is_killed", stderr.name());
            trials.push(trial(&name, kind, move |kind| killed(kind, stderr)));
        }
        trials.push(trial(
            "a_frozen_guard_is_replaced_while_leases_are_renewed",
            kind,
            unanswering,
        ));
    }
    trials.extend([
        trial("a_guard_that_is_late_is_not_killed", Kind::File, late),
        trial("a_frozen_guard_goes_on_when_the_member_dies", Kind::Redis, resumed),
        trial("a_guard_without_descriptors_kills_all_the_same", Kind::File, no_descriptors),
        trial("a_guard_that_panics_leaves_no_command", Kind::File, panics),
    ]);
    let slow = trial("a_start_that_hangs_holds_up_no_other_command", Kind::File, slow_start);
    trials.push(match SlowCalls::missing() {
        None => slow,
        Some(missing) => slow.with_kind(missing).with_ignored_flag(true),
    });
    trials
}

/// Each command has three descendants: one child, one in its own session, and one without a parent.
const COMMAND: [&str; 3] =
    ["sh", "-c", "(setsid sleep 6000.{} &); setsid sleep 6500.{} & sleep 7000.{} & wait; wait"];
const PROCESSES_PER_COMMAND: usize = 4;

/// The guard has something to log (the first lease expires) before it has killed everything: the second command's deadline is
/// 0.8 s later.
fn frozen(kind: Kind, stderr: Stderr) {
    for turn in 0..turns(1) {
        let fixture = Fixture::new(kind);
        let config = MemberConfig {
            ttl_ms: 60_000,
            stop_within_ms: 300,
            renews: false,
            // Both commands run by then, however busy the machine is.
            deadlines_ms: vec![4_000, 4_800],
            ..fixture.renewing_member(shards(2, &COMMAND))
        };
        let (member, _reader) = fixture.member_with(&config, Some(stderr));
        let last = now() + Duration::from_millis(4_800);
        fixture.runs(2 * PROCESSES_PER_COMMAND);
        member.signal(Signal::STOP);
        eventually("both are gone", || fixture.commands().is_empty() || now() > last);
        assert_eq!(fixture.commands(), [], "turn {turn}: beside the next owner's");
        assert!(is_alive(member.guard()), "turn {turn}: the guard lives");
    }
}

fn killed(kind: Kind, stderr: Stderr) {
    for turn in 0..turns(1) {
        let fixture = Fixture::new(kind);
        let (mut member, _reader) =
            fixture.member_with(&fixture.renewing_member(shards(5, &COMMAND)), Some(stderr));
        let guard = member.guard();
        fixture.runs(5 * PROCESSES_PER_COMMAND);
        member.signal(Signal::KILL);
        eventually("all are free", || fixture.held().is_empty());
        assert_eq!(fixture.commands(), [], "turn {turn}");
        eventually("the guard ends", || !is_alive(guard));
        member.wait();
    }
}

fn short_lived_member(fixture: &Fixture, ttl_ms: u64) -> MemberConfig {
    MemberConfig {
        ttl_ms,
        stop_within_ms: ttl_ms / 5,
        ..fixture.renewing_member(shards(3, &COMMAND))
    }
}

/// The leases are renewed, so no command is ever late: only the missing acknowledgement shows that the guard is frozen.
fn unanswering(kind: Kind) {
    for turn in 0..turns(1) {
        let fixture = Fixture::new(kind);
        let member = fixture.member(&short_lived_member(&fixture, 1_000));
        fixture.runs(3 * PROCESSES_PER_COMMAND);
        signal(member.guard(), Signal::STOP);
        assert_eq!(member.next(), MemberEvent::Unresponsive, "turn {turn}");
        assert_eq!(member.next(), MemberEvent::End, "turn {turn}");
        assert_eq!(fixture.commands(), [], "turn {turn}");
        assert!(!is_alive(member.guard()));
        assert_eq!(fixture.held().len(), 4, "they are the member's, which lives");
    }
}

fn late(kind: Kind) {
    let fixture = Fixture::new(kind);
    let member = fixture.member(&short_lived_member(&fixture, 8_000));
    fixture.runs(3 * PROCESSES_PER_COMMAND);
    let pids = || fixture.commands().into_iter().map(|(pid, _)| pid).collect::<Vec<_>>();
    let before = pids();
    for _ in 0..3 {
        signal(member.guard(), Signal::STOP);
        // Longer than the time between two renewals. The member would kill the guard 3 s later than this.
        pause(Duration::from_millis(2_600));
        signal(member.guard(), Signal::CONT);
        pause(Duration::from_millis(300));
    }
    assert!(member.has_no_event());
    assert!(is_alive(member.guard()));
    assert_eq!(pids(), before);
}

fn resumed(kind: Kind) {
    for turn in 0..turns(1) {
        let fixture = Fixture::new(kind);
        let mut member = fixture.member(&fixture.renewing_member(shards(3, &COMMAND)));
        let guard = member.guard();
        fixture.runs(3 * PROCESSES_PER_COMMAND);
        signal(guard, Signal::STOP);
        pause(Duration::from_millis(50));
        member.signal(Signal::KILL);
        eventually("all are free", || fixture.held().is_empty());
        assert_eq!(fixture.commands(), [], "turn {turn}");
        eventually("the guard ends", || !is_alive(guard));
        member.wait();
    }
}

fn no_descriptors(kind: Kind) {
    for turn in 0..turns(1) {
        let fixture = Fixture::new(kind);
        // The leases expire only long after this.
        let config = MemberConfig {
            ttl_ms: 20_000,
            stop_within_ms: 1_000,
            ..fixture.renewing_member(shards(3, &COMMAND))
        };
        let mut member = fixture.member(&config);
        let guard = member.guard();
        fixture.runs(3 * PROCESSES_PER_COMMAND);
        Descriptors::Spare.limit(guard);
        member.signal(Signal::KILL);
        eventually("nothing is left", || fixture.commands().is_empty());
        println!("turn {turn}: gone without descriptors");
        // Releasing the leases needs some descriptors.
        Descriptors::All.limit(guard);
        eventually("the guard ends", || !is_alive(guard));
        member.wait();
    }
}

/// The guard's own program cannot be read while it starts the second command.
fn slow_start(kind: Kind) {
    let fixture = Fixture::new(kind);
    let sleep = shards(1, &["sleep", "6000"]).remove(0).1;
    let shards = vec![("a".to_owned(), sleep.clone()), ("b".to_owned(), Vec::new())];
    let mut member = fixture.member(&fixture.renewing_member(shards));
    fixture.runs(1);
    let guard = member.guard();
    let slow = SlowCalls::start(guard, "execve");
    eventually("the guard is traced", || slow.is_attached());
    member.send(&MemberOrder::Run(2, sleep));
    eventually("the start hangs", || children(guard).len() == 2);
    member.send(&MemberOrder::Stop(1, 1_000));
    assert_eq!(
        member.next(),
        MemberEvent::Gone { id: 1, ended: "Signal(15)".to_owned(), asked_to_stop: true }
    );
    drop(slow);
    eventually("the second runs", || {
        fixture.commands().iter().any(|(_, line)| line.trim() == "sleep 6000")
    });
    member.send(&MemberOrder::Stop(2, 1_000));
    assert_eq!(
        member.next(),
        MemberEvent::Gone { id: 2, ended: "Signal(15)".to_owned(), asked_to_stop: true }
    );
    assert!(member.has_no_event());
}

/// The role of a guard that panics while its command runs.
pub(crate) const PANICKING_GUARD_ROLE: &str = "panicking-guard";

pub(crate) fn run_panicking_guard() -> std::process::ExitCode {
    guard::run_guard(async {
        guard::adopt_orphans().unwrap();
        let argv = &shards(1, &COMMAND)[0].1;
        drop(Command::new(&argv[0]).args(&argv[1..]).spawn().unwrap());
        // The trial creates this file when all processes run.
        let clock = Clock::boot();
        while !std::fs::exists("started").unwrap() {
            clock.sleep(Duration::from_millis(2)).await;
        }
        panic!("as it is told to");
    })
    .into()
}

fn panics(kind: Kind) {
    let fixture = Fixture::new(kind);
    let mut command = Command::new(std::env::current_exe().unwrap());
    let started = fixture.path("started");
    let home = started.parent().unwrap();
    command.arg(PANICKING_GUARD_ROLE).env("HOME", home).current_dir(home);
    let mut guard = KilledOnDrop(command.spawn().unwrap());
    fixture.runs(PROCESSES_PER_COMMAND);
    std::fs::write(&started, "").unwrap();
    assert_eq!(guard.0.wait().unwrap().code(), Some(123));
    assert_eq!(fixture.commands(), [], "gone before the guard is");
}

/// Kills the process when the trial fails.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
