//! Tests of the warning about a second candidate with the same id.

use super::tests::{Bench, grant, taken};
use super::*;
use crate::lease::{Answer, Grant};
use crate::lease::{Ended, Holder, Lineage};
use crate::store::Change;
use crate::timing::TimingOptions;

/// The lease of a candidate with this candidate's id and another nonce.
fn namesake(token: u64, left_ms: u64) -> Box<Lease> {
    let holder = Some(Holder { id: "me".to_owned(), nonce: Some(Nonce::from_bits(9)) });
    Box::new(Lease { holder, ..*taken(token, left_ms) })
}

fn reports(effects: &[Effect]) -> bool {
    effects.contains(&Effect::SameId)
}

#[test]
fn the_lease_of_an_earlier_run_of_this_candidate_is_no_duplicate() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Woke);
    let (request, _) = bench.claim();
    let effects = bench.at(1, Input::Acquired(request, Ok(Answer::Taken(namesake(5, 3_000)))));
    assert!(!reports(effects), "{effects:?}");
    // A hint makes it poll again before the lease has expired.
    bench.at(1_000, Input::Changed(Change::Look));
    bench.at(1_005, Input::Woke);
    let (request, _) = bench.claim();
    let effects = bench.at(1_010, Input::Acquired(request, Ok(Answer::Taken(namesake(5, 1_990)))));
    assert!(!reports(effects), "{effects:?}");
    bench.at(bench.wakes_at() + 1, Input::Woke);
    let (request, nonce) = bench.claim();
    let before = Ended::Expired(Token::new(5).unwrap());
    let lineage = Lineage { origin: Token::new(5).unwrap(), before };
    let grant = Grant { lineage, ..grant(6, nonce) };
    let effects = bench.at(3_100, Input::Acquired(request, Ok(Answer::Held(grant))));
    assert!(!reports(effects), "{effects:?}");
}

#[test]
fn a_second_candidate_that_renews_under_this_id_is_reported_once() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Woke);
    let (request, _) = bench.claim();
    bench.at(1, Input::Acquired(request, Ok(Answer::Taken(namesake(5, 3_000)))));
    for round in 0..3 {
        let due = bench.wakes_at() + 1;
        bench.at(due, Input::Woke);
        let (request, _) = bench.claim();
        let answer = Input::Acquired(request, Ok(Answer::Taken(namesake(5, 3_900))));
        let effects = bench.at(due + 1, answer);
        assert_eq!(reports(effects), round == 0, "round {round}: {effects:?}");
    }
}
