//! Processes that have left their command's group, session or parents: they end with their own shard, and no shard counts as
//! gone while a process without a known owner exists.

use std::time::Duration;

use libtest_mimic::Trial;

use crate::fixture::{Fixture, Kind, Member, eventually, is_alive, now, pause, running};
use crate::member::{MemberConfig, MemberEvent, MemberOrder};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_daemon_ends_with_its_own_shard_and_with_no_other", Kind::File, daemon),
        trial("a_daemon_that_outlives_its_command_has_the_usual_time", Kind::File, outlives),
        trial("a_daemon_without_an_environment_is_gone_before_any_shard_is", Kind::File, nameless),
        trial("who_starts_its_successor_and_ends_is_gone_before_its_shard_is", Kind::File, hops),
        trial("a_child_in_another_session_ends_with_its_command", Kind::File, session),
    ]
}

/// Two shards: the first runs this script, the second only sleeps.
fn two_shards(fixture: &Fixture, script: &str) -> MemberConfig {
    let sh = |script: &str| vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
    let argv = ["sleep".to_owned(), format!("6002.{}", std::process::id())].to_vec();
    fixture.renewing_member(vec![("a".to_owned(), sh(script)), ("b".to_owned(), argv)])
}

/// The process number of a `sleep` of this trial, once it runs.
fn sleeper(line: &str) -> u32 {
    eventually(line, || running(line).is_some());
    running(line).unwrap()
}

fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The same for a process that must become an orphan: then the guard is its parent.
fn orphan(member: &Member, line: &str) -> u32 {
    let (guard, daemon) = (member.guard(), sleeper(line));
    eventually("it is an orphan", || parent(daemon) == guard);
    daemon
}

/// Stops the command with this number; all its processes must be gone when the event comes.
fn stop(member: &mut Member, id: u32) {
    member.send(&MemberOrder::Stop(id, 5_000));
    assert!(
        matches!(member.next(), MemberEvent::Gone { id: of, asked_to_stop: true, .. } if of == id)
    );
}

fn daemon(kind: Kind) {
    let fixture = Fixture::new(kind);
    let line = format!("sleep 6010.{}", std::process::id());
    let script = format!("(setsid {line} &); exec sleep 6011");
    let mut member = fixture.member(&two_shards(&fixture, &script));
    let daemon = orphan(&member, &line);
    stop(&mut member, 2);
    pause(Duration::from_millis(50));
    assert!(is_alive(daemon), "it is none of b's");
    stop(&mut member, 1);
    assert!(!is_alive(daemon));
}

fn outlives(kind: Kind) {
    let fixture = Fixture::new(kind);
    let line = format!("sleep 6020.{}", std::process::id());
    // It ignores SIGTERM, so that only SIGKILL ends it.
    let script = format!("(setsid sh -c 'trap \"\" TERM; exec {line}' &); sleep 0.2; exit 5");
    let begun = now();
    let member = fixture.member(&two_shards(&fixture, &script));
    let daemon = sleeper(&line);
    let (at, event) = member.next_at();
    assert_eq!(
        event,
        MemberEvent::Gone { id: 1, ended: "Code(5)".to_owned(), asked_to_stop: false }
    );
    assert!(!is_alive(daemon));
    assert!(at.since(begun) >= Duration::from_millis(1_200), "{:?}", at.since(begun));
    assert_eq!(fixture.commands().len(), 1, "b runs on");
}

fn nameless(kind: Kind) {
    let fixture = Fixture::new(kind);
    let line = format!("sleep 6030.{}", std::process::id());
    let script = format!("(setsid env -i {line} &); exec sleep 6031");
    let mut member = fixture.member(&two_shards(&fixture, &script));
    let daemon = orphan(&member, &line);
    // As far as the guard knows, it may belong to b.
    stop(&mut member, 2);
    assert!(!is_alive(daemon));
    assert_eq!(fixture.commands().len(), 1, "a itself runs on");
    stop(&mut member, 1);
}

fn hops(kind: Kind) {
    let fixture = Fixture::new(kind);
    let script = fixture.path("hop");
    std::fs::write(&script, "trap '' TERM\necho >> \"$0.count\"\nsleep 0.01\nsetsid sh \"$0\" &\n")
        .unwrap();
    let hops = || std::fs::metadata(fixture.path("hop.count")).map_or(0, |file| file.len());
    let begin = format!("(setsid sh {} &); exec sleep 6050", script.display());
    let mut member = fixture.member(&two_shards(&fixture, &begin));
    eventually("it hops", || hops() > 20);
    member.send(&MemberOrder::Stop(1, 100));
    assert!(matches!(member.next(), MemberEvent::Gone { id: 1, asked_to_stop: true, .. }));
    let before = hops();
    assert_eq!(fixture.commands().len(), 1, "b runs on");
    pause(Duration::from_millis(100));
    assert_eq!(hops(), before);
}

fn session(kind: Kind) {
    let fixture = Fixture::new(kind);
    let line = format!("sleep 6040.{}", std::process::id());
    let script = format!("setsid sh -c 'env -i {line}; :' & wait");
    let mut member = fixture.member(&two_shards(&fixture, &script));
    let child = sleeper(&line);
    stop(&mut member, 2);
    assert!(is_alive(child), "it descends from a");
    stop(&mut member, 1);
    assert!(!is_alive(child));
}
