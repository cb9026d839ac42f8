//! One member, one guard, a few commands: the effect of each message of the guard client.

use std::collections::BTreeSet;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::fixture::{Fixture, Kind, eventually, is_alive, now, pause, shards};
use crate::member::{MemberConfig, MemberEvent, MemberOrder};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_stop_leaves_the_others_alone", Kind::File, |kind| stop(kind, true)),
        trial("without_a_guard_a_stop_leaves_the_others_alone", Kind::File, |kind| {
            stop(kind, false)
        }),
        trial("a_command_that_does_not_stop_is_killed_in_its_time", Kind::File, stubborn),
        trial("a_refused_shard_ends_at_once_and_alone", Kind::File, refused),
        trial("a_forgotten_hold_is_not_given_back", Kind::Redis, forgotten),
        trial(
            "a_shard_is_named_in_its_environment_and_nothing_else_of_ours_is",
            Kind::File,
            environment,
        ),
        trial("what_cannot_be_started_is_said", Kind::File, unstartable),
        trial("a_dismissed_guard_ends_the_commands_and_gives_nothing_back", Kind::Redis, dismissed),
        trial("a_command_is_started_again_in_the_same_term", Kind::File, again),
    ]
}

const SLEEP: [&str; 2] = ["sleep", "6000.{}"];

fn stop(kind: Kind, guarded: bool) {
    let fixture = Fixture::new(kind);
    let mut member =
        fixture.member(&MemberConfig { guarded, ..fixture.renewing_member(shards(3, &SLEEP)) });
    fixture.runs(3);
    member.send(&MemberOrder::Stop(2, 10_000));
    let ended = "Signal(15)".to_owned();
    assert_eq!(member.next(), MemberEvent::Gone { id: 2, ended, asked_to_stop: true });
    let lines: Vec<String> = fixture.commands().into_iter().map(|(_, line)| line).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(!lines.contains(&"sleep 6000.1 ".to_owned()));
    assert!(member.has_no_event());
    member.send(&MemberOrder::Dismiss);
    assert_eq!(member.next(), MemberEvent::Dismissed);
    assert_eq!(fixture.commands(), []);
}

fn stubborn(kind: Kind) {
    let fixture = Fixture::new(kind);
    let ready = fixture.path("ready");
    let script = format!("trap '' TERM; touch {}; sleep 6000 & wait; wait", ready.display());
    let mut member = fixture.member(&fixture.renewing_member(shards(1, &["sh", "-c", &script])));
    eventually("it is stubborn", || ready.exists());
    let ordered_at = now();
    member.send(&MemberOrder::Stop(1, 300));
    let (at, event) = member.next_at();
    assert_eq!(
        event,
        MemberEvent::Gone { id: 1, ended: "Signal(9)".to_owned(), asked_to_stop: true }
    );
    let took = at.since(ordered_at);
    assert!(took >= Duration::from_millis(300), "{took:?}");
    assert_eq!(fixture.commands(), []);
}

fn refused(kind: Kind) {
    let fixture = Fixture::new(kind);
    let mut member = fixture.member(&fixture.renewing_member(shards(2, &SLEEP)));
    fixture.runs(2);
    member.send(&MemberOrder::Refused(1));
    assert_eq!(
        member.next(),
        MemberEvent::Gone { id: 1, ended: "Signal(9)".to_owned(), asked_to_stop: true }
    );
    assert_eq!(fixture.commands().len(), 1);
}

fn forgotten(kind: Kind) {
    let fixture = Fixture::new(kind);
    let mut member = fixture.member(&fixture.renewing_member(shards(2, &SLEEP)));
    fixture.runs(2);
    let guard = member.guard();
    member.send(&MemberOrder::Forget(1));
    assert!(matches!(member.next(), MemberEvent::Gone { id: 1, asked_to_stop: true, .. }));
    member.signal(Signal::KILL);
    eventually("the guard has gone", || !is_alive(guard));
    assert_eq!(fixture.commands(), []);
    assert_eq!(fixture.held(), BTreeSet::from(["f:lease:0".to_owned()]));
    member.wait();
}

fn environment(kind: Kind) {
    let fixture = Fixture::new(kind);
    let file = fixture.path("environment");
    let script = format!("env | grep ^TENURE_ | sort > {}.new; mv {0}.new {0}", file.display());
    let mut shards = shards(1, &["sh", "-c", &script]);
    shards[0].0 = "größer als 1/2".to_owned();
    let member = fixture.member(&fixture.renewing_member(shards));
    assert_eq!(
        member.next(),
        MemberEvent::Gone { id: 1, ended: "Code(0)".to_owned(), asked_to_stop: false }
    );
    let text = std::fs::read_to_string(file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..3], ["TENURE_CANDIDATE=m", "TENURE_NAME=f", "TENURE_SHARD=größer als 1/2"]);
    assert!(lines[3].starts_with("TENURE_TOKEN=") && lines.len() == 4, "{lines:?}");
}

fn unstartable(kind: Kind) {
    let fixture = Fixture::new(kind);
    let mut shards = shards(4, &["no-such-command-anywhere"]);
    shards[1].0 = "a\0b".to_owned();
    shards[2].1 = vec!["/etc/passwd".to_owned()];
    shards[3].1 = vec!["echo".to_owned(), "x".repeat(70_000)];
    let mut member = fixture.member(&fixture.renewing_member(shards));
    let mut events: Vec<MemberEvent> = (0..4).map(|_| member.next()).collect();
    events.sort_by_key(|event| match event {
        MemberEvent::Gone { id, .. } | MemberEvent::Failed { id, .. } => *id,
        _ => 0,
    });
    assert_eq!(
        events[0],
        MemberEvent::Gone { id: 1, ended: "Code(127)".to_owned(), asked_to_stop: false }
    );
    assert!(
        matches!(&events[1], MemberEvent::Failed { id: 2, why } if why.contains("NUL")),
        "{events:?}"
    );
    assert_eq!(
        events[2],
        MemberEvent::Gone { id: 3, ended: "Code(126)".to_owned(), asked_to_stop: false }
    );
    assert!(
        matches!(&events[3], MemberEvent::Failed { id: 4, why } if why.contains("64 KiB")),
        "{events:?}"
    );
    for (id, argv) in [(0, "true"), (9, "true")] {
        member.send(&MemberOrder::Run(id, vec![argv.to_owned()]));
        assert!(
            matches!(member.next(), MemberEvent::Failed { why, .. } if why.contains("no shard"))
        );
    }
}

fn dismissed(kind: Kind) {
    let fixture = Fixture::new(kind);
    let mut member = fixture.member(&fixture.renewing_member(shards(3, &SLEEP)));
    fixture.runs(3);
    let guard = member.guard();
    member.send(&MemberOrder::Stop(1, 0));
    assert!(matches!(member.next(), MemberEvent::Gone { id: 1, .. }));
    member.send(&MemberOrder::Dismiss);
    assert_eq!(member.next(), MemberEvent::Dismissed);
    assert!(!is_alive(guard));
    assert_eq!(fixture.commands(), []);
    member.wait();
    assert_eq!(fixture.held().len(), 4);
}

fn again(kind: Kind) {
    let fixture = Fixture::new(kind);
    let mut member = fixture.member(&fixture.renewing_member(shards(1, &["sh", "-c", "exit 3"])));
    let ended = MemberEvent::Gone { id: 1, ended: "Code(3)".to_owned(), asked_to_stop: false };
    assert_eq!(member.next(), ended);
    for _ in 0..3 {
        member.send(&MemberOrder::Run(
            1,
            vec!["sh".to_owned(), "-c".to_owned(), "exit 3".to_owned()],
        ));
        assert_eq!(member.next(), ended);
    }
    member.send(&MemberOrder::Run(1, vec!["sleep".to_owned(), "6000".to_owned()]));
    fixture.runs(1);
    member.send(&MemberOrder::Run(1, vec!["sleep".to_owned(), "6001".to_owned()]));
    assert!(
        matches!(member.next(), MemberEvent::Failed { id: 1, why } if why.contains("not ended"))
    );
    pause(Duration::from_millis(50));
    assert_eq!(fixture.commands().len(), 1);
}
