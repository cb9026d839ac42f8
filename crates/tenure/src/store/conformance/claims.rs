//! Who gets a lease, keeps it and gives it back, while nobody's time runs out.

use futures_util::FutureExt;

use super::harness::{Harness, LONG, PropertyResult, anew, id};
use crate::lease::{Claim, Hold, Nonce};

pub(super) async fn second_claim_is_refused(scene: Harness<'_>) -> PropertyResult {
    let (a, b) = (scene.open().await, scene.open().await);
    let claim = scene.claim("job", "a");
    let hold = a.hold(&claim).await;
    let lease = b.refused(&scene.claim("job", "b")).await;
    let holder = lease.holder.clone().expect("Taken must say who has it");
    assert_eq!(holder.id, "a");
    assert_eq!(holder.nonce, Some(claim.nonce));
    assert_eq!(lease.token, Some(hold.token));
    assert_eq!(lease.ttl, claim.ttl);
    assert!(!lease.left.is_zero() && lease.left <= LONG, "{lease:?}");
    // A refusal takes nothing from the holder, nor does it leave anything to the refused.
    a.kept(&hold).await;
    b.refused(&scene.claim("job", "b")).await;
    Ok(())
}

pub(super) async fn repeat_of_an_unanswered_claim_keeps_its_token(
    scene: Harness<'_>,
) -> PropertyResult {
    let claim = scene.claim("job", "a");
    let first = scene.open().await.granted(&claim).await;
    // Over another connection, as after a broken one.
    let again = scene.open().await.granted(&claim).await;
    assert_eq!(again.hold, first.hold);
    assert_eq!(again.lineage, first.lineage, "it is the same term");
    assert_eq!(again.checkpoint, first.checkpoint);
    Ok(())
}

pub(super) async fn cancelled_claim_can_be_repeated(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    for round in 0..20 {
        let claim = scene.claim(&format!("job-{round}"), "a");
        // Polled once, so that the request may be on its way, and dropped.
        drop(store.acquire(&claim).now_or_never());
        let hold = store.hold(&claim).await;
        // The abandoned request may arrive after the second one; it must not change the term.
        store.kept(&hold).await;
        assert_eq!(store.hold(&claim).await, hold);
    }
    Ok(())
}

pub(super) async fn new_campaign_never_gets_an_old_token(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let claim = scene.claim("job", "a");
    let hold = store.hold(&claim).await;
    // While its own old term lasts, that is somebody else's.
    let lease = store.refused(&anew(&claim)).await;
    assert_eq!(lease.holder.expect("held").nonce, Some(claim.nonce));
    store.release(&hold).await;
    let next = store.hold(&anew(&claim)).await;
    assert!(next.token > hold.token, "{next:?} after {hold:?}");
    Ok(())
}

pub(super) async fn delayed_release_frees_nothing_of_the_next_term(
    scene: Harness<'_>,
) -> PropertyResult {
    let store = scene.open().await;
    let claim = scene.claim("job", "a");
    let old = store.hold(&claim).await;
    store.release(&old).await;
    let new = store.hold(&anew(&claim)).await;
    store.release(&old).await;
    store.refused(&scene.claim("job", "b")).await;
    store.kept(&new).await;
    // Nor does one that knows the new nonce, but not the new token.
    let confused = Hold { token: old.token, ..new.clone() };
    store.release(&confused).await;
    store.kept(&new).await;
    Ok(())
}

pub(super) async fn token_grows_over_release(scene: Harness<'_>) -> PropertyResult {
    let (a, b) = (scene.open().await, scene.open().await);
    let mut last = None;
    for round in 0..20 {
        let (store, who) = if round % 2 == 0 { (&a, "a") } else { (&b, "b") };
        let hold = store.hold(&scene.claim("job", who)).await;
        assert!(Some(hold.token) > last, "{hold:?} after {last:?}");
        store.release(&hold).await;
        last = Some(hold.token);
    }
    Ok(())
}

pub(super) async fn renew_keeps_the_token(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let claim = scene.claim("job", "a");
    let hold = store.hold(&claim).await;
    for _ in 0..3 {
        store.kept(&hold).await;
    }
    let lease = store.look(&hold.name).await;
    assert_eq!(lease.token, Some(hold.token));
    assert_eq!(lease.holder.expect("held").nonce, Some(claim.nonce));
    Ok(())
}

pub(super) async fn renew_refused_with_an_old_token(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    // The same nonce in both terms, so that nothing but the token tells them apart.
    let claim = scene.claim("job", "a");
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

pub(super) async fn renew_refused_with_another_nonce(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let hold = store.hold(&scene.claim("job", "a")).await;
    let other = Hold { nonce: Nonce::random(), ..hold.clone() };
    store.lost(&other).await;
    store.unsaved(&other, 1).await;
    store.kept(&hold).await;
    Ok(())
}

pub(super) async fn renew_refused_to_another_candidate(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let claim = scene.claim("job", "a");
    let hold = store.hold(&claim).await;
    let other = Hold { candidate: id("b"), ..hold.clone() };
    store.lost(&other).await;
    store.unsaved(&other, 1).await;
    // A nonce is nobody's without its candidate.
    let stolen = Claim { candidate: id("b"), ..claim };
    store.refused(&stolen).await;
    store.kept(&hold).await;
    Ok(())
}

pub(super) async fn release_by_another_does_nothing(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let hold = store.hold(&scene.claim("job", "a")).await;
    let (candidate, nonce) = (id("b"), Nonce::random());
    for other in [Hold { candidate, ..hold.clone() }, Hold { nonce, ..hold.clone() }] {
        scene.open().await.release(&other).await;
        store.refused(&scene.claim("job", "c")).await;
    }
    store.kept(&hold).await;
    // Nor does it make anything where there was nothing.
    let name = scene.name("unused");
    store.release(&Hold { name: name.clone(), ..hold }).await;
    assert_eq!(store.look_at(&crate::store::Scope::name(&name)).await, []);
    Ok(())
}

pub(super) async fn release_frees_at_once(scene: Harness<'_>) -> PropertyResult {
    let (a, b) = (scene.open().await, scene.open().await);
    let hold = a.hold(&scene.claim("job", "a")).await;
    b.refused(&scene.claim("job", "b")).await;
    a.release(&hold).await;
    let lease = b.look(&hold.name).await;
    assert_eq!(lease.holder, None);
    assert!(lease.left.is_zero(), "a free lease has nothing left: {lease:?}");
    assert_eq!(lease.token, Some(hold.token), "the token survives");
    b.hold(&scene.claim("job", "b")).await;
    a.lost(&hold).await;
    Ok(())
}

pub(super) async fn release_twice_is_no_error(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let hold = store.hold(&scene.claim("job", "a")).await;
    store.release(&hold).await;
    store.release(&hold).await;
    let lease = store.look(&hold.name).await;
    assert_eq!((lease.holder, lease.token), (None, Some(hold.token)));
    Ok(())
}

pub(super) async fn detached_handle_sees_the_same_leases(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let detached = super::harness::HarnessStore(store.0.detached());
    assert_eq!(detached.0.url(), store.0.url());
    let hold = store.hold(&scene.claim("job", "a")).await;
    detached.refused(&scene.claim("job", "b")).await;
    detached.kept(&hold).await;
    // It lives on without the one it came from.
    drop(store);
    detached.release(&hold).await;
    scene.open().await.hold(&scene.claim("job", "b")).await;
    Ok(())
}
