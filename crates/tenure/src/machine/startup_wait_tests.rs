//! Tests of a start-up wait: the machine holds the lease and does not lead yet.

use super::tests::{Bench, START, grant, lead_of, taken};
use super::*;
use crate::lease::{Answer, ClaimedWait, Grant, Lease, StartupWait, WaitReason};
use crate::store::Change;
use crate::timing::TimingOptions;

fn wait(millis: u64) -> StartupWait {
    StartupWait { left: Duration::from_millis(millis), reason: WaitReason::Restarted }
}

#[test]
fn a_wait_that_the_store_requires_is_reported_and_not_recorded_again() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Woke);
    let (request, nonce) = bench.claim();
    let grant = Grant { wait: Some(wait(2_000)), ..grant(1, nonce) };
    let effects = bench.at(10, Input::Acquired(request, Ok(Answer::Held(grant))));
    assert!(
        matches!(
            effects,
            [Effect::Starting(_, starting), Effect::HolderChanged(Some(_), false)]
                if *starting == wait(2_000)
        ),
        "{effects:?}"
    );
    assert_eq!(bench.machine.phase(), Phase::Starting);
    assert_eq!(bench.machine.leader(), None);
    bench.at(1_334, Input::Woke);
    let request = bench.renewal();
    assert_eq!(bench.at(1_335, Input::Renewed(request, Ok(Answer::Held(())))), []);
    let effects = bench.at(2_010, Input::Woke);
    assert_eq!(lead_of(effects).deadline, START + Duration::from_millis(1_334 + 3_596));
    assert_eq!(bench.machine.leader(), Some("me"));
}

#[test]
fn a_wait_that_only_the_candidate_knows_of_is_recorded_by_its_claim_at_once() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Woke);
    let (request, _) = bench.claim();
    bench.at(1, Input::Acquired(request, Ok(Answer::Taken(taken(5, 4_000)))));
    bench.at(1_000, Input::Changed(Change::Look));
    let at = bench.wakes_at();
    bench.at(at + 1, Input::Woke);
    let (request, nonce) = bench.claim();
    // The record of term 5 is gone: a new one begins with term 6.
    let granted = at + 2;
    let effects = bench.at(granted, Input::Acquired(request, Ok(Answer::Held(grant(6, nonce)))));
    let Some(&Effect::Acquire(request, again, ClaimedWait::AtLeast(recorded))) = effects.last()
    else {
        panic!("expected the claim again, not {effects:?}");
    };
    assert_eq!((again, recorded.reason), (nonce, WaitReason::Observed));
    assert_eq!(recorded.left, Duration::from_millis(4_004));
    assert_eq!(bench.machine.phase(), Phase::Starting);
    let repeated = Grant { wait: Some(recorded), ..grant(6, nonce) };
    assert_eq!(bench.at(granted + 1, Input::Acquired(request, Ok(Answer::Held(repeated)))), []);
    // From now on it renews as usual.
    bench.at(granted + 1_400, Input::Woke);
    bench.renewal();
}

#[test]
fn a_holder_in_its_startup_wait_is_not_the_leader_and_is_polled_when_it_leads() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Woke);
    let (request, _) = bench.claim();
    let starting = Lease { wait: Some(wait(1_500)), ..*taken(5, 4_000) };
    let answer = Ok(Answer::Taken(Box::new(starting)));
    let effects = bench.at(1, Input::Acquired(request, answer));
    assert_eq!(effects, [Effect::HolderChanged(Some("other".to_owned()), false)]);
    assert_eq!(bench.machine.leader(), None);
    assert_eq!(bench.wakes_at(), 1_502);
    bench.at(1_502, Input::Woke);
    let (request, _) = bench.claim();
    let effects = bench.at(1_503, Input::Acquired(request, Ok(Answer::Taken(taken(5, 4_000)))));
    assert_eq!(effects, [Effect::HolderChanged(Some("other".to_owned()), true)]);
    assert_eq!(bench.machine.leader(), Some("other"));
}

#[test]
fn a_lease_that_grants_no_right_is_led_at_once() {
    let mut bench =
        Bench::configured(&TimingOptions::default(), |config| config.grants_no_right = true);
    let effects = bench.at(0, Input::Woke);
    let [Effect::Acquire(request, nonce, ClaimedWait::Never)] = effects else {
        panic!("expected a claim without a wait, not {effects:?}");
    };
    let grant = Grant { wait: Some(wait(2_000)), ..grant(1, *nonce) };
    let answer = Input::Acquired(*request, Ok(Answer::Held(grant)));
    lead_of(bench.at(1, answer));
}
