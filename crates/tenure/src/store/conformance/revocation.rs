//! Revocation: the holder is refused at once, and the lease is free when the holder's time has passed, or now.

use super::harness::{Harness, LONG, PropertyResult, checkpoint, claim, expect_kind, new_campaign};
use crate::error::Kind;
use crate::lease::Ended;
use crate::store::{Revoke, Scope};

pub(super) async fn revoke_refuses_the_holder_at_once(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let ours = harness.claim("job", "a");
    let hold = a.hold(&ours).await;
    let lease = b.revoked(&hold.name, Revoke::InTime).await;
    assert!(lease.token > Some(hold.token), "the token is raised: {lease:?}");
    assert!(!lease.left.is_zero() && lease.left <= harness.fixture.max_left(LONG), "{lease:?}");
    a.lost(&hold).await;
    a.unsaved(&hold, 1).await;
    // The holder's remaining time still blocks all claims, its own included.
    let lease = a.refused(&ours).await;
    assert!(!lease.left.is_zero() && lease.left <= harness.fixture.max_left(LONG), "{lease:?}");
    a.refused(&new_campaign(&ours)).await;
    a.release(&hold).await;
    b.refused(&harness.claim("job", "b")).await;
    // Nor does the raised token make the old hold valid.
    let raised = lease.token.expect("a raised token");
    a.lost(&crate::lease::Hold { token: raised, ..hold }).await;
    Ok(())
}

pub(super) async fn revoke_waits_out_the_holders_time(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let hold = a.hold(&harness.short_claim("job", "a")).await;
    a.saved(&hold, 1, b"left").await;
    let raised = b.revoked(&hold.name, Revoke::InTime).await.token;
    harness.wait_for_expiry().await;
    a.lost(&hold).await;
    let grant = b.granted(&harness.claim("job", "b")).await;
    assert!(Some(grant.hold.token) > raised, "{grant:?} after {raised:?}");
    let before = grant.lineage.before;
    assert!(matches!(before, Ended::Expired(_)), "revoked is expired, not {before:?}");
    assert_eq!(grant.checkpoint, Some(checkpoint(b"left")));
    a.lost(&hold).await;
    b.kept(&grant.hold).await;
    Ok(())
}

pub(super) async fn revoke_now_frees_at_once(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let ours = harness.claim("job", "a");
    let hold = a.hold(&ours).await;
    a.saved(&hold, 1, b"left").await;
    let lease = b.revoked(&hold.name, Revoke::Now).await;
    assert_eq!(lease.holder, None);
    assert!(lease.token > Some(hold.token), "the token is raised: {lease:?}");
    a.lost(&hold).await;
    let grant = b.granted(&harness.claim("job", "b")).await;
    assert!(Some(grant.hold.token) > lease.token, "{grant:?} after {lease:?}");
    assert_eq!(grant.lineage.origin, hold.token, "the record is the same");
    assert_eq!(grant.checkpoint, Some(checkpoint(b"left")));
    a.release(&hold).await;
    a.refused(&ours).await;
    b.kept(&grant.hold).await;
    Ok(())
}

pub(super) async fn revoke_twice_raises_the_token_twice(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let hold = store.hold(&harness.claim("job", "a")).await;
    let first = store.revoked(&hold.name, Revoke::InTime).await;
    let second = store.revoked(&hold.name, Revoke::InTime).await;
    assert!(second.token > first.token, "{second:?} after {first:?}");
    store.refused(&harness.claim("job", "b")).await;
    // An operator that has waited long enough can still revoke at once.
    let third = store.revoked(&hold.name, Revoke::Now).await;
    assert!(third.token > second.token, "{third:?} after {second:?}");
    let next = store.hold(&harness.claim("job", "b")).await;
    assert!(Some(next.token) > third.token, "{next:?} after {third:?}");
    Ok(())
}

pub(super) async fn revoke_of_a_free_lease_leaves_it_free(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    for when in [Revoke::InTime, Revoke::Now] {
        let name = harness.name(&format!("{when:?}"));
        let hold = store.hold(&claim(&name, "a")).await;
        store.release(&hold).await;
        let lease = store.revoked(&name, when).await;
        assert_eq!(lease.holder, None);
        assert!(lease.token > Some(hold.token), "the token is raised: {lease:?}");
        let next = store.hold(&claim(&name, "b")).await;
        assert!(Some(next.token) > lease.token, "{next:?} after {lease:?}");
    }
    Ok(())
}

pub(super) async fn revoke_of_an_unknown_name_is_invalid(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let name = harness.name("unused");
    for when in [Revoke::InTime, Revoke::Now] {
        expect_kind("revoke", store.0.revoke(&name, when).await, Kind::Invalid);
    }
    assert_eq!(store.observe_leases(&Scope::name(&name)).await, [], "nothing is written");
    Ok(())
}
