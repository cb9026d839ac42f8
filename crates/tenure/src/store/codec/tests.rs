use proptest::prelude::*;

use super::*;
use crate::error::Kind;

fn name() -> Name {
    Name::new("team/job").unwrap()
}

fn example(term: bool) -> Record {
    let token = Token::new(1_750_000_000_000_000).unwrap();
    Record {
        origin: token,
        token,
        before: Ended::Died(token),
        term: term.then(|| TermRecord {
            candidate: CandidateId::new("a").unwrap(),
            nonce: Some(Nonce::from_bits(9)),
            ttl: Duration::from_secs(4),
            since_micros: 12,
            note: Note::new("http://[::1]:80 \"ä\"").unwrap(),
            saved: Some(3),
        }),
        next: Some(CandidateId::new("b").unwrap()),
        checkpoint: Some(Checkpoint::new([0, 255, 10]).unwrap()),
        leads_from: term.then_some(LeadsFrom {
            at_micros: 1_750_000_004_000_000,
            length_micros: 4_000_000,
            reason: WaitReason::Observed,
        }),
        ephemeral: term,
        history: term.then(|| vec![past_term("b")]),
    }
}

fn past_term(id: &str) -> PastTerm {
    PastTerm {
        token: Token::new(7).unwrap(),
        candidate: CandidateId::new(id).unwrap(),
        from: 1_750_000_000_000,
        to: 1_750_000_004_000,
        outcome: PastTermOutcome::Revoked,
    }
}

#[test]
fn a_record_reads_back() {
    for record in [example(true), example(false)] {
        let bytes = encode(&name(), &record).unwrap();
        assert_eq!(decode(&name(), &bytes).unwrap(), record);
    }
}

#[test]
fn the_largest_record_fits() {
    let longest = CandidateId::new(&"x".repeat(100)).unwrap();
    let mut record = example(true);
    record.checkpoint = Some(Checkpoint::new([255; 4096]).unwrap());
    record.next = Some(longest.clone());
    record.history =
        Some(vec![
            PastTerm { from: u64::MAX, to: u64::MAX, ..past_term(longest.as_str()) };
            MAX_HISTORY_TERMS
        ]);
    let term = record.term.as_mut().unwrap();
    term.note = Note::new(&"\"".repeat(512)).unwrap();
    term.candidate = longest;
    term.saved = Some(u64::MAX);
    let name = Name::stored(&"/".repeat(320)).unwrap();
    let history: usize = record.history.iter().flatten().map(|t| past_term_text(t).len()).sum();
    assert!(history < 8 * 1024, "{history}");
    assert_eq!(decode(&name, &encode(&name, &record).unwrap()).unwrap(), record);
}

#[test]
fn content_that_no_encoder_writes_is_corrupt() {
    let good = String::from_utf8(encode(&name(), &example(true)).unwrap()).unwrap();
    for (from, to, says) in [
        ("\"format\":1", "\"format\":2", "format is 2"),
        ("\"format\":1", "\"format\":1,\"x\":0", "unknown field"),
        ("\"saved\":3", "\"saved\":3,\"x\":0", "does not write"),
        ("\"saved\":3", "\"saved\": 3", "does not write"),
        (
            "\"token\":1750000000000000,\"before",
            "\"token\":9007199254740992,\"before",
            "not a token",
        ),
        ("\"token\":1750000000000000,\"before", "\"token\":0,\"before", "not a token"),
        ("team/job", "team job", "may contain only"),
        ("team/job", "team/jib", "copied or renamed"),
        ("\"died\"", "\"gone\"", "unknown variant"),
        ("00ff0a", "00ff0", "checkpoint"),
        ("00ff0a", "00FF0A", "checkpoint"),
        ("\"saved\":3", "\"saved\":-3", "invalid value"),
        ("\"candidate\":\"a\"", "\"candidate\":\"\"", "must not be empty"),
        ("http", "\\u0007", "control characters"),
        ("revoked", "vanished", "history"),
        ("7 b 1750000000000", "7 b 01750000000000", "history"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        let error = decode(&name(), bad.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains(says), "{from} → {to}: {error}");
    }
    let long = format!("{good}{}", " ".repeat(MAX_RECORD_BYTES));
    assert!(decode(&name(), long.as_bytes()).unwrap_err().to_string().contains("longer"));
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(decode(&name(), &bytes).is_err());
    }

    #[test]
    fn a_changed_byte_is_never_accepted_as_another_record(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = encode(&name(), &example(true)).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        // A changed digit or letter may be a valid record; then it encodes to exactly these bytes.
        if let Ok(record) = decode(&name(), &bytes) {
            prop_assert_eq!(encode(&name(), &record).unwrap(), bytes);
        }
    }
}
