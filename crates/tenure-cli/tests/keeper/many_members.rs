//! Many at once: a member, or its guard, is killed or frozen, and nothing runs on beside the next owner.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use tenure::{Ended, Moment};

use crate::fixture::{Kind, Stage, eventually, now, pause, shards, signal};
use crate::member::{MEMBERSHIP, News, Part};
use crate::trial;

pub(crate) fn trials(kind: Kind) -> Vec<Trial> {
    vec![
        trial("a_killed_members_commands_are_gone_before_their_leases_are_free", kind, |kind| {
            killed(kind, 50);
        }),
        trial("two_thousand_commands", kind, |kind| killed(kind, 2_000))
            .with_kind("takes minutes: name it and add --ignored")
            .with_ignored_flag(true),
        trial(
            "three_thousand_leases_without_commands_are_free_when_the_member_is_dead",
            kind,
            only_leases,
        ),
        trial("two_hundred_that_end_together_are_seen_gone_together", kind, together),
        trial("a_frozen_members_commands_are_gone_before_their_deadlines", kind, frozen),
        trial("a_killed_guards_commands_are_gone_before_the_member_hears_of_it", kind, unguarded),
        trial("a_frozen_guard_is_not_waited_for_past_the_deadline", kind, frozen_guard),
    ]
}

/// Each in two processes, the second in a session of its own and without a parent.
const DAEMON: [&str; 3] = ["sh", "-c", "(setsid sleep 6000.{} &); exec sleep 7000.{}"];

fn millis(from: Moment, to: Moment) -> f64 {
    to.since(from).as_secs_f64() * 1_000.0
}

fn killed(kind: Kind, number: usize) {
    let stage = Stage::new(kind);
    let begun = now();
    let mut member = stage.member(&stage.calm(shards(number, &DAEMON)));
    stage.runs(2 * number);
    let started = millis(begun, now());
    assert_eq!(stage.held().len(), number + 1);
    member.signal(Signal::KILL);
    let dead = now();
    let mut gone = None;
    let mut first = None;
    eventually("all are free", || {
        let held = stage.held();
        let shards = held.iter().filter(|name| *name != MEMBERSHIP).count();
        // Asked again: one look at many is not of one moment.
        first = first.or_else(|| (shards < number).then(|| !stage.held().contains(MEMBERSHIP)));
        // Looked at after the leases: what runs now ran when the lease was free.
        let commands = stage.commands();
        if commands.is_empty() {
            gone.get_or_insert(now());
        }
        for (_, line) in commands {
            // A line is read in pieces, and of one that dies or begins another program meanwhile the end is missing; the
            // number stands in it twice.
            let rest = line.split_once('.').unwrap().1;
            let shard: String = rest.chars().take_while(char::is_ascii_digit).collect();
            assert!(held.contains(&format!("f:lease:{shard}")), "free, and still there: {line}");
        }
        held.is_empty()
    });
    println!(
        "{kind:?}, {number} commands: started after {started:.0} ms; gone {:.0} ms and free {:.0} ms after the kill",
        millis(dead, gone.unwrap()),
        millis(dead, now())
    );
    assert_eq!(first, Some(true), "the membership goes first");
    member.wait();
}

fn only_leases(kind: Kind) {
    let number = if kind == Kind::Redis { 3_000 } else { 300 };
    let stage = Stage::new(kind);
    let mut member = stage.member(&stage.calm(shards(number, &[])));
    let guard = member.guard();
    assert_eq!(stage.held().len(), number + 1);
    // The guard is told of all of them beside everything else.
    pause(Duration::from_millis(500));
    member.signal(Signal::KILL);
    let dead = now();
    eventually("the guard has gone", || !crate::fixture::is_there(guard));
    println!(
        "{kind:?}, {number} leases: the guard was done {:.0} ms after the kill",
        millis(dead, now())
    );
    assert_eq!(stage.held(), BTreeSet::new());
    member.wait();
}

fn together(kind: Kind) {
    let stage = Stage::new(kind);
    let pipe = stage.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut shards = shards(201, &["cat", pipe.to_str().unwrap()]);
    shards[200].1 = vec!["sleep".to_owned(), "6000.200".to_owned()];
    let member = stage.member(&stage.calm(shards));
    stage.runs(201);
    // Whoever writes nothing to it has told all of them that there is nothing to come.
    drop(File::options().write(true).open(&pipe).unwrap());
    let (begun, mut last) = (now(), now());
    let mut gone = BTreeSet::new();
    while gone.len() < 200 {
        let (at, News::Gone { id, told: false, ended }) = member.next_at() else { panic!() };
        assert_eq!(ended, "Code(0)");
        assert!(id <= 200 && gone.insert(id));
        last = at;
    }
    println!("{kind:?}: 200 commands were seen gone within {:.0} ms", millis(begun, last));
    assert_eq!(stage.commands().len(), 1);
}

fn brief(stage: &Stage, number: usize) -> Part {
    Part { ttl_ms: 4_000, stop_within_ms: 800, ..stage.calm(shards(number, &DAEMON)) }
}

fn frozen(kind: Kind) {
    let stage = Stage::new(kind);
    let mut member = stage.member(&brief(&stage, 20));
    stage.runs(40);
    member.signal(Signal::STOP);
    // It may have renewed at the last moment, and not after.
    let last = now() + Duration::from_millis(4_000 * 9 / 10);
    eventually("all are gone", || stage.commands().is_empty());
    let gone = now();
    println!("{kind:?}: gone {:.0} ms before the last possible deadline", millis(gone, last));
    assert!(gone < last);
    eventually("all have run out", || stage.held().is_empty());
    let ran_out = |before: &Ended| matches!(before, Ended::Expired(_));
    assert!(stage.ended().iter().all(ran_out), "its guard gives nothing back while it lives");
    member.signal(Signal::CONT);
    for _ in 0..20 {
        assert!(matches!(member.next(), News::Gone { told: true, .. }));
    }
    member.signal(Signal::KILL);
    member.wait();
}

fn unguarded(kind: Kind) {
    let stage = Stage::new(kind);
    let member = stage.member(&stage.calm(shards(20, &DAEMON)));
    stage.runs(40);
    signal(member.guard(), Signal::KILL);
    let killed = now();
    let (at, news) = member.next_at();
    assert_eq!(news, News::End);
    assert_eq!(stage.commands(), []);
    println!(
        "{kind:?}: the member knew that nothing is left {:.0} ms after the kill",
        millis(killed, at)
    );
    assert_eq!(stage.held().len(), 21, "they are the member's, which lives");
}

fn frozen_guard(kind: Kind) {
    let stage = Stage::new(kind);
    // The store is as good as out of reach: nothing is renewed.
    let member = stage.member(&Part { renews: false, ..brief(&stage, 5) });
    let last = now() + Duration::from_millis(4_000 * 9 / 10);
    stage.runs(10);
    signal(member.guard(), Signal::STOP);
    assert_eq!(member.next(), News::Unresponsive);
    assert_eq!(member.next(), News::End);
    assert!(now() < last, "too late by {:.0} ms", millis(last, now()));
    assert_eq!(stage.commands(), []);
}
