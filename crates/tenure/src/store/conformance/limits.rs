//! Limits: the longest, largest and most unusual values that the contract allows.

use super::harness::{Harness, PropertyResult, claim, expect_kind, id, name};
use crate::error::Kind;
use crate::lease::{Claim, Hold, Name, Note, Token};
use crate::store::{Revoke, Scope};

/// The first number that is not a token.
const TOKEN_END: u64 = 1 << 53;

/// Names that a path, a pattern or a separator could confuse with another name.
fn odd_names() -> Vec<Name> {
    let mut names: Vec<String> = [
        "x",
        "X",
        "0",
        "-",
        "_",
        ":",
        ".",
        "..",
        "...",
        "/",
        "//",
        "./",
        "../",
        "../..",
        "/etc",
        "a",
        "a/",
        "a//",
        "a/b",
        "a:b",
        "a.b",
        "a-b",
        "a_b",
        "a/../b",
        "a/./b",
        "b/..",
        "-a",
        "--",
        "a.lease",
        "a.lock",
        "a.tmp",
        ".a",
        "a.json",
        "a:lock",
        "a:b/c",
        "a/b:c",
        "live",
        "live/a",
        "NUL",
        "con",
        "a.lease.lease",
        "a_2fb",
        "a-2fb",
        "a_2f",
        "AZaz09._:/-",
        // A fleet's own names: what is percent-encoded stays as it is.
        "a%20b",
        "a%2520b",
        "a%2Fb",
        "a%",
        "a%%s%1",
    ]
    .map(str::to_owned)
    .into();
    // Names of 200 bytes of each kind, and names that differ only in their last byte.
    for part in ["x", "X", "/", ".", ":", "_", "-", "a/", "a:"] {
        names.push(part.repeat(200 / part.len()));
    }
    names.push("x".repeat(199));
    names.push(format!("{}y", "x".repeat(199)));
    names.push(format!("{}:", "/".repeat(199)));
    let mut names: Vec<Name> = names.iter().map(|text| name(text)).collect();
    // Tenure's own names about them are longer: a request, and a member's presence.
    names.extend([
        name("a").request_name(),
        name(&"x".repeat(200)).request_name(),
        name(&"/".repeat(200)).request_name(),
    ]);
    names.push(name(&format!("tenure:node:{}:{}", "x".repeat(200), "/".repeat(100))));
    names
}

pub(super) async fn names_at_the_limits_are_different_leases(
    harness: Harness<'_>,
) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let names = odd_names();
    let mut holds: Vec<Hold> = Vec::new();
    // One by one, so that a failure shows which name is confused with which.
    for (number, name) in names.iter().enumerate() {
        holds.push(a.hold(&claim(name, &format!("c-{number}"))).await);
    }
    let claims: Vec<Claim> = names.iter().map(|name| claim(name, "b")).collect();
    for (number, (answer, name)) in b.acquire_all(&claims).await.iter().zip(&names).enumerate() {
        let Ok(crate::lease::Answer::Taken(lease)) = answer else {
            panic!("'{name}' by another handle: expected Taken, got {answer:?}");
        };
        let holder = lease.holder.clone().expect("held");
        assert_eq!((&lease.name, holder.id), (name, format!("c-{number}")));
    }
    let mut observed = b.observe_leases(&Scope::Names(names.clone())).await;
    observed.sort_unstable_by(|x, y| x.name.cmp(&y.name));
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(observed.into_iter().map(|lease| lease.name).collect::<Vec<_>>(), sorted);
    for (number, hold) in holds.iter().enumerate() {
        a.kept(hold).await;
        a.release(hold).await;
        assert_eq!(b.observe_one(&hold.name).await.holder, None);
        if let Some(next) = holds.get(number + 1) {
            let holder = b.observe_one(&next.name).await.holder;
            assert!(holder.is_some(), "releasing '{}' freed '{}'", hold.name, next.name);
        }
    }
    Ok(())
}

pub(super) async fn odd_names_are_found_by_prefix(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let parts = ["a/../b", "..", "a.lease", "a:b", "a/", "A"];
    for part in parts {
        store.hold(&harness.claim(part, "a")).await;
    }
    let observed = store.observe_leases(&Scope::Prefix(harness.prefix().to_owned())).await;
    let mut observed: Vec<_> = observed.into_iter().map(|lease| lease.name).collect();
    observed.sort_unstable();
    let mut expected: Vec<_> = parts.map(|part| harness.name(part)).into();
    expected.sort_unstable();
    assert_eq!(observed, expected);
    Ok(())
}

pub(super) async fn ids_at_the_limits_round_trip(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let ids = ["x".repeat(100), "/".repeat(100), "-".into(), ":".into(), "..".into(), "a:b".into()];
    for (number, who) in ids.iter().enumerate() {
        let claim = harness.claim(&number.to_string(), who);
        let hold = store.hold(&claim).await;
        assert_eq!(store.observe_one(&hold.name).await.holder.expect("held").id, *who);
        store.kept(&hold).await;
        store.release_to(&hold, Some(id(who))).await;
        assert_eq!(store.observe_one(&hold.name).await.next, Some(id(who)));
    }
    Ok(())
}

pub(super) async fn notes_at_the_limits_round_trip(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let notes = [
        String::new(),
        "x".repeat(512),
        "é".repeat(256),
        "🦀".repeat(128),
        " a  b ".into(),
        r#"{"a":"b\n"} 'c' \ %s $1 ;-- * ? \u0000"#.into(),
        "\u{feff}\u{2028}\u{200b}".into(),
    ];
    for (number, text) in notes.iter().enumerate() {
        let note = Note::new(text).expect("within the limits");
        let claim = Claim { note: note.clone(), ..harness.claim(&number.to_string(), "a") };
        let hold = store.hold(&claim).await;
        assert_eq!(store.observe_one(&hold.name).await.note, note);
        assert_eq!(store.refused(&harness.claim(&number.to_string(), "b")).await.note, note);
        store.kept(&hold).await;
        assert_eq!(store.observe_one(&hold.name).await.note, note, "a renewal keeps it");
        // The note belongs to the holder: the next holder gets none of it.
        store.release(&hold).await;
        store.hold(&harness.claim(&number.to_string(), "b")).await;
        assert_eq!(store.observe_one(&hold.name).await.note, Note::default());
    }
    Ok(())
}

pub(super) async fn a_repeated_claim_replaces_the_note(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let note = |text: &str| Note::new(text).expect("a valid note");
    let claim = Claim { note: note("waiting"), ..harness.claim("job", "a") };
    let first = store.hold(&claim).await;
    let again = store.hold(&Claim { note: note("leading"), ..claim.clone() }).await;
    assert_eq!(again, first, "the same term");
    assert_eq!(store.observe_one(&first.name).await.note, note("leading"));
    // A renewal and a claim of another candidate change nothing.
    store.kept(&first).await;
    let other = Claim { note: note("other"), ..harness.claim("job", "b") };
    assert_eq!(store.refused(&other).await.note, note("leading"));
    assert_eq!(store.observe_one(&first.name).await.note, note("leading"));
    Ok(())
}

pub(super) async fn longest_ttl_is_accepted(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let ttl = store.0.limits().max_ttl;
    let hold = store.hold(&Claim { ttl, ..harness.claim("job", "a") }).await;
    let lease = store.refused(&harness.claim("job", "b")).await;
    assert_eq!(lease.ttl, ttl);
    assert!(lease.left <= harness.fixture.max_left(ttl) && lease.left > ttl / 2, "{lease:?}");
    let renewed = store.renew(&hold, ttl).await;
    assert!(matches!(&renewed, Ok(answer) if answer.is_held()), "{renewed:?}");
    Ok(())
}

pub(super) async fn shortest_ttl_is_accepted(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let ttl = store.0.limits().min_ttl;
    let old = store.hold(&Claim { ttl, ..harness.claim("job", "a") }).await;
    harness.fixture.pass(harness.fixture.frees_within(ttl)).await;
    let new = store.hold(&harness.claim("job", "b")).await;
    assert!(new.token > old.token, "{new:?} after {old:?}");
    Ok(())
}

pub(super) async fn token_is_refused_at_two_to_the_53(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let claim = harness.claim("job", "a");
    harness.set_token(&claim.name, TOKEN_END - 1).await?;
    // Repeated: a refusal must leave nothing behind that a second attempt could use.
    for _ in 0..3 {
        expect_kind("acquire", store.acquire(&claim).await, Kind::Corrupt);
    }
    for when in [Revoke::InTime, Revoke::Now] {
        expect_kind("revoke", store.0.revoke(&claim.name, when).await, Kind::Corrupt);
    }
    // Whether it is reported as free or as corrupt, no candidate holds it.
    let found = store.observe(&Scope::name(&claim.name)).await;
    assert!(found.iter().flatten().all(|lease| lease.holder.is_none()), "{found:?}");
    let hold = Hold {
        name: claim.name.clone(),
        candidate: claim.candidate.clone(),
        nonce: claim.nonce,
        token: Token::new(TOKEN_END - 1).expect("the last token"),
    };
    let renewed = store.renew(&hold, claim.ttl).await;
    assert!(!matches!(&renewed, Ok(answer) if answer.is_held()), "{renewed:?}");
    Ok(())
}

pub(super) async fn last_tokens_are_exact(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let claim = harness.claim("job", "a");
    harness.set_token(&claim.name, TOKEN_END - 4).await?;
    // If numbers are doubles or printed as 9e15, two of these are equal.
    for expected in [TOKEN_END - 3, TOKEN_END - 2, TOKEN_END - 1] {
        let hold = store.hold(&claim).await;
        assert_eq!(hold.token.get(), expected);
        assert_eq!(store.observe_one(&hold.name).await.token, Some(hold.token));
        store.kept(&hold).await;
        store.saved(&hold, 1, b"x").await;
        store.release(&hold).await;
    }
    expect_kind("acquire", store.acquire(&claim).await, Kind::Corrupt);
    Ok(())
}
