//! Tests of which candidate claims a free lease first.

use super::tests::{Bench, taken};
use super::*;
use crate::lease::Answer;
use crate::store::Change;
use crate::timing::TimingOptions;

fn freed(next: Option<&str>) -> Input {
    let next = next.map(|id| CandidateId::new(id).unwrap());
    Input::Changed(Change::Freed { name: Name::new("n").unwrap(), next })
}

fn watch_hint() -> Input {
    Input::Changed(Change::Look)
}

fn free() -> Lease {
    Lease { holder: None, left: Duration::ZERO, ..*taken(1, 0) }
}

/// A candidate of rank 1 that knows the holder 'other' of a lease that expires at 4000 ms.
fn waiter_of_rank_1() -> Bench {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Woke);
    let (request, _) = bench.claim();
    bench.at(0, Input::Acquired(request, Ok(Answer::Taken(taken(1, 4_000)))));
    let others = vec![(CandidateId::new("high").unwrap(), 9)];
    bench.at(1, Input::Rivals(Arc::new(OtherCandidates { own: 0, others })));
    bench
}

impl Bench {
    fn observation(&self) -> RequestId {
        match self.effects.last() {
            Some(Effect::Observe(request)) => *request,
            _ => panic!("expected an observation, not {:?}", self.effects),
        }
    }

    /// The observation that the machine has just requested shows `lease` at `ms`.
    fn observed(&mut self, ms: u64, lease: Option<Lease>) -> &[Effect] {
        let request = self.observation();
        self.at(ms, Input::Observed(request, Ok(lease)))
    }

    /// Nothing is sent before `ms`, and then the lease is claimed.
    fn claims_at(&mut self, ms: u64) {
        assert_eq!(self.wakes_at(), ms);
        assert_eq!(self.at(ms - 1, Input::Woke), []);
        self.at(ms, Input::Woke);
        self.claim();
    }
}

#[test]
fn a_poll_that_is_due_when_the_lease_is_released_waits_for_the_rank() {
    let mut bench = waiter_of_rank_1();
    assert_eq!(bench.at(100, watch_hint()), []);
    assert!((100..=105).contains(&bench.wakes_at()), "{}", bench.wakes_at());
    assert_eq!(bench.at(100, freed(None)), []);
    bench.claims_at(150);
}

#[test]
fn a_lease_that_a_poll_finds_free_waits_for_the_rank() {
    let mut bench = waiter_of_rank_1();
    bench.at(100, watch_hint());
    bench.at(105, Input::Woke);
    bench.observed(106, Some(free()));
    bench.claims_at(156);
}

#[test]
fn a_poll_during_the_delay_makes_it_neither_shorter_nor_longer() {
    let mut bench = waiter_of_rank_1();
    bench.at(100, freed(None));
    bench.at(120, watch_hint());
    bench.at(125, Input::Woke);
    bench.observed(126, Some(free()));
    bench.claims_at(150);
}

#[test]
fn an_expired_lease_waits_for_the_rank() {
    let mut bench = waiter_of_rank_1();
    let expiry = bench.wakes_at();
    assert!((4_001..=4_011).contains(&expiry), "{expiry}");
    bench.at(expiry + 1, Input::Woke);
    bench.observed(expiry + 2, Some(free()));
    bench.claims_at(expiry + 52);
}

#[test]
fn a_name_that_was_never_used_waits_for_the_rank() {
    let mut bench = Bench::new(&TimingOptions::default());
    let others = vec![(CandidateId::new("high").unwrap(), 9)];
    bench.at(0, Input::Rivals(Arc::new(OtherCandidates { own: 0, others })));
    bench.observed(1, None);
    bench.claims_at(51);
}

#[test]
fn a_lease_that_is_granted_during_the_delay_is_not_claimed() {
    let mut bench = waiter_of_rank_1();
    bench.at(100, freed(None));
    let (name, token) = (Name::new("n").unwrap(), Token::new(2).unwrap());
    bench.at(110, Input::Changed(Change::Granted { name, token, holder: None }));
    bench.at(150, Input::Woke);
    bench.observed(151, Some(*taken(2, 4_000)));
    assert!(bench.wakes_at() >= 4_000, "{}", bench.wakes_at());
}

#[test]
fn an_unanswered_claim_is_repeated_because_it_may_have_been_granted() {
    let mut bench = waiter_of_rank_1();
    bench.at(100, freed(None));
    bench.at(150, Input::Woke);
    let (request, nonce) = bench.claim();
    bench.at(160, Input::Acquired(request, Err(Error::unavailable("no answer"))));
    let at = bench.wakes_at() + 1;
    bench.at(at, Input::Woke);
    assert_eq!(bench.claim().1, nonce);
}

#[test]
fn without_higher_priorities_a_poll_claims_at_once() {
    let mut bench = Bench::new(&TimingOptions::default());
    let others = vec![(CandidateId::new("equal").unwrap(), 0)];
    bench.at(0, Input::Rivals(Arc::new(OtherCandidates { own: 0, others })));
    let (request, _) = bench.claim();
    bench.at(1, Input::Acquired(request, Ok(Answer::Taken(taken(1, 4_000)))));
    bench.at(100, watch_hint());
    bench.at(105, Input::Woke);
    let (request, _) = bench.claim();
    bench.at(106, Input::Acquired(request, Ok(Answer::Taken(taken(1, 3_900)))));
    bench.at(200, freed(None));
    bench.claim();
}

#[test]
fn a_poll_does_not_claim_before_a_named_successor_had_its_time() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Woke);
    let (request, _) = bench.claim();
    bench.at(1, Input::Acquired(request, Ok(Answer::Taken(taken(1, 4_000)))));
    bench.at(100, freed(Some("successor")));
    bench.at(110, watch_hint());
    bench.at(120, Input::Woke);
    bench.observed(121, Some(free()));
    bench.claims_at(600);
}
