//! Tests of a drain that the store has recorded: the candidate reads it before its first claim.

use super::tests::Bench;
use super::*;
use crate::timing::TimingOptions;

fn pending() -> Bench {
    let mut bench =
        Bench::configured(&TimingOptions::default(), |config| config.awaits_drain_record = true);
    assert_eq!(bench.at(0, Input::Woke), []);
    assert_eq!(bench.machine.wake_at(), None);
    bench
}

#[test]
fn a_candidate_claims_only_after_it_has_read_that_it_is_not_drained() {
    let mut bench = pending();
    assert_eq!(bench.at(5, Input::Wanted(true)), []);
    bench.at(10, Input::DrainRecord(Some(false)));
    bench.claim();
}

#[test]
fn a_drained_candidate_observes_until_it_is_undrained() {
    let mut bench = pending();
    let effects = bench.at(10, Input::DrainRecord(Some(true)));
    assert!(matches!(effects, [Effect::Observe(_)]), "{effects:?}");
    assert!(bench.machine.is_drained());
}

#[test]
fn without_a_drain_record_a_candidate_observes_until_the_record_is_read() {
    let mut bench = pending();
    let effects = bench.at(10, Input::DrainRecord(None));
    let [Effect::Observe(request)] = effects else { panic!("{effects:?}") };
    let request = *request;
    bench.at(20, Input::Observed(request, Ok(None)));
    bench.at(30, Input::DrainRecord(Some(false)));
    bench.claim();
}

#[test]
fn a_request_is_newer_than_the_record() {
    let mut bench = pending();
    bench.at(5, Input::Requested(Request::Drain));
    bench.at(10, Input::DrainRecord(Some(false)));
    assert!(bench.machine.is_drained());
}
