use proptest::prelude::*;

use super::*;
use crate::lease::{CandidateId, Checkpoint, Ended, Note, Token};
use crate::store::record::TermRecord;
use std::time::Duration;

fn example(term: bool) -> StoredRecord {
    let token = Token::new(1_750_000_000_000_000).unwrap();
    let mut record = Record::new(token);
    record.before = Ended::Died(token);
    record.checkpoint = Some(Checkpoint::new([0, 255, 10]).unwrap());
    record.term = term.then(|| TermRecord {
        candidate: CandidateId::new("a").unwrap(),
        nonce: Some(Nonce::from_bits(9)),
        ttl: Duration::from_secs(4),
        since_micros: 12,
        note: Note::new("http://[::1]:80 \"ä\"").unwrap(),
        saved: Some(3),
    });
    let place = term.then(|| TermPlace {
        era: BootId { boot: "b".to_owned(), timens: "time:[1]".to_owned() },
        live: Some(LivenessId { id: "0".repeat(32), dev: 1, ino: u64::MAX }),
        until: Some(Moment::from_nanos(77)),
    });
    StoredRecord { name: Name::new("team/job").unwrap(), record, place }
}

fn bytes(record: &StoredRecord, beat: u64) -> (Vec<u8>, usize) {
    let head = record.encode_head().unwrap();
    let tail = record.encode_tail(&head, beat);
    assert_eq!(tail.len(), TAIL_LEN);
    ([&*head, &*tail].concat(), head.len())
}

#[test]
fn a_record_reads_back() {
    for record in [example(true), example(false)] {
        let (bytes, head_len) = bytes(&record, 5);
        assert_eq!(parse(&bytes), Ok(Parsed { stored: record, head_len, beat: Some(5) }));
    }
}

#[test]
fn a_truncated_record_is_corrupt_or_its_time_is_unknown() {
    let record = example(true);
    let (bytes, head_len) = bytes(&record, 5);
    for length in 0..bytes.len() {
        match parse(&bytes[..length]) {
            Err(_) => assert!(length < head_len, "{length}"),
            Ok(parsed) => {
                assert!(length >= head_len, "{length}");
                assert_eq!(parsed.beat, None);
                let place = parsed.stored.place.expect("the holder stays the holder");
                assert_eq!(place.until, None);
            }
        }
    }
}

#[test]
fn one_flipped_bit_in_the_head_is_corrupt_and_in_the_tail_makes_the_time_unknown() {
    let (bytes, head_len) = bytes(&example(true), 5);
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        match parse(&flipped) {
            Err(_) => assert!(bit < head_len * 8, "bit {bit}"),
            Ok(parsed) => {
                assert!(bit >= head_len * 8, "bit {bit}");
                assert_eq!((parsed.beat, parsed.stored.place.unwrap().until), (None, None));
            }
        }
    }
}

#[test]
fn a_tail_of_another_head_is_ignored() {
    let (one, head_len) = bytes(&example(true), 5);
    let mut other = example(true);
    other.record.term.as_mut().unwrap().saved = Some(4);
    let head = other.encode_head().unwrap();
    let mixed = [&*head, &one[head_len..]].concat();
    assert_eq!(parse(&mixed).unwrap().beat, None);
}

#[test]
fn a_time_that_is_unknown_stays_unknown() {
    let mut record = example(true);
    record.place.as_mut().unwrap().until = None;
    let (bytes, _) = bytes(&record, 5);
    assert_eq!(parse(&bytes).unwrap().stored, record);
}

/// A head with this JSON and the right checksum.
fn with_crc(json: &str) -> Vec<u8> {
    format!("{json}\ncrc={:08x}\n", crc32fast::hash(json.as_bytes())).into_bytes()
}

#[test]
fn content_that_no_encoder_writes_is_corrupt_even_with_a_valid_checksum() {
    let good = String::from_utf8(example(true).encode_head().unwrap()).unwrap();
    let good = good.lines().next().unwrap();
    assert!(parse(&with_crc(good)).is_ok());
    for (from, to, says) in [
        ("\"format\":1", "\"format\":2", "format is 2"),
        ("\"dev\":1", "\"dev\":1,\"x\":0", "unknown field"),
        ("\"live\":", "\"x\":0,\"live\":", "does not write"),
        (&"0".repeat(32), "../../../../../../../../etc/passwd", "live file"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        let reason = parse(&with_crc(&bad)).unwrap_err();
        assert!(reason.contains(says), "{from} → {to}: {reason}");
    }
    let long = with_crc(&format!("{good}{}", " ".repeat(MAX_FILE_BYTES)));
    assert!(parse(&long).unwrap_err().contains("longer"));
    let more = [with_crc(good), vec![b'x'; TAIL_LEN + 1]].concat();
    assert!(parse(&more).unwrap_err().contains("after its end"));
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(parse(&bytes).is_err());
    }

    #[test]
    fn no_json_makes_the_parser_panic_or_free_the_lease(json in "\\PC{0,200}") {
        prop_assert!(parse(&with_crc(&json)).is_err());
    }

    #[test]
    fn damage_never_frees_the_lease(
        at in 0..10_000_usize,
        with in proptest::collection::vec(any::<u8>(), 1..40),
    ) {
        let record = example(true);
        let (mut bytes, _) = bytes(&record, 5);
        let at = at % bytes.len();
        for (byte, new) in bytes[at..].iter_mut().zip(with) {
            *byte = new;
        }
        if let Ok(parsed) = parse(&bytes) {
            let (found, real) = (parsed.stored.place.unwrap(), record.place.unwrap());
            prop_assert!(found.until.is_none() || found.until == real.until);
            prop_assert_eq!(parsed.stored.record, record.record);
        }
    }
}
