//! `tenure watch`.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::local_candidates::{NAME, Place};
use crate::support::{World, eventually, signal};

/// A watch that is under way.
struct Watch {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watch {
    fn new(place: &Place, args: &[&str]) -> Watch {
        let mut command = place.world.command(args);
        command.env("TENURE_LOCK_DIR", place.directory()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Watch { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    fn json(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    fn ends(mut self, with: Signal) {
        signal(&self.child, with);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_state_comes_first_and_then_each_change() {
    let place = Place::new();
    let mut watch = Watch::new(&place, &["watch", NAME, "--json"]);
    let first = watch.line();
    let (at, rest) = first.split_at(r#"{"at":"2025-06-18T15:00:00.000Z""#.len());
    assert!(at.ends_with(r#"Z""#), "{first}");
    let pinned = r#","event":"state","name":"billing:nightly","from":null,"to":null,"token":null,"reason":null}"#;
    assert_eq!(rest, pinned);
    let a = place.leader(NAME, "a");
    let token = a.status().token.unwrap().get();
    let news = watch.json();
    assert_eq!((&news["event"], &news["to"]), (&json!("became"), &json!("a")), "{news}");
    assert_eq!((&news["token"], &news["from"]), (&json!(token), &json!(null)), "{news}");
    place.runtime.block_on(a.stop());
    let news = watch.json();
    assert_eq!((&news["event"], &news["from"]), (&json!("lost"), &json!("a")), "{news}");
    assert_eq!((&news["to"], &news["reason"]), (&json!(null), &json!("released")), "{news}");
    watch.ends(Signal::INT);
}

#[test]
fn people_get_sentences_and_our_own_names_are_kept_back() {
    let place = Place::new();
    let a = place.leader(NAME, "a");
    let b = place.candidate(NAME, "b");
    eventually("b has seen a", || b.current_leader().as_deref() == Some("a"));
    let mut watch = Watch::new(&place, &["watch"]);
    let line = watch.line();
    assert!(line.contains("billing:nightly: 'a' leads (token "), "{line}");
    place.run(&["resign", NAME, "--to", "b"]).exits(0);
    loop {
        let line = watch.line();
        assert!(line.contains("  billing:nightly: "), "{line}");
        if line.contains("'b' leads now") {
            break;
        }
    }
    drop(a);
    watch.ends(Signal::TERM);
}

#[test]
fn a_lease_that_runs_out_is_told_though_nobody_says_so() {
    let place = Place::new();
    let claim = tenure::Claim::new(
        tenure::Name::new(NAME).unwrap(),
        tenure::CandidateId::new("gone").unwrap(),
        tenure::Nonce::random(),
        std::time::Duration::from_millis(700),
    );
    place.runtime.block_on(place.store.acquire(&[claim])).unwrap();
    let mut watch = Watch::new(&place, &["watch", "billing:*", "--json"]);
    assert_eq!(watch.json()["to"], "gone");
    let news = watch.json();
    assert_eq!((&news["event"], &news["reason"]), (&json!("lost"), &json!("expired")), "{news}");
}

#[test]
fn nobody_reading_ends_it_though_there_is_no_news() {
    let place = Place::new();
    let mut child =
        place.world.start(&["watch", "--lock-dir", place.directory().to_str().unwrap()]);
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn mistakes_exit_125_and_a_store_that_is_down_at_the_start_122() {
    let world = World::new();
    world.run(&["watch", "a b"]).exits(125).complains("' '");
    if cfg!(feature = "redis") {
        world.run(&["--store", "redis://127.0.0.1:1", "watch"]).exits(122);
    }
}
