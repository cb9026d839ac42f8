//! Tests of a leader whose renewals the store answers with an error.

use super::tests::{Bench, START, end_of, grant, released};
use super::*;
use crate::lease::{Answer, StartupWait};
use crate::timing::TimingOptions;

/// Fails every renewal with `error` until the machine ends the term; returns how it ended.
fn end_after(bench: &mut Bench, error: &Error) -> TermEnd {
    loop {
        let at = bench.wakes_at();
        bench.at(at + 1, Input::Woke);
        match &bench.effects[..] {
            [Effect::Renew(request, _)] => {
                let request = *request;
                bench.at(at + 1, Input::Renewed(request, Err(error.clone())));
                if bench.effects.iter().any(|effect| matches!(effect, Effect::End(_))) {
                    break;
                }
            }
            _ => break,
        }
    }
    end_of(&bench.effects).clone()
}

#[test]
fn a_corrupt_record_ends_the_term_at_once_with_the_reason() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.granted(1, 1);
    bench.at(1_400, Input::Woke);
    let request = bench.renewal();
    let error = Error::corrupt("not a lease");
    let effects = bench.at(1_401, Input::Renewed(request, Err(error.clone())));
    assert!(effects.contains(&Effect::Unreachable(error.clone())), "{effects:?}");
    assert_eq!(
        *end_of(effects),
        TermEnd { reason: EndReason::StoreError(error), deadline: Moment::PAST }
    );
    // The record is not this candidate's lease, so there is nothing to release.
    let effects = bench.at(1_500, Input::WorkEnded);
    assert!(effects.iter().all(|effect| !matches!(effect, Effect::Release(..))), "{effects:?}");
}

#[test]
fn a_corrupt_record_is_claimed_again_after_the_retry_period() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.granted(1, 1);
    let error = Error::corrupt("not a lease");
    end_after(&mut bench, &error);
    let mut now = 1_500;
    bench.at(now, Input::WorkEnded);
    for _ in 0..3 {
        let (request, _) = bench.claim();
        bench.at(now + 1, Input::Acquired(request, Err(error.clone())));
        let pause = bench.wakes_at() - now;
        assert!(pause >= 1_000, "again after {pause} ms");
        now = bench.wakes_at() + 1;
        bench.at(now, Input::Woke);
    }
    assert_eq!(bench.machine.phase(), Phase::Waiting);
}

#[test]
fn a_refused_password_ends_the_term_in_time_with_the_reason() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.granted(1, 1);
    let error = Error::denied("wrong password");
    let ending = end_after(&mut bench, &error);
    assert_eq!(ending.reason, EndReason::StoreError(error));
    // As with a store that does not answer: not earlier than necessary, and before the deadline.
    assert!(bench.now >= START + Duration::from_millis(2_796), "{:?}", bench.now);
    assert!(bench.now < ending.deadline);
    released(bench.at(3_000, Input::WorkEnded));
}

#[test]
fn a_refused_password_that_is_repaired_in_time_does_not_end_the_term() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.granted(1, 1);
    bench.at(1_400, Input::Woke);
    let request = bench.renewal();
    bench.at(1_401, Input::Renewed(request, Err(Error::denied("wrong password"))));
    let again = bench.wakes_at() + 1;
    bench.at(again, Input::Woke);
    let request = bench.renewal();
    let effects = bench.at(again + 1, Input::Renewed(request, Ok(Answer::Held(()))));
    assert!(effects.contains(&Effect::Back), "{effects:?}");
    assert_eq!(bench.machine.phase(), Phase::Leading);
}

#[test]
fn an_answered_error_after_a_missing_answer_is_reported_too() {
    let mut bench = Bench::new(&TimingOptions::default());
    let reports = |effects: &[Effect]| {
        effects.iter().filter(|effect| matches!(effect, Effect::Unreachable(_))).count()
    };
    let mut now = 0;
    let down = || Error::unavailable("no answer");
    let denied = || Error::denied("wrong password");
    let errors = [(down(), 1), (down(), 0), (denied(), 1), (down(), 0), (denied(), 0)];
    for (error, reported) in errors {
        bench.at(now, Input::Woke);
        let (request, _) = bench.claim();
        let effects = bench.at(now + 1, Input::Acquired(request, Err(error.clone())));
        assert_eq!(reports(effects), reported, "{error:?}: {effects:?}");
        now = bench.wakes_at() + 1;
    }
}

#[test]
fn a_corrupt_record_during_the_startup_wait_ends_the_hold() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Woke);
    let (request, nonce) = bench.claim();
    let mut held = grant(1, nonce);
    let left = Duration::from_secs(60);
    held.wait = Some(StartupWait { left, reason: WaitReason::Observed });
    bench.at(1, Input::Acquired(request, Ok(Answer::Held(held))));
    assert_eq!(bench.machine.phase(), Phase::Starting);
    bench.at(1_400, Input::Woke);
    let request = bench.renewal();
    bench.at(1_401, Input::Renewed(request, Err(Error::corrupt("not a lease"))));
    assert_eq!(bench.machine.phase(), Phase::Waiting);
    assert!(bench.wakes_at() > 2_400, "{}", bench.wakes_at());
}
