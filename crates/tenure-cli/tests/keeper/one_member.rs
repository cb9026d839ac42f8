//! One member, one guard, a few commands: what each of the keeper's words does, and to whom.

use std::collections::BTreeSet;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::fixture::{Kind, Stage, eventually, is_there, now, pause, shards};
use crate::member::{Deed, News, Part};
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
    let stage = Stage::new(kind);
    let mut member = stage.member(&Part { guarded, ..stage.calm(shards(3, &SLEEP)) });
    stage.runs(3);
    member.does(&Deed::Stop(2, 10_000));
    let ended = "Signal(15)".to_owned();
    assert_eq!(member.next(), News::Gone { id: 2, ended, told: true });
    let lines: Vec<String> = stage.commands().into_iter().map(|(_, line)| line).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(!lines.contains(&"sleep 6000.1 ".to_owned()));
    assert!(member.says_nothing());
    member.does(&Deed::Dismiss);
    assert_eq!(member.next(), News::Dismissed);
    assert_eq!(stage.commands(), []);
}

fn stubborn(kind: Kind) {
    let stage = Stage::new(kind);
    let ready = stage.path("ready");
    let script = format!("trap '' TERM; touch {}; sleep 6000 & wait; wait", ready.display());
    let mut member = stage.member(&stage.calm(shards(1, &["sh", "-c", &script])));
    eventually("it is stubborn", || ready.exists());
    let told = now();
    member.does(&Deed::Stop(1, 300));
    let (at, news) = member.next_at();
    assert_eq!(news, News::Gone { id: 1, ended: "Signal(9)".to_owned(), told: true });
    let took = at.since(told);
    assert!(took >= Duration::from_millis(300), "{took:?}");
    assert_eq!(stage.commands(), []);
}

fn refused(kind: Kind) {
    let stage = Stage::new(kind);
    let mut member = stage.member(&stage.calm(shards(2, &SLEEP)));
    stage.runs(2);
    member.does(&Deed::Refused(1));
    assert_eq!(member.next(), News::Gone { id: 1, ended: "Signal(9)".to_owned(), told: true });
    assert_eq!(stage.commands().len(), 1);
}

fn forgotten(kind: Kind) {
    let stage = Stage::new(kind);
    let mut member = stage.member(&stage.calm(shards(2, &SLEEP)));
    stage.runs(2);
    let guard = member.guard();
    member.does(&Deed::Forget(1));
    assert!(matches!(member.next(), News::Gone { id: 1, told: true, .. }));
    member.signal(Signal::KILL);
    eventually("the guard has gone", || !is_there(guard));
    assert_eq!(stage.commands(), []);
    assert_eq!(stage.held(), BTreeSet::from(["f:lease:0".to_owned()]));
    member.wait();
}

fn environment(kind: Kind) {
    let stage = Stage::new(kind);
    let file = stage.path("environment");
    let script = format!("env | grep ^TENURE_ | sort > {}.new; mv {0}.new {0}", file.display());
    let mut shards = shards(1, &["sh", "-c", &script]);
    shards[0].0 = "größer als 1/2".to_owned();
    let member = stage.member(&stage.calm(shards));
    assert_eq!(member.next(), News::Gone { id: 1, ended: "Code(0)".to_owned(), told: false });
    let text = std::fs::read_to_string(file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..3], ["TENURE_CANDIDATE=m", "TENURE_NAME=f", "TENURE_SHARD=größer als 1/2"]);
    assert!(lines[3].starts_with("TENURE_TOKEN=") && lines.len() == 4, "{lines:?}");
}

fn unstartable(kind: Kind) {
    let stage = Stage::new(kind);
    let mut shards = shards(4, &["no-such-command-anywhere"]);
    shards[1].0 = "a\0b".to_owned();
    shards[2].1 = vec!["/etc/passwd".to_owned()];
    shards[3].1 = vec!["echo".to_owned(), "x".repeat(70_000)];
    let mut member = stage.member(&stage.calm(shards));
    let mut heard: Vec<News> = (0..4).map(|_| member.next()).collect();
    heard.sort_by_key(|news| match news {
        News::Gone { id, .. } | News::Failed { id, .. } => *id,
        _ => 0,
    });
    assert_eq!(heard[0], News::Gone { id: 1, ended: "Code(127)".to_owned(), told: false });
    assert!(matches!(&heard[1], News::Failed { id: 2, why } if why.contains("NUL")), "{heard:?}");
    assert_eq!(heard[2], News::Gone { id: 3, ended: "Code(126)".to_owned(), told: false });
    assert!(
        matches!(&heard[3], News::Failed { id: 4, why } if why.contains("64 KiB")),
        "{heard:?}"
    );
    for (id, argv) in [(0, "true"), (9, "true")] {
        member.does(&Deed::Run(id, vec![argv.to_owned()]));
        assert!(matches!(member.next(), News::Failed { why, .. } if why.contains("no shard")));
    }
}

fn dismissed(kind: Kind) {
    let stage = Stage::new(kind);
    let mut member = stage.member(&stage.calm(shards(3, &SLEEP)));
    stage.runs(3);
    let guard = member.guard();
    member.does(&Deed::Stop(1, 0));
    assert!(matches!(member.next(), News::Gone { id: 1, .. }));
    member.does(&Deed::Dismiss);
    assert_eq!(member.next(), News::Dismissed);
    assert!(!is_there(guard));
    assert_eq!(stage.commands(), []);
    member.wait();
    assert_eq!(stage.held().len(), 4);
}

fn again(kind: Kind) {
    let stage = Stage::new(kind);
    let mut member = stage.member(&stage.calm(shards(1, &["sh", "-c", "exit 3"])));
    let ended = News::Gone { id: 1, ended: "Code(3)".to_owned(), told: false };
    assert_eq!(member.next(), ended);
    for _ in 0..3 {
        member.does(&Deed::Run(1, vec!["sh".to_owned(), "-c".to_owned(), "exit 3".to_owned()]));
        assert_eq!(member.next(), ended);
    }
    member.does(&Deed::Run(1, vec!["sleep".to_owned(), "6000".to_owned()]));
    stage.runs(1);
    member.does(&Deed::Run(1, vec!["sleep".to_owned(), "6001".to_owned()]));
    assert!(matches!(member.next(), News::Failed { id: 1, why } if why.contains("not ended")));
    pause(Duration::from_millis(50));
    assert_eq!(stage.commands().len(), 1);
}
