//! Claims, renewals and releases while no lease expires.

use futures_util::FutureExt;

use super::harness::{Harness, LONG, PropertyResult, id, new_campaign};
use crate::lease::{Claim, Hold, Nonce};

pub(super) async fn second_claim_is_refused(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let claim = harness.claim("job", "a");
    let hold = a.hold(&claim).await;
    let lease = b.refused(&harness.claim("job", "b")).await;
    let holder = lease.holder.clone().expect("Taken must say who has it");
    assert_eq!(holder.id, "a");
    assert_eq!(holder.nonce, Some(claim.nonce));
    assert_eq!(lease.token, Some(hold.token));
    assert_eq!(lease.ttl, claim.ttl);
    assert!(!lease.left.is_zero() && lease.left <= harness.fixture.max_left(LONG), "{lease:?}");
    // A refusal takes nothing from the holder and leaves nothing to the refused candidate.
    a.kept(&hold).await;
    b.refused(&harness.claim("job", "b")).await;
    Ok(())
}

pub(super) async fn repeat_of_an_unanswered_claim_keeps_its_token(
    harness: Harness<'_>,
) -> PropertyResult {
    let claim = harness.claim("job", "a");
    let first = harness.open().await.granted(&claim).await;
    // Over another connection, as after a connection loss.
    let again = harness.open().await.granted(&claim).await;
    assert_eq!(again.hold, first.hold);
    assert_eq!(again.lineage, first.lineage, "it is the same term");
    assert_eq!(again.checkpoint, first.checkpoint);
    Ok(())
}

pub(super) async fn cancelled_claim_can_be_repeated(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    for round in 0..20 {
        let claim = harness.claim(&format!("job-{round}"), "a");
        // Polled once, so that the request may be in flight, and then dropped.
        drop(store.acquire(&claim).now_or_never());
        let hold = store.hold(&claim).await;
        // The abandoned request may arrive after the second one; it must not change the term.
        store.kept(&hold).await;
        assert_eq!(store.hold(&claim).await, hold);
    }
    Ok(())
}

pub(super) async fn new_campaign_never_gets_an_old_token(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let claim = harness.claim("job", "a");
    let hold = store.hold(&claim).await;
    // While the candidate's own earlier term lasts, it counts as another candidate's.
    let lease = store.refused(&new_campaign(&claim)).await;
    assert_eq!(lease.holder.expect("held").nonce, Some(claim.nonce));
    store.release(&hold).await;
    let next = store.hold(&new_campaign(&claim)).await;
    assert!(next.token > hold.token, "{next:?} after {hold:?}");
    Ok(())
}

pub(super) async fn delayed_release_does_not_free_the_next_term(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    let claim = harness.claim("job", "a");
    let old = store.hold(&claim).await;
    store.release(&old).await;
    let new = store.hold(&new_campaign(&claim)).await;
    store.release(&old).await;
    store.refused(&harness.claim("job", "b")).await;
    store.kept(&new).await;
    // Nor does a release with the new nonce but the old token.
    let confused = Hold { token: old.token, ..new.clone() };
    store.release(&confused).await;
    store.kept(&new).await;
    Ok(())
}

pub(super) async fn token_grows_over_release(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let mut last = None;
    for round in 0..20 {
        let (store, who) = if round % 2 == 0 { (&a, "a") } else { (&b, "b") };
        let hold = store.hold(&harness.claim("job", who)).await;
        assert!(Some(hold.token) > last, "{hold:?} after {last:?}");
        store.release(&hold).await;
        last = Some(hold.token);
    }
    Ok(())
}

pub(super) async fn renew_keeps_the_token(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let claim = harness.claim("job", "a");
    let hold = store.hold(&claim).await;
    for _ in 0..3 {
        store.kept(&hold).await;
    }
    let lease = store.observe_one(&hold.name).await;
    assert_eq!(lease.token, Some(hold.token));
    assert_eq!(lease.holder.expect("held").nonce, Some(claim.nonce));
    Ok(())
}

pub(super) async fn renew_refused_with_an_old_token(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    // The same nonce in both terms, so that only the token distinguishes them.
    let claim = harness.claim("job", "a");
    let old = store.hold(&claim).await;
    store.release(&old).await;
    let lease = store.lost(&old).await;
    assert_eq!(lease.holder, None, "a released lease has no holder");
    let new = store.hold(&claim).await;
    assert!(new.token > old.token, "{new:?} after {old:?}");
    let lease = store.lost(&old).await;
    assert_eq!(lease.token, Some(new.token));
    store.kept(&new).await;
    Ok(())
}

pub(super) async fn renew_refused_with_another_nonce(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let hold = store.hold(&harness.claim("job", "a")).await;
    let other = Hold { nonce: Nonce::random(), ..hold.clone() };
    store.lost(&other).await;
    store.unsaved(&other, 1).await;
    store.kept(&hold).await;
    Ok(())
}

pub(super) async fn renew_refused_to_another_candidate(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let claim = harness.claim("job", "a");
    let hold = store.hold(&claim).await;
    let other = Hold { candidate: id("b"), ..hold.clone() };
    store.lost(&other).await;
    store.unsaved(&other, 1).await;
    // A nonce proves nothing without its candidate.
    let stolen = Claim { candidate: id("b"), ..claim };
    store.refused(&stolen).await;
    store.kept(&hold).await;
    Ok(())
}

pub(super) async fn release_by_another_does_nothing(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let hold = store.hold(&harness.claim("job", "a")).await;
    let (candidate, nonce) = (id("b"), Nonce::random());
    for other in [Hold { candidate, ..hold.clone() }, Hold { nonce, ..hold.clone() }] {
        harness.open().await.release(&other).await;
        store.refused(&harness.claim("job", "c")).await;
    }
    store.kept(&hold).await;
    // Nor does it create a record where there was none.
    let name = harness.name("unused");
    store.release(&Hold { name: name.clone(), ..hold }).await;
    assert_eq!(store.observe_leases(&crate::store::Scope::name(&name)).await, []);
    Ok(())
}

pub(super) async fn release_frees_at_once(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let hold = a.hold(&harness.claim("job", "a")).await;
    b.refused(&harness.claim("job", "b")).await;
    a.release(&hold).await;
    let lease = b.observe_one(&hold.name).await;
    assert_eq!(lease.holder, None);
    assert!(lease.left.is_zero(), "a free lease has nothing left: {lease:?}");
    assert_eq!(lease.token, Some(hold.token), "the token survives");
    b.hold(&harness.claim("job", "b")).await;
    a.lost(&hold).await;
    Ok(())
}

pub(super) async fn release_twice_is_no_error(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let hold = store.hold(&harness.claim("job", "a")).await;
    store.release(&hold).await;
    store.release(&hold).await;
    let lease = store.observe_one(&hold.name).await;
    assert_eq!((lease.holder, lease.token), (None, Some(hold.token)));
    Ok(())
}

pub(super) async fn detached_handle_sees_the_same_leases(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let detached = super::harness::HarnessStore(store.0.detached());
    assert_eq!(detached.0.url(), store.0.url());
    let hold = store.hold(&harness.claim("job", "a")).await;
    detached.refused(&harness.claim("job", "b")).await;
    detached.kept(&hold).await;
    // The detached handle works without the handle it came from.
    drop(store);
    detached.release(&hold).await;
    harness.open().await.hold(&harness.claim("job", "b")).await;
    Ok(())
}
