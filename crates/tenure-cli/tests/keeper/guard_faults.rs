//! What goes wrong with the guard itself: its stderr takes nothing, it has no descriptors left, it is frozen, it panics.

use std::process::{Child, Command};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use tenure::Clock;

use crate::descriptors::Descriptors;
use crate::fixture::{Kind, Stage, eventually, is_there, now, pause, shards, signal};
use crate::guard;
use crate::member::{Deed, News, Part};
use crate::output_faults::{Stderr, turns};
use crate::slow_calls::{SlowCalls, children};
use crate::trial;

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

/// Each in three processes: the command, one in a session of its own, and one without a parent.
const FAMILY: [&str; 3] =
    ["sh", "-c", "(setsid sleep 6000.{} &); setsid sleep 6500.{} & sleep 7000.{} & wait; wait"];
const EACH: usize = 4;

/// The guard has something to log (the first lease runs out) before it has killed everything: the second command's deadline
/// is 0.8 s later.
fn frozen(kind: Kind, stderr: Stderr) {
    for turn in 0..turns(1) {
        let stage = Stage::new(kind);
        let part = Part {
            ttl_ms: 60_000,
            stop_within_ms: 300,
            renews: false,
            // Both run by then, however busy the machine is.
            deadlines_ms: vec![4_000, 4_800],
            ..stage.calm(shards(2, &FAMILY))
        };
        let (member, _reader) = stage.member_with(&part, Some(stderr));
        let last = now() + Duration::from_millis(4_800);
        stage.runs(2 * EACH);
        member.signal(Signal::STOP);
        eventually("both are gone", || stage.commands().is_empty() || now() > last);
        assert_eq!(stage.commands(), [], "turn {turn}: beside the next owner's");
        assert!(is_there(member.guard()), "turn {turn}: the guard lives");
    }
}

fn killed(kind: Kind, stderr: Stderr) {
    for turn in 0..turns(1) {
        let stage = Stage::new(kind);
        let (mut member, _reader) =
            stage.member_with(&stage.calm(shards(5, &FAMILY)), Some(stderr));
        let guard = member.guard();
        stage.runs(5 * EACH);
        member.signal(Signal::KILL);
        eventually("all are free", || stage.held().is_empty());
        assert_eq!(stage.commands(), [], "turn {turn}");
        eventually("the guard ends", || !is_there(guard));
        member.wait();
    }
}

fn brief(stage: &Stage, ttl_ms: u64) -> Part {
    Part { ttl_ms, stop_within_ms: ttl_ms / 5, ..stage.calm(shards(3, &FAMILY)) }
}

/// The leases are renewed, so no command is ever late: nothing but the missing answer shows that the guard is frozen.
fn unanswering(kind: Kind) {
    for turn in 0..turns(1) {
        let stage = Stage::new(kind);
        let member = stage.member(&brief(&stage, 1_000));
        stage.runs(3 * EACH);
        signal(member.guard(), Signal::STOP);
        assert_eq!(member.next(), News::Unresponsive, "turn {turn}");
        assert_eq!(member.next(), News::End, "turn {turn}");
        assert_eq!(stage.commands(), [], "turn {turn}");
        assert!(!is_there(member.guard()));
        assert_eq!(stage.held().len(), 4, "they are the member's, which lives");
    }
}

fn late(kind: Kind) {
    let stage = Stage::new(kind);
    let member = stage.member(&brief(&stage, 8_000));
    stage.runs(3 * EACH);
    let pids = || stage.commands().into_iter().map(|(pid, _)| pid).collect::<Vec<_>>();
    let before = pids();
    for _ in 0..3 {
        signal(member.guard(), Signal::STOP);
        // Longer than between two renewals. It would be killed 3 s later than this.
        pause(Duration::from_millis(2_600));
        signal(member.guard(), Signal::CONT);
        pause(Duration::from_millis(300));
    }
    assert!(member.says_nothing());
    assert!(is_there(member.guard()));
    assert_eq!(pids(), before);
}

fn resumed(kind: Kind) {
    for turn in 0..turns(1) {
        let stage = Stage::new(kind);
        let mut member = stage.member(&stage.calm(shards(3, &FAMILY)));
        let guard = member.guard();
        stage.runs(3 * EACH);
        signal(guard, Signal::STOP);
        pause(Duration::from_millis(50));
        member.signal(Signal::KILL);
        eventually("all are free", || stage.held().is_empty());
        assert_eq!(stage.commands(), [], "turn {turn}");
        eventually("the guard ends", || !is_there(guard));
        member.wait();
    }
}

fn no_descriptors(kind: Kind) {
    for turn in 0..turns(1) {
        let stage = Stage::new(kind);
        // The leases run out only long after this.
        let part = Part { ttl_ms: 20_000, stop_within_ms: 1_000, ..stage.calm(shards(3, &FAMILY)) };
        let mut member = stage.member(&part);
        let guard = member.guard();
        stage.runs(3 * EACH);
        Descriptors::Spare.limit(guard);
        member.signal(Signal::KILL);
        eventually("nothing is left", || stage.commands().is_empty());
        println!("turn {turn}: gone without descriptors");
        // To release the leases takes some.
        Descriptors::All.limit(guard);
        eventually("the guard ends", || !is_there(guard));
        member.wait();
    }
}

/// The guard's own program cannot be read while it starts the second command.
fn slow_start(kind: Kind) {
    let stage = Stage::new(kind);
    let sleep = shards(1, &["sleep", "6000"]).remove(0).1;
    let shards = vec![("a".to_owned(), sleep.clone()), ("b".to_owned(), Vec::new())];
    let mut member = stage.member(&stage.calm(shards));
    stage.runs(1);
    let guard = member.guard();
    let slow = SlowCalls::start(guard, "execve");
    eventually("the guard is traced", || slow.is_attached());
    member.does(&Deed::Run(2, sleep));
    eventually("the start hangs", || children(guard).len() == 2);
    member.does(&Deed::Stop(1, 1_000));
    assert_eq!(member.next(), News::Gone { id: 1, ended: "Signal(15)".to_owned(), told: true });
    drop(slow);
    eventually("the second runs", || {
        stage.commands().iter().any(|(_, line)| line.trim() == "sleep 6000")
    });
    member.does(&Deed::Stop(2, 1_000));
    assert_eq!(member.next(), News::Gone { id: 2, ended: "Signal(15)".to_owned(), told: true });
    assert!(member.says_nothing());
}

/// The part of a guard that panics while its command runs.
pub(crate) const PANICS: &str = "panicking-guard";

pub(crate) fn play() -> std::process::ExitCode {
    guard::stand_by(async {
        guard::adopt_orphans().unwrap();
        let argv = &shards(1, &FAMILY)[0].1;
        drop(Command::new(&argv[0]).args(&argv[1..]).spawn().unwrap());
        // The trial makes it when all of them run.
        let clock = Clock::boot();
        while !std::fs::exists("started").unwrap() {
            clock.sleep(Duration::from_millis(2)).await;
        }
        panic!("as it is told to");
    })
    .into()
}

fn panics(kind: Kind) {
    let stage = Stage::new(kind);
    let mut command = Command::new(std::env::current_exe().unwrap());
    let started = stage.path("started");
    let home = started.parent().unwrap();
    command.arg(PANICS).env("HOME", home).current_dir(home);
    let mut guard = KilledOnDrop(command.spawn().unwrap());
    stage.runs(EACH);
    std::fs::write(&started, "").unwrap();
    assert_eq!(guard.0.wait().unwrap().code(), Some(123));
    assert_eq!(stage.commands(), [], "gone before the guard is");
}

/// A trial that fails leaves no process behind.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
