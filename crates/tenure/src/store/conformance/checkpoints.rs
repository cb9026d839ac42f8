//! Checkpoints: what a leader saves for its successor.

use std::time::Duration;

use super::harness::{
    Harness, HarnessStore, PropertyResult, checkpoint, expect_kind, new_campaign,
};
use crate::error::Kind;
use crate::lease::{Answer, Checkpoint, Hold};

async fn observed_checkpoint(store: &HarnessStore, hold: &Hold) -> Option<Checkpoint> {
    store.observe_one(&hold.name).await.checkpoint
}

pub(super) async fn checkpoint_comes_with_the_grant(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let left = Some(checkpoint(b"row 4711"));
    let claim = harness.short_claim("job", "a");
    let first = a.granted(&harness.claim("job", "z")).await;
    assert_eq!(first.checkpoint, None);
    a.saved(&first.hold, 1, b"row 4711").await;
    assert_eq!(observed_checkpoint(&b, &first.hold).await, left);
    a.kept(&first.hold).await;
    assert_eq!(observed_checkpoint(&b, &first.hold).await, left, "a renewal keeps it");
    a.release(&first.hold).await;
    assert_eq!(observed_checkpoint(&b, &first.hold).await, left, "so does a release");
    let second = b.granted(&claim).await;
    assert_eq!(second.checkpoint, left, "after a release");
    // A store that judges expiry by observation must have observed the lease first.
    a.observe_one(&second.hold.name).await;
    harness.wait_for_expiry().await;
    let third = a.granted(&harness.claim("job", "c")).await;
    assert_eq!(third.checkpoint, left, "after an expiry");
    Ok(())
}

pub(super) async fn repeat_of_a_claim_brings_the_checkpoint_again(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    let first = store.hold(&harness.claim("job", "a")).await;
    store.saved(&first, 1, b"left").await;
    store.release(&first).await;
    let claim = harness.claim("job", "b");
    store.granted(&claim).await;
    let again = store.granted(&claim).await;
    assert_eq!(again.checkpoint, Some(checkpoint(b"left")));
    Ok(())
}

pub(super) async fn save_refused_under_an_old_token(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let claim = harness.claim("job", "a");
    let old = store.hold(&claim).await;
    store.saved(&old, 1, b"old").await;
    store.release(&old).await;
    store.unsaved(&old, 2).await;
    // The same nonce, so that only the token distinguishes the terms.
    let new = store.hold(&claim).await;
    store.unsaved(&old, 2).await;
    store.unsaved(&old, 1).await;
    assert_eq!(observed_checkpoint(&store, &new).await, Some(checkpoint(b"old")));
    store.saved(&new, 1, b"new").await;
    store.unsaved(&old, 9).await;
    assert_eq!(observed_checkpoint(&store, &new).await, Some(checkpoint(b"new")));
    Ok(())
}

pub(super) async fn save_refused_under_an_older_number(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let hold = store.hold(&harness.claim("job", "a")).await;
    // Numbers compared as text would have 10 before 9.
    store.saved(&hold, 9, b"nine").await;
    store.saved(&hold, 10, b"ten").await;
    for older in [9, 1, 0] {
        expect_kind("save", store.save(&hold, older, b"late").await, Kind::Invalid);
        assert_eq!(observed_checkpoint(&store, &hold).await, Some(checkpoint(b"ten")));
    }
    // Only the request was invalid: the term continues.
    store.kept(&hold).await;
    let large = (1 << 53) - 2;
    store.saved(&hold, large, b"large").await;
    store.saved(&hold, large + 1, b"larger").await;
    expect_kind("save", store.save(&hold, large, b"late").await, Kind::Invalid);
    assert_eq!(observed_checkpoint(&store, &hold).await, Some(checkpoint(b"larger")));
    Ok(())
}

pub(super) async fn same_number_again_is_held_and_changes_nothing(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    let hold = store.hold(&harness.claim("job", "a")).await;
    for number in [0, 1, 7] {
        let text = format!("number {number}");
        store.saved(&hold, number, text.as_bytes()).await;
        store.saved(&hold, number, b"something else").await;
        assert_eq!(observed_checkpoint(&store, &hold).await, Some(checkpoint(&text)));
    }
    Ok(())
}

pub(super) async fn save_numbers_restart_in_a_new_term(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let claim = harness.claim("job", "a");
    let first = store.hold(&claim).await;
    store.saved(&first, 100, b"hundred").await;
    // A repeat of the claim is the same term.
    store.hold(&claim).await;
    expect_kind("save", store.save(&first, 99, b"late").await, Kind::Invalid);
    store.release(&first).await;
    let second = store.hold(&new_campaign(&claim)).await;
    store.saved(&second, 1, b"one").await;
    assert_eq!(observed_checkpoint(&store, &second).await, Some(checkpoint(b"one")));
    Ok(())
}

pub(super) async fn checkpoints_at_the_limits_round_trip(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let every_byte: Vec<u8> = (0..=255).cycle().take(4096).collect();
    let cases: [&[u8]; 7] =
        [&every_byte, b"", b"x", &[0; 4096], &[0xff; 4096], b"\r\n\0\"'\\", b"false"];
    let mut claim = harness.claim("job", "a");
    let mut left: Option<&[u8]> = None;
    for bytes in cases {
        claim = new_campaign(&claim);
        let grant = store.granted(&claim).await;
        assert_eq!(grant.checkpoint, left.map(checkpoint));
        store.saved(&grant.hold, 1, bytes).await;
        assert_eq!(observed_checkpoint(&store, &grant.hold).await, Some(checkpoint(bytes)));
        store.release(&grant.hold).await;
        left = Some(bytes);
    }
    Ok(())
}

pub(super) async fn save_does_not_extend(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let ttl = harness.fixture.short_ttl();
    let hold = store.hold(&harness.short_claim("job", "a")).await;
    harness.fixture.pass(ttl / 2).await;
    // On a machine so busy that the lease has already expired the save is refused; the rest holds anyway.
    let answer = store.save(&hold, 1, b"half-way").await.expect("a save is answered");
    assert!(matches!(answer, Answer::Held(()) | Answer::Taken(_)));
    let rest = harness.fixture.frees_within(ttl) - ttl / 2;
    harness.fixture.pass(rest + Duration::from_millis(1)).await;
    store.hold(&harness.claim("job", "b")).await;
    Ok(())
}
