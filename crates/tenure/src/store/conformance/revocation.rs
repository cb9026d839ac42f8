//! Break-glass: the holder is refused at once, and the lease is free in time, or now.

use super::harness::{Harness, LONG, PropertyResult, anew, checkpoint, claim, expect_kind};
use crate::error::Kind;
use crate::lease::Ended;
use crate::store::{Revoke, Scope};

pub(super) async fn revoke_refuses_the_holder_at_once(scene: Harness<'_>) -> PropertyResult {
    let (a, b) = (scene.open().await, scene.open().await);
    let ours = scene.claim("job", "a");
    let hold = a.hold(&ours).await;
    let lease = b.revoked(&hold.name, Revoke::InTime).await;
    assert!(lease.token > Some(hold.token), "the token is raised: {lease:?}");
    assert!(!lease.left.is_zero() && lease.left <= LONG, "{lease:?}");
    a.lost(&hold).await;
    a.unsaved(&hold, 1).await;
    // Its time is still in the way, for itself as well, whatever it tries.
    let lease = a.refused(&ours).await;
    assert!(!lease.left.is_zero() && lease.left <= LONG, "{lease:?}");
    a.refused(&anew(&ours)).await;
    a.release(&hold).await;
    b.refused(&scene.claim("job", "b")).await;
    // With the raised token it is not the holder's either.
    let raised = lease.token.expect("a raised token");
    a.lost(&crate::lease::Hold { token: raised, ..hold }).await;
    Ok(())
}

pub(super) async fn revoke_waits_out_the_holders_time(scene: Harness<'_>) -> PropertyResult {
    let (a, b) = (scene.open().await, scene.open().await);
    let hold = a.hold(&scene.short("job", "a")).await;
    a.saved(&hold, 1, b"left").await;
    let raised = b.revoked(&hold.name, Revoke::InTime).await.token;
    scene.wait_out().await;
    a.lost(&hold).await;
    let grant = b.granted(&scene.claim("job", "b")).await;
    assert!(Some(grant.hold.token) > raised, "{grant:?} after {raised:?}");
    let before = grant.lineage.before;
    assert!(matches!(before, Ended::Expired(_)), "revoked is expired, not {before:?}");
    assert_eq!(grant.checkpoint, Some(checkpoint(b"left")));
    a.lost(&hold).await;
    b.kept(&grant.hold).await;
    Ok(())
}

pub(super) async fn revoke_now_frees_at_once(scene: Harness<'_>) -> PropertyResult {
    let (a, b) = (scene.open().await, scene.open().await);
    let ours = scene.claim("job", "a");
    let hold = a.hold(&ours).await;
    a.saved(&hold, 1, b"left").await;
    let lease = b.revoked(&hold.name, Revoke::Now).await;
    assert_eq!(lease.holder, None);
    assert!(lease.token > Some(hold.token), "the token is raised: {lease:?}");
    a.lost(&hold).await;
    let grant = b.granted(&scene.claim("job", "b")).await;
    assert!(Some(grant.hold.token) > lease.token, "{grant:?} after {lease:?}");
    assert_eq!(grant.lineage.origin, hold.token, "the record is the same");
    assert_eq!(grant.checkpoint, Some(checkpoint(b"left")));
    a.release(&hold).await;
    a.refused(&ours).await;
    b.kept(&grant.hold).await;
    Ok(())
}

pub(super) async fn revoke_twice_raises_the_token_twice(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let hold = store.hold(&scene.claim("job", "a")).await;
    let first = store.revoked(&hold.name, Revoke::InTime).await;
    let second = store.revoked(&hold.name, Revoke::InTime).await;
    assert!(second.token > first.token, "{second:?} after {first:?}");
    store.refused(&scene.claim("job", "b")).await;
    // Whoever has waited long enough can still decide not to.
    let third = store.revoked(&hold.name, Revoke::Now).await;
    assert!(third.token > second.token, "{third:?} after {second:?}");
    let next = store.hold(&scene.claim("job", "b")).await;
    assert!(Some(next.token) > third.token, "{next:?} after {third:?}");
    Ok(())
}

pub(super) async fn revoke_of_a_free_lease_leaves_it_free(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    for when in [Revoke::InTime, Revoke::Now] {
        let name = scene.name(&format!("{when:?}"));
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

pub(super) async fn revoke_of_an_unknown_name_is_invalid(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let name = scene.name("unused");
    for when in [Revoke::InTime, Revoke::Now] {
        expect_kind("revoke", store.0.revoke(&name, when).await, Kind::Invalid);
    }
    assert_eq!(store.look_at(&Scope::name(&name)).await, [], "nothing is written");
    Ok(())
}
