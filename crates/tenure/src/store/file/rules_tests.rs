//! The rules of this store and those of the reference store, side by side: both give the same answers to any history of
//! operations.

use std::cell::RefCell;

use proptest::prelude::*;

use super::super::record::parse;
use super::*;
use crate::lease::{CandidateId, Note};
use crate::store::Scope;
use crate::store::memory::Leases;

#[derive(Clone, Debug)]
enum AnyOperation {
    Acquire { who: u8, ttl: u64 },
    Renew { nth_hold: usize, ttl: u64 },
    Release { nth_hold: usize, next: bool },
    Save { nth_hold: usize, number: u64 },
    Revoke { now: bool },
    Wait(u64),
}

fn any_operation() -> impl Strategy<Value = AnyOperation> {
    let ttl = prop_oneof![Just(100_u64), Just(200)];
    prop_oneof![
        4 => (0..4_u8, ttl.clone()).prop_map(|(who, ttl)| AnyOperation::Acquire { who, ttl }),
        3 => (0..6_usize, ttl).prop_map(|(nth_hold, ttl)| AnyOperation::Renew { nth_hold, ttl }),
        2 => (0..6_usize, any::<bool>()).prop_map(|(nth_hold, next)| AnyOperation::Release { nth_hold, next }),
        2 => (0..6_usize, 0..4_u64).prop_map(|(nth_hold, number)| AnyOperation::Save { nth_hold, number }),
        1 => any::<bool>().prop_map(|now| AnyOperation::Revoke { now }),
        4 => (0..150_u64).prop_map(AnyOperation::Wait),
    ]
}

/// One record in memory, in place of a directory.
#[derive(Default)]
struct RecordSlot(RefCell<Option<Vec<u8>>>);

impl RecordSlot {
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

    fn lease(&self, context: RuleContext<'_>) -> Option<Lease> {
        let (record, standing) = self.found(context.now)?;
        Some(lease(Some(FoundRecord { record: &record, standing }), &record.name, context))
    }

    fn apply<V: Operation>(&self, operation: &V, context: RuleContext<'_>) -> Result<V::Answer> {
        let found = self.found(context.now);
        let found_record =
            found.as_ref().map(|(record, standing)| FoundRecord { record, standing: *standing });
        match operation.apply(found_record, context)? {
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

fn assert_same<T: PartialEq + std::fmt::Debug>(ours: Result<T>, reference: Result<T>) {
    match (ours, reference) {
        (Ok(ours), Ok(reference)) => assert_eq!(ours, reference),
        (Err(ours), Err(reference)) => {
            assert_eq!((ours.kind(), ours.to_string()), (reference.kind(), reference.to_string()));
        }
        (ours, reference) => panic!("ours: {ours:?}, the reference: {reference:?}"),
    }
}

fn run(operations: Vec<AnyOperation>) {
    let (slot, mut leases) = (RecordSlot::default(), Leases::default());
    let name = Name::new("n").unwrap();
    let era = BootId { boot: "b".to_owned(), timens: "t".to_owned() };
    let mut now = Moment::from_nanos(1_000_000_000);
    let token = Token::new(1).unwrap();
    let mut holds: Vec<Hold> = Vec::new();
    for operation in operations {
        let minting_micros = now.as_nanos() / 1_000;
        let context = RuleContext { now, minting_micros, era: &era, live: None, floor: None };
        let candidate = |who: u8| CandidateId::new(&format!("c{}", who % 3)).unwrap();
        let made_up = || Hold {
            name: name.clone(),
            candidate: candidate(0),
            nonce: crate::Nonce::from_bits(0),
            token,
        };
        let hold =
            |nth_hold: usize| holds.iter().rev().nth(nth_hold).cloned().unwrap_or_else(made_up);
        let ms = Duration::from_millis;
        match operation {
            AnyOperation::Acquire { who, ttl } => {
                let nonce = crate::Nonce::from_bits(who.into());
                let mut claim = Claim::new(name.clone(), candidate(who), nonce, ms(ttl));
                claim.note = Note::new(&format!("note {who}")).unwrap();
                let ours = slot.apply(&claim, context);
                if let Ok(Answer::Held(grant)) = &ours {
                    holds.push(grant.hold.clone());
                }
                assert_same(ours, leases.acquire(now, minting_micros, &claim));
            }
            AnyOperation::Renew { nth_hold, ttl } => {
                let renewal = Renewal { hold: hold(nth_hold), ttl: ms(ttl) };
                assert_same(
                    slot.apply(&renewal, context),
                    leases.renew(now, &renewal.hold, ms(ttl)),
                );
            }
            AnyOperation::Release { nth_hold, next } => {
                let release = Release { hold: hold(nth_hold), next: next.then(|| candidate(1)) };
                assert_same(
                    slot.apply(&release, context),
                    leases.release(now, &release).map(|_| ()),
                );
            }
            AnyOperation::Save { nth_hold, number } => {
                let checkpoint = Checkpoint::new(number.to_le_bytes()).unwrap();
                let save = Save { hold: hold(nth_hold), number, checkpoint };
                let reference = leases.save(now, &save.hold, number, &save.checkpoint);
                assert_same(slot.apply(&save, context), reference);
            }
            AnyOperation::Revoke { now: at_once } => {
                let when = if at_once { Revoke::Now } else { Revoke::InTime };
                let revocation = Revocation { name: name.clone(), when };
                let reference = leases.revoke(now, minting_micros, &name, when);
                assert_same(slot.apply(&revocation, context), reference);
            }
            AnyOperation::Wait(time) => now = now + ms(time),
        }
        let context = RuleContext { now, ..context };
        let reference = leases.observe(now, &Scope::name(&name)).pop().map(Result::unwrap);
        assert_eq!(slot.lease(context), reference);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_answers_are_those_of_the_reference(operations in proptest::collection::vec(any_operation(), 1..60)) {
        run(operations);
    }
}
