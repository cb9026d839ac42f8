//! A drain that the store keeps: read before the first claim.

use super::tests::Bench;
use super::*;
use crate::timing::Options;

fn pending() -> Bench {
    let mut bench = Bench::new(&Options::default());
    bench.machine.begin_before_drain_record();
    assert_eq!(bench.at(0, Input::Woke), []);
    assert_eq!(bench.machine.wake_at(), None);
    bench
}

#[test]
fn a_candidate_claims_only_after_it_has_read_that_it_is_not_drained() {
    let mut bench = pending();
    assert_eq!(bench.at(5, Input::Wanted(true)), []);
    bench.at(10, Input::DrainRecord(Some(false)));
    bench.asked();
}

#[test]
fn a_drained_candidate_observes_until_it_is_undrained() {
    let mut bench = pending();
    let actions = bench.at(10, Input::DrainRecord(Some(true)));
    assert!(matches!(actions, [Effect::Observe(_)]), "{actions:?}");
    assert!(bench.machine.is_drained());
}

#[test]
fn without_an_answer_it_observes_and_claims_when_the_answer_comes() {
    let mut bench = pending();
    let actions = bench.at(10, Input::DrainRecord(None));
    let [Effect::Observe(request)] = actions else { panic!("{actions:?}") };
    let request = *request;
    bench.at(20, Input::Observed(request, Ok(None)));
    bench.at(30, Input::DrainRecord(Some(false)));
    bench.asked();
}

#[test]
fn a_request_is_newer_than_the_record() {
    let mut bench = pending();
    bench.at(5, Input::Asked(Request::Drain));
    bench.at(10, Input::DrainRecord(Some(false)));
    assert!(bench.machine.is_drained());
}
