//! Many commands at once: a member, or its guard, is killed or frozen, and no process keeps running beside the next owner's.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use tenure::{Ended, Moment};
use tenure_rig::system::processes::has_open;

use crate::fixture::{Fixture, Kind, eventually, now, pause, shards, signal};
use crate::member::{MEMBERSHIP, MemberConfig, MemberEvent};
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

/// Each command has two processes, the second in its own session and without a parent.
const DAEMON: [&str; 3] = ["sh", "-c", "(setsid sleep 6000.{} &); exec sleep 7000.{}"];

fn millis(from: Moment, to: Moment) -> f64 {
    to.since(from).as_secs_f64() * 1_000.0
}

fn killed(kind: Kind, number: usize) {
    let fixture = Fixture::new(kind);
    let begun = now();
    let mut member = fixture.member(&fixture.renewing_member(shards(number, &DAEMON)));
    fixture.runs(2 * number);
    let started = millis(begun, now());
    assert_eq!(fixture.held().len(), number + 1);
    member.signal(Signal::KILL);
    let dead = now();
    let mut gone = None;
    let mut first = None;
    eventually("all are free", || {
        let held = fixture.held();
        let shards = held.iter().filter(|name| *name != MEMBERSHIP).count();
        // Observed again: one observation of many leases is not of one instant.
        first = first.or_else(|| (shards < number).then(|| !fixture.held().contains(MEMBERSHIP)));
        // Listed after the leases were observed: a command that runs now ran when its lease was free.
        let commands = fixture.commands();
        if commands.is_empty() {
            gone.get_or_insert(now());
        }
        for (_, line) in commands {
            // A command line is read in pieces, and if its process dies or calls exec meanwhile, the end is missing; the number
            // is in it twice.
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
    let fixture = Fixture::new(kind);
    let mut member = fixture.member(&fixture.renewing_member(shards(number, &[])));
    let guard = member.guard();
    assert_eq!(fixture.held().len(), number + 1);
    // The guard learns of all leases in the background.
    pause(Duration::from_millis(500));
    member.signal(Signal::KILL);
    let dead = now();
    eventually("the guard has gone", || !crate::fixture::is_alive(guard));
    println!(
        "{kind:?}, {number} leases: the guard was done {:.0} ms after the kill",
        millis(dead, now())
    );
    assert_eq!(fixture.held(), BTreeSet::new());
    member.wait();
}

fn together(kind: Kind) {
    let fixture = Fixture::new(kind);
    let pipe = fixture.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut shards = shards(201, &["cat", pipe.to_str().unwrap()]);
    shards[200].1 = vec!["sleep".to_owned(), "6000.200".to_owned()];
    let member = fixture.member(&fixture.renewing_member(shards));
    fixture.runs(201);
    let writer = File::options().write(true).open(&pipe).unwrap();
    // A command that opened the pipe only after the writer has closed it would wait for another writer.
    eventually("all have opened the pipe", || {
        let commands = fixture.commands();
        commands.iter().filter(|(pid, _)| has_open(*pid, &pipe)).count() == 200
    });
    // Closing the pipe without writing is the end of file for all readers.
    drop(writer);
    let (begun, mut last) = (now(), now());
    let mut gone = BTreeSet::new();
    while gone.len() < 200 {
        let (at, MemberEvent::Gone { id, asked_to_stop: false, ended }) = member.next_at() else {
            panic!()
        };
        assert_eq!(ended, "Code(0)");
        assert!(id <= 200 && gone.insert(id));
        last = at;
    }
    println!("{kind:?}: 200 commands were seen gone within {:.0} ms", millis(begun, last));
    assert_eq!(fixture.commands().len(), 1);
}

fn short_lived_member(fixture: &Fixture, number: usize) -> MemberConfig {
    MemberConfig {
        ttl_ms: 4_000,
        stop_within_ms: 800,
        ..fixture.renewing_member(shards(number, &DAEMON))
    }
}

fn frozen(kind: Kind) {
    let fixture = Fixture::new(kind);
    let mut member = fixture.member(&short_lived_member(&fixture, 20));
    fixture.runs(40);
    member.signal(Signal::STOP);
    // The member may have renewed at the last moment, and not after.
    let last = now() + Duration::from_millis(4_000 * 9 / 10);
    eventually("all are gone", || fixture.commands().is_empty());
    let gone = now();
    println!("{kind:?}: gone {:.0} ms before the last possible deadline", millis(gone, last));
    assert!(gone < last);
    eventually("all have run out", || fixture.held().is_empty());
    let ran_out = |before: &Ended| matches!(before, Ended::Expired(_));
    assert!(fixture.ended().iter().all(ran_out), "its guard gives nothing back while it lives");
    member.signal(Signal::CONT);
    for _ in 0..20 {
        assert!(matches!(member.next(), MemberEvent::Gone { asked_to_stop: true, .. }));
    }
    member.signal(Signal::KILL);
    member.wait();
}

fn unguarded(kind: Kind) {
    let fixture = Fixture::new(kind);
    let member = fixture.member(&fixture.renewing_member(shards(20, &DAEMON)));
    fixture.runs(40);
    signal(member.guard(), Signal::KILL);
    let killed = now();
    let (at, event) = member.next_at();
    assert_eq!(event, MemberEvent::End);
    assert_eq!(fixture.commands(), []);
    println!(
        "{kind:?}: the member knew that nothing is left {:.0} ms after the kill",
        millis(killed, at)
    );
    assert_eq!(fixture.held().len(), 21, "they are the member's, which lives");
}

fn frozen_guard(kind: Kind) {
    let fixture = Fixture::new(kind);
    // As with an unreachable store: nothing is renewed.
    let member = fixture.member(&MemberConfig { renews: false, ..short_lived_member(&fixture, 5) });
    let last = now() + Duration::from_millis(4_000 * 9 / 10);
    fixture.runs(10);
    signal(member.guard(), Signal::STOP);
    assert_eq!(member.next(), MemberEvent::Unresponsive);
    assert_eq!(member.next(), MemberEvent::End);
    assert!(now() < last, "too late by {:.0} ms", millis(last, now()));
    assert_eq!(fixture.commands(), []);
}
