//! The rules of this store and those of the reference, side by side: whatever is asked, the answers are the same.

use std::cell::RefCell;

use proptest::prelude::*;

use super::super::record::parse;
use super::*;
use crate::lease::{CandidateId, Note};
use crate::store::Scope;
use crate::store::memory::Leases;

#[derive(Clone, Debug)]
enum Ask {
    Acquire { who: u8, ttl: u64 },
    Renew { whose: usize, ttl: u64 },
    Release { whose: usize, next: bool },
    Save { whose: usize, number: u64 },
    Revoke { now: bool },
    Wait(u64),
}

fn ask() -> impl Strategy<Value = Ask> {
    let ttl = prop_oneof![Just(100_u64), Just(200)];
    prop_oneof![
        4 => (0..4_u8, ttl.clone()).prop_map(|(who, ttl)| Ask::Acquire { who, ttl }),
        3 => (0..6_usize, ttl).prop_map(|(whose, ttl)| Ask::Renew { whose, ttl }),
        2 => (0..6_usize, any::<bool>()).prop_map(|(whose, next)| Ask::Release { whose, next }),
        2 => (0..6_usize, 0..4_u64).prop_map(|(whose, number)| Ask::Save { whose, number }),
        1 => any::<bool>().prop_map(|now| Ask::Revoke { now }),
        4 => (0..150_u64).prop_map(Ask::Wait),
    ]
}

/// A directory with one record in it, without the directory.
#[derive(Default)]
struct Shelf(RefCell<Option<Vec<u8>>>);

impl Shelf {
    fn found(&self, now: Moment) -> Option<(Record, Standing)> {
        let bytes = self.0.borrow();
        let record = parse(bytes.as_deref()?).expect("our own writing").record;
        let standing = match &record.term {
            None => Standing::Free,
            Some(term) => match term.until.expect("readable").since(now) {
                Duration::ZERO => Standing::Over(Ended::Expired(record.token)),
                left => Standing::Live(left),
            },
        };
        Some((record, standing))
    }

    fn lease(&self, at: RuleContext<'_>) -> Option<Lease> {
        let (record, standing) = self.found(at.now)?;
        Some(lease(Some(FoundRecord { record: &record, standing }), &record.name, at))
    }

    fn ask<V: Operation>(&self, verb: &V, at: RuleContext<'_>) -> Result<V::Answer> {
        let found = self.found(at.now);
        let judged =
            found.as_ref().map(|(record, standing)| FoundRecord { record, standing: *standing });
        match verb.step(judged, at)? {
            Step::Answer(answer) => Ok(answer),
            Step::Write(record, answer) => {
                let head = record.encode_head().expect("it can be written");
                let tail = record.encode_tail(&head, 0);
                *self.0.borrow_mut() = Some([head, tail].concat());
                Ok(answer)
            }
            Step::Remove(answer) => {
                *self.0.borrow_mut() = None;
                Ok(answer)
            }
        }
    }
}

fn same<T: PartialEq + std::fmt::Debug>(ours: Result<T>, reference: Result<T>) {
    match (ours, reference) {
        (Ok(ours), Ok(reference)) => assert_eq!(ours, reference),
        (Err(ours), Err(reference)) => {
            assert_eq!((ours.kind(), ours.to_string()), (reference.kind(), reference.to_string()));
        }
        (ours, reference) => panic!("ours: {ours:?}, the reference: {reference:?}"),
    }
}

fn run(asks: Vec<Ask>) {
    let (shelf, mut ledger) = (Shelf::default(), Leases::default());
    let name = Name::new("n").unwrap();
    let era = BootId { boot: "b".to_owned(), timens: "t".to_owned() };
    let mut now = Moment::from_nanos(1_000_000_000);
    let token = Token::new(1).unwrap();
    let mut holds: Vec<Hold> = Vec::new();
    for ask in asks {
        let minting_micros = now.as_nanos() / 1_000;
        let at = RuleContext { now, minting_micros, era: &era, live: None, floor: None };
        let candidate = |who: u8| CandidateId::new(&format!("c{}", who % 3)).unwrap();
        let made_up = || Hold {
            name: name.clone(),
            candidate: candidate(0),
            nonce: crate::Nonce::from_bits(0),
            token,
        };
        let hold = |whose: usize| holds.iter().rev().nth(whose).cloned().unwrap_or_else(made_up);
        let ms = Duration::from_millis;
        match ask {
            Ask::Acquire { who, ttl } => {
                let nonce = crate::Nonce::from_bits(who.into());
                let mut claim = Claim::new(name.clone(), candidate(who), nonce, ms(ttl));
                claim.note = Note::new(&format!("note {who}")).unwrap();
                let ours = shelf.ask(&claim, at);
                if let Ok(Answer::Held(grant)) = &ours {
                    holds.push(grant.hold.clone());
                }
                same(ours, ledger.acquire(now, minting_micros, &claim));
            }
            Ask::Renew { whose, ttl } => {
                let renewal = Renewal { hold: hold(whose), ttl: ms(ttl) };
                same(shelf.ask(&renewal, at), ledger.renew(now, &renewal.hold, ms(ttl)));
            }
            Ask::Release { whose, next } => {
                let release = Release { hold: hold(whose), next: next.then(|| candidate(1)) };
                same(shelf.ask(&release, at), ledger.release(now, &release).map(|_| ()));
            }
            Ask::Save { whose, number } => {
                let checkpoint = Checkpoint::new(number.to_le_bytes()).unwrap();
                let save = Save { hold: hold(whose), number, checkpoint };
                let reference = ledger.save(now, &save.hold, number, &save.checkpoint);
                same(shelf.ask(&save, at), reference);
            }
            Ask::Revoke { now: at_once } => {
                let when = if at_once { Revoke::Now } else { Revoke::InTime };
                let revocation = Revocation { name: name.clone(), when };
                let reference = ledger.revoke(now, minting_micros, &name, when);
                same(shelf.ask(&revocation, at), reference);
            }
            Ask::Wait(time) => now = now + ms(time),
        }
        let at = RuleContext { now, ..at };
        let reference = ledger.observe(now, &Scope::name(&name)).pop().map(Result::unwrap);
        assert_eq!(shelf.lease(at), reference);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_answers_are_those_of_the_reference(asks in proptest::collection::vec(ask(), 1..60)) {
        run(asks);
    }
}
