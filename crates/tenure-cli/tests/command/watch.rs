//! `tenure watch`.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::local_candidates::{Fixture, NAME};
use tenure_rig::command::{Sandbox, eventually, signal};

/// A running `tenure watch`.
struct WatchProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl WatchProcess {
    fn new(fixture: &Fixture, args: &[&str]) -> WatchProcess {
        let mut command = fixture.sandbox.command(args);
        command.env("TENURE_LOCK_DIR", fixture.directory()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        WatchProcess { child, lines }
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

impl Drop for WatchProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_state_comes_first_and_then_each_change() {
    let fixture = Fixture::new();
    let mut watch = WatchProcess::new(&fixture, &["watch", NAME, "--json"]);
    let first = watch.line();
    let (at, rest) = first.split_at(r#"{"at":"2025-06-18T15:00:00.000Z""#.len());
    assert!(at.ends_with(r#"Z""#), "{first}");
    let pinned = r#","event":"state","name":"billing:nightly","from":null,"to":null,"token":null,"reason":null}"#;
    assert_eq!(rest, pinned);
    let a = fixture.leader(NAME, "a");
    let token = a.status().token.unwrap().get();
    let news = watch.json();
    assert_eq!((&news["event"], &news["to"]), (&json!("became"), &json!("a")), "{news}");
    assert_eq!((&news["token"], &news["from"]), (&json!(token), &json!(null)), "{news}");
    fixture.runtime.block_on(a.stop());
    let news = watch.json();
    assert_eq!((&news["event"], &news["from"]), (&json!("lost"), &json!("a")), "{news}");
    assert_eq!((&news["to"], &news["reason"]), (&json!(null), &json!("released")), "{news}");
    watch.ends(Signal::INT);
}

#[test]
fn text_output_has_sentences_and_own_names_are_hidden() {
    let fixture = Fixture::new();
    let a = fixture.leader(NAME, "a");
    let b = fixture.candidate(NAME, "b");
    eventually("b has seen a", || b.current_leader().as_deref() == Some("a"));
    let mut watch = WatchProcess::new(&fixture, &["watch"]);
    let line = watch.line();
    assert!(line.contains("billing:nightly: 'a' leads (token "), "{line}");
    fixture.run(&["resign", NAME, "--to", "b"]).exits(0);
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
fn an_expiry_is_reported_without_a_hint() {
    let fixture = Fixture::new();
    let claim = tenure::Claim::new(
        tenure::Name::new(NAME).unwrap(),
        tenure::CandidateId::new("gone").unwrap(),
        tenure::Nonce::random(),
        std::time::Duration::from_millis(700),
    );
    fixture.runtime.block_on(fixture.store.acquire(&[claim])).unwrap();
    let mut watch = WatchProcess::new(&fixture, &["watch", "billing:*", "--json"]);
    assert_eq!(watch.json()["to"], "gone");
    let news = watch.json();
    assert_eq!((&news["event"], &news["reason"]), (&json!("lost"), &json!("expired")), "{news}");
}

#[test]
fn a_closed_stdout_ends_the_watch_without_events() {
    let fixture = Fixture::new();
    let mut child =
        fixture.sandbox.start(&["watch", "--lock-dir", fixture.directory().to_str().unwrap()]);
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn invalid_usage_exits_125_and_an_unreachable_store_at_the_start_122() {
    let sandbox = Sandbox::new();
    sandbox.run(&["watch", "a b"]).exits(125).complains("' '");
    if cfg!(feature = "redis") {
        sandbox.run(&["--store", "redis://127.0.0.1:1", "watch"]).exits(122);
    }
}
