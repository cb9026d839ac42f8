//! The rules of a lease, as tables of what was found and what follows.

use super::*;
use crate::lease::{ClaimedWait, WaitReason};

const TTL: Duration = Duration::from_secs(4);
const LEFT: Standing = Standing::Live(Duration::from_secs(3));

fn name() -> Name {
    Name::new("job").unwrap()
}

fn claim(id: &str, nonce: u128) -> Claim {
    Claim::new(name(), CandidateId::new(id).unwrap(), Nonce::from_bits(nonce), TTL)
}

fn election(id: &str, nonce: u128) -> Claim {
    Claim { keeps_history: true, ..claim(id, nonce) }
}

fn at(second: u64) -> RuleContext {
    let micros = second * 1_000_000;
    let store_time = Some(StoreTime(micros));
    RuleContext { store_time, wait_micros: micros, minting_micros: micros, floor: None }
}

/// Applies an operation and returns its answer and what it writes.
fn apply<O: Operation>(
    operation: &O,
    found: Option<(&Record, Standing)>,
    second: u64,
) -> (O::Answer, Option<RecordWrite>) {
    let found = found.map(|(record, standing)| FoundRecord { record, standing });
    let step = operation.apply(found, &at(second)).unwrap();
    (step.answer, step.write)
}

/// A record whose lease is held, and the hold.
fn held_by(claim: &Claim, second: u64) -> (Record, Hold) {
    let (answer, write) = apply(claim, None, second);
    let write = write.expect("a grant is written");
    assert_eq!(write.time, TermTime::Begins);
    (write.record, answer.held().expect("the name is free").hold)
}

#[test]
fn a_live_lease_is_taken_and_stays_unchanged() {
    let (record, _) = held_by(&claim("a", 1), 10);
    for other in [claim("b", 2), claim("a", 2), claim("b", 1)] {
        let (answer, write) = apply(&other, Some((&record, LEFT)), 11);
        assert!(matches!(answer, Answer::Taken(lease) if lease.left == Duration::from_secs(3)));
        assert!(write.is_none());
    }
}

#[test]
fn the_same_campaign_gets_the_same_hold_again_and_extends() {
    let (record, hold) = held_by(&claim("a", 1), 10);
    let note = Note::new("http://a").unwrap();
    let repeated = Claim { note: note.clone(), ttl: TTL * 2, ..claim("a", 1) };
    let (answer, write) = apply(&repeated, Some((&record, LEFT)), 11);
    assert_eq!(answer.held().unwrap().hold, hold);
    let write = write.unwrap();
    assert_eq!(write.time, TermTime::Extended);
    let term = write.record.term.unwrap();
    assert_eq!((term.note, term.ttl, term.since_micros), (note, TTL * 2, 10_000_000));
}

#[test]
fn a_term_that_is_over_is_replaced_under_a_greater_token() {
    let (record, hold) = held_by(&claim("a", 1), 10);
    for ended in [Ended::Expired(hold.token), Ended::Died(hold.token)] {
        // A clock that went back changes nothing.
        let (answer, write) = apply(&claim("a", 1), Some((&record, Standing::Over(ended))), 9);
        let grant = answer.held().unwrap();
        assert_eq!(grant.hold.token.get(), hold.token.get() + 1);
        assert_eq!(grant.lineage, Lineage { origin: record.origin, before: ended });
        assert_eq!(write.unwrap().time, TermTime::Begins);
    }
}

#[test]
fn only_the_live_hold_renews_releases_and_saves() {
    let (record, hold) = held_by(&claim("a", 1), 10);
    let over = Standing::Over(Ended::Expired(hold.token));
    let wrong_token = Hold { token: Token::new(hold.token.get() + 1).unwrap(), ..hold.clone() };
    let wrong_nonce = Hold { nonce: Nonce::from_bits(2), ..hold.clone() };
    let wrong_id = Hold { candidate: CandidateId::new("b").unwrap(), ..hold.clone() };
    let cases = [
        (&hold, Some((&record, LEFT)), true),
        (&hold, Some((&record, over)), false),
        (&hold, None, false),
        (&wrong_token, Some((&record, LEFT)), false),
        (&wrong_nonce, Some((&record, LEFT)), false),
        (&wrong_id, Some((&record, LEFT)), false),
    ];
    for (hold, found, expected) in cases {
        let hold = || hold.clone();
        let (answer, write) = apply(&Renewal { hold: hold(), ttl: TTL }, found, 11);
        assert_eq!((answer.is_held(), write.is_some()), (expected, expected));
        let checkpoint = Checkpoint::new("x").unwrap();
        let (answer, write) = apply(&Save { hold: hold(), number: 1, checkpoint }, found, 11);
        assert_eq!((answer.is_held(), write.is_some()), (expected, expected));
        let (released, write) = apply(&Release::from(hold()), found, 11);
        assert_eq!((released, write.is_some()), (expected, expected));
    }
}

#[test]
fn a_save_does_not_extend_and_an_older_number_is_refused() {
    let (record, hold) = held_by(&claim("a", 1), 10);
    let save = |number: u64| Save {
        hold: hold.clone(),
        number,
        checkpoint: Checkpoint::new(number.to_string()).unwrap(),
    };
    let (_, write) = apply(&save(7), Some((&record, LEFT)), 11);
    let write = write.unwrap();
    assert_eq!(write.time, TermTime::Unchanged);
    let found = Some(FoundRecord { record: &write.record, standing: LEFT });
    assert!(save(6).apply(found, &at(11)).unwrap_err().to_string().contains("after 7"));
    let (answer, again) = apply(&save(7), Some((&write.record, LEFT)), 11);
    assert!(answer.is_held() && again.is_none());
}

#[test]
fn a_revocation_in_time_keeps_the_term_and_refuses_its_holder() {
    let (record, hold) = held_by(&election("a", 1), 10);
    let revocation = |when| Revocation { name: name(), when };
    let (lease, write) = apply(&revocation(Revoke::InTime), Some((&record, LEFT)), 11);
    assert_eq!((lease.left, lease.token > Some(hold.token)), (Duration::from_secs(3), true));
    let write = write.unwrap();
    assert_eq!(write.time, TermTime::Unchanged);
    let (answer, _) =
        apply(&Renewal { hold: hold.clone(), ttl: TTL }, Some((&write.record, LEFT)), 11);
    assert!(!answer.is_held());
    let (lease, write) = apply(&revocation(Revoke::Now), Some((&record, LEFT)), 11);
    assert_eq!((lease.holder, write.unwrap().time), (None, TermTime::None));
}

#[test]
fn the_history_has_each_term_once() {
    let (record, hold) = held_by(&election("a", 1), 10);
    let (_, write) = apply(&Release::from(hold), Some((&record, LEFT)), 11);
    let record = write.unwrap().record;
    let (_, write) = apply(&election("b", 2), Some((&record, Standing::Free)), 12);
    let record = write.unwrap().record;
    let over = Standing::Over(Ended::Expired(record.token));
    let (_, write) = apply(&election("c", 3), Some((&record, over)), 20);
    let record = write.unwrap().record;
    let revocation = Revocation { name: name(), when: Revoke::InTime };
    let (lease, write) = apply(&revocation, Some((&record, LEFT)), 21);
    let record = write.unwrap().record;
    let over = Standing::Over(Ended::Expired(record.token));
    let (_, write) = apply(&election("d", 4), Some((&record, over)), 30);
    let history = write.unwrap().record.history.unwrap();
    assert_eq!(history, lease.history, "a revoked term is in it since its revocation");
    let shown: Vec<_> = history
        .iter()
        .map(|term| (term.candidate.as_str(), term.from, term.to, term.outcome.as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            ("a", 10_000, 11_000, "released"),
            ("b", 12_000, 20_000, "expired"),
            ("c", 20_000, 21_000, "revoked"),
        ]
    );
    assert!(history.is_sorted_by_key(|term| term.token));
}

#[test]
fn the_history_has_a_limit_and_only_elections_have_one() {
    let mut record = held_by(&election("a", 1), 10).0;
    for round in 0..100 {
        let over = Standing::Over(Ended::Expired(record.token));
        record = apply(&election("a", 2), Some((&record, over)), 11 + round).1.unwrap().record;
    }
    let history = record.history.as_ref().unwrap();
    assert_eq!((history.len(), history.last().unwrap().to), (MAX_HISTORY_TERMS, 110_000));
    let over = Standing::Over(Ended::Expired(record.token));
    let record = apply(&claim("a", 3), Some((&record, over)), 200).1.unwrap().record;
    assert_eq!(record.history, None);
}

#[test]
fn a_wait_is_shown_until_it_is_over() {
    let wait = StartupWait { left: Duration::from_secs(5), reason: WaitReason::Observed };
    let waiting = Claim { wait: ClaimedWait::AtLeast(wait), ..claim("a", 1) };
    let (record, _) = held_by(&waiting, 10);
    let shown = |second| {
        let found = FoundRecord { record: &record, standing: LEFT };
        lease(Some(found), &name(), &at(second)).wait.map(|wait| wait.left.as_secs())
    };
    assert_eq!((shown(10), shown(13), shown(15)), (Some(5), Some(2), None));
}

#[test]
fn only_the_released_lease_of_a_participant_is_forgettable() {
    let presence = Claim {
        name: name().node(&CandidateId::new("a").unwrap()),
        wait: ClaimedWait::Never,
        ..claim("a", 1)
    };
    for (claim, expected) in [(presence, true), (claim("a", 1), false)] {
        let (record, hold) = held_by(&claim, 10);
        assert!(!record.is_forgettable());
        let (_, write) = apply(&Release::from(hold), Some((&record, LEFT)), 11);
        assert_eq!(write.unwrap().record.is_forgettable(), expected);
    }
}
