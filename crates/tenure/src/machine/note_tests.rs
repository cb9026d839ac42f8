//! Tests of a note that changes while the lease is held.

use super::tests::{Bench, grant};
use super::*;
use crate::lease::{Answer, ClaimedWait};
use crate::timing::TimingOptions;

fn holder() -> Bench {
    let mut bench =
        Bench::configured(&TimingOptions::default(), |config| config.grants_no_right = true);
    bench.granted(1, 10);
    bench
}

/// The claim that is repeated to send a note.
fn sent(bench: &Bench) -> (RequestId, Nonce) {
    match &bench.effects[..] {
        [Effect::Acquire(request, nonce, ClaimedWait::Never)] => (*request, *nonce),
        other => panic!("expected one claim, not {other:?}"),
    }
}

#[test]
fn a_holder_sends_a_changed_note_once_and_then_renews_as_before() {
    let mut bench = holder();
    bench.at(100, Input::NoteChanged);
    let (request, nonce) = sent(&bench);
    let effects = bench.at(110, Input::Acquired(request, Ok(Answer::Held(grant(10, nonce)))));
    assert!(matches!(effects, [Effect::Extend(_)]), "{effects:?}");
    let due = bench.wakes_at() + 1;
    assert!(due > 1_000, "the next renewal is due after the usual time, not at {due}");
    bench.at(due, Input::Woke);
    bench.renewal();
}

#[test]
fn a_note_that_changes_while_a_request_is_in_flight_is_sent_after_it() {
    let mut bench = holder();
    bench.at(100, Input::NoteChanged);
    let (request, nonce) = sent(&bench);
    assert_eq!(bench.at(105, Input::NoteChanged), []);
    bench.at(110, Input::Acquired(request, Ok(Answer::Held(grant(10, nonce)))));
    assert!(matches!(bench.effects[..], [Effect::Extend(_), Effect::Acquire(..)]));
}

#[test]
fn a_note_that_got_no_answer_is_sent_again() {
    let mut bench = holder();
    bench.at(100, Input::NoteChanged);
    let (request, _) = sent(&bench);
    bench.at(110, Input::Acquired(request, Err(Error::unavailable("gone"))));
    let due = bench.wakes_at() + 1;
    bench.at(due, Input::Woke);
    sent(&bench);
}

#[test]
fn a_lease_that_grants_a_right_never_repeats_its_claim_for_a_note() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.granted(1, 10);
    assert_eq!(bench.at(100, Input::NoteChanged), []);
}
