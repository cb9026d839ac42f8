use super::*;
use crate::lease::{CandidateId, Claim, Nonce};
use crate::store::record::Operation;
use crate::store::record::{FoundRecord, RuleContext, Standing};

const NOW: u64 = 1_800_000_000_000_000;

fn name(text: &str) -> Name {
    Name::stored(text).unwrap()
}

fn claim(text: &str) -> Claim {
    let (id, nonce) = (CandidateId::new("me").unwrap(), Nonce::from_bits(7));
    Claim::new(name(text), id, nonce, Duration::from_millis(4_200))
}

fn context() -> RuleContext {
    RuleContext { store_time: None, wait_micros: NOW, minting_micros: NOW, floor: None }
}

/// The swap of a claim on what was found.
fn swap(claim: &Claim, found: Option<(&Record, LeaseVersion)>) -> Swap<LeaseVersion> {
    let record = found.as_ref().map(|(record, _)| FoundRecord { record, standing: Standing::Free });
    let write = claim.apply(record, &context()).unwrap().write.unwrap();
    Swap {
        name: claim.name.clone(),
        expected: found.map(|(_, version)| version),
        condition: write.condition,
        record: write.record,
        time: write.time,
    }
}

/// The object as a server stores it.
fn stored(mut object: Lease, version: u64) -> Lease {
    object.metadata.uid = Some("uid".to_owned());
    object.metadata.resource_version = Some(version.to_string());
    object
}

#[test]
fn a_record_is_read_as_it_was_written() {
    for text in ["job", "a.b-c.9", "Billing:nightly", &"x".repeat(253), &"/".repeat(200)] {
        let swap = swap(&claim(text), None);
        let object = stored(written(&swap, NOW).unwrap(), 1);
        assert_eq!(name_of(&object), Some(name(text)));
        let Entry::Document(document) = entry(&name(text), object).unwrap() else {
            panic!("it is ours");
        };
        assert_eq!(document.record, swap.record);
    }
}

#[test]
fn only_dns_names_that_are_no_hash_are_names_of_objects() {
    for text in ["a", "a-b", "a.b", "0", "t-shirt", &"x".repeat(253)] {
        assert_eq!(object_name(&name(text)), text);
    }
    let hash = format!("t-{}", "0".repeat(64));
    for text in ["A", "-a", "a-", "a..b", ".a", "a:b", "a/b", "a_b", &"x".repeat(254), &hash] {
        let object = object_name(&name(text));
        assert!(is_hashed(&object) && object != text, "{text}: {object}");
    }
}

#[test]
fn a_spec_that_another_program_wrote_is_foreign_and_keeps_the_record() {
    let swap = swap(&claim("job"), None);
    let ours = stored(written(&swap, NOW).unwrap(), 1);
    let change = |change: &dyn Fn(&mut LeaseSpec)| {
        let mut object = ours.clone();
        change(object.spec.as_mut().unwrap());
        entry(&name("job"), object)
    };
    let foreign = |found: Result<Entry<LeaseVersion>>| match found.unwrap() {
        Entry::ForeignDocument(ForeignDocument { holder, record, .. }) => {
            assert_eq!(record.as_ref(), Some(&swap.record));
            holder
        }
        other => panic!("{other:?}"),
    };
    let other = foreign(change(&|spec| spec.holder_identity = Some("pod_1".to_owned())));
    let ttl = Duration::from_secs(5);
    assert_eq!(other, Some(ForeignHolder { id: "pod_1".to_owned(), ttl }));
    let same = foreign(change(&|spec| spec.renew_time = micro_time(1)));
    assert!(same.is_some_and(|holder| holder.id.starts_with("me_")));
    assert_eq!(foreign(change(&|spec| spec.holder_identity = Some(String::new()))), None);
    assert_eq!(foreign(change(&|spec| *spec = LeaseSpec::default())), None);
    for corrupt in [
        change(&|spec| spec.holder_identity = Some("x".repeat(10_000))),
        change(&|spec| (spec.renew_time, spec.lease_duration_seconds) = (None, None)),
        change(&|spec| (spec.renew_time, spec.lease_duration_seconds) = (None, Some(0))),
        change(&|spec| (spec.renew_time, spec.lease_duration_seconds) = (None, Some(-9))),
    ] {
        assert_eq!(corrupt.unwrap_err().kind(), crate::error::Kind::Corrupt);
    }
}

#[test]
fn a_record_of_another_name_or_format_is_corrupt() {
    let ours = stored(written(&swap(&claim("job"), None), NOW).unwrap(), 1);
    let found = |text: &str| {
        let mut object = ours.clone();
        let annotations = object.metadata.annotations.as_mut().unwrap();
        annotations.insert(RECORD.to_owned(), text.to_owned());
        entry(&name("job"), object)
    };
    let record = annotation(&ours, RECORD).unwrap();
    let renamed = record.replace("\"job\"", "\"bob\"");
    let newer = record.replace("\"format\":1", "\"format\":2");
    for text in ["", "{}", "null", "x", &renamed, &newer, &format!("{record} ")] {
        assert_eq!(found(text).unwrap_err().kind(), crate::error::Kind::Corrupt, "{text}");
    }
    assert!(found(record).is_ok());
    assert!(entry(&name("other"), ours.clone()).is_err());
}

#[test]
fn transitions_grow_with_every_acquisition_of_an_existing_object() {
    let mut object = stored(written(&swap(&claim("job"), None), NOW).unwrap(), 1);
    let spec = object.spec.clone().unwrap();
    assert_eq!((spec.lease_transitions, spec.lease_duration_seconds), (Some(0), Some(5)));
    assert_eq!(spec.acquire_time, micro_time(i64::try_from(NOW).unwrap()));
    for expected in [1, 2, i32::MAX] {
        if expected == i32::MAX {
            object.spec.as_mut().unwrap().lease_transitions = Some(i32::MAX);
        }
        let record = Record::new(crate::lease::Token::new(1).unwrap());
        let version = LeaseVersion::of(object.clone()).unwrap();
        let next = written(&swap(&claim("job"), Some((&record, version))), NOW).unwrap();
        assert_eq!(next.spec.as_ref().unwrap().lease_transitions, Some(expected));
        object = next;
    }
}

#[test]
fn versions_of_two_objects_differ() {
    let object = written(&swap(&claim("job"), None), NOW).unwrap();
    let version = |uid: &str, number| {
        let mut object = stored(object.clone(), number);
        object.metadata.uid = Some(uid.to_owned());
        LeaseVersion::of(object).unwrap()
    };
    assert_eq!(version("a", 1), version("a", 1));
    assert_ne!(version("a", 1), version("a", 2));
    assert_ne!(version("a", 1), version("b", 1));
    assert!(LeaseVersion::of(object).is_err());
}
