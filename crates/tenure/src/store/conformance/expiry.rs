//! What happens when time runs out. Nothing here asserts that a short lease is alive after more
//! than one call: a busy machine may pause.

use super::harness::{Harness, LONG, PropertyResult, anew};
use crate::lease::{Claim, Ended};

pub(super) async fn expiry_frees_within_the_limit(scene: Harness<'_>) -> PropertyResult {
    let (a, b) = (scene.open().await, scene.open().await);
    let hold = a.hold(&scene.short("job", "a")).await;
    // A store that judges by watching has to have seen it.
    b.look(&hold.name).await;
    scene.wait_out().await;
    let lease = b.look(&hold.name).await;
    assert_eq!(lease.holder, None, "nobody holds what has run out");
    assert!(lease.left.is_zero(), "a free lease has nothing left: {lease:?}");
    let lineage = lease.lineage.expect("a record of ours has a lineage");
    assert_eq!(lineage.before, Ended::Expired(hold.token));
    let grant = b.granted(&scene.claim("job", "b")).await;
    assert_eq!(grant.lineage.before, Ended::Expired(hold.token));
    Ok(())
}

pub(super) async fn token_grows_over_expiry(scene: Harness<'_>) -> PropertyResult {
    let (a, b) = (scene.open().await, scene.open().await);
    let first = a.hold(&scene.short("job", "a")).await;
    b.look(&first.name).await;
    scene.wait_out().await;
    let second = b.hold(&scene.short("job", "b")).await;
    assert!(second.token > first.token, "{second:?} after {first:?}");
    a.look(&first.name).await;
    scene.wait_out().await;
    let third = a.hold(&scene.claim("job", "a")).await;
    assert!(third.token > second.token, "{third:?} after {second:?}");
    Ok(())
}

pub(super) async fn renew_refused_after_expiry(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let hold = store.hold(&scene.short("job", "a")).await;
    scene.wait_out().await;
    // Also while nobody else has come: an expired term never comes back.
    let lease = store.lost(&hold).await;
    assert_eq!(lease.holder, None, "nobody holds what has run out");
    let next = store.hold(&scene.claim("job", "b")).await;
    store.lost(&hold).await;
    store.kept(&next).await;
    Ok(())
}

pub(super) async fn save_refused_after_expiry(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let hold = store.hold(&scene.short("job", "a")).await;
    scene.wait_out().await;
    store.unsaved(&hold, 1).await;
    assert_eq!(store.look(&hold.name).await.checkpoint, None);
    Ok(())
}

pub(super) async fn release_after_expiry_does_nothing(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let old = store.hold(&scene.short("job", "a")).await;
    scene.wait_out().await;
    store.release(&old).await;
    let grant = store.granted(&scene.claim("job", "a")).await;
    let before = grant.lineage.before;
    assert_eq!(before, Ended::Expired(old.token), "it ended before the release came");
    store.release(&old).await;
    store.kept(&grant.hold).await;
    Ok(())
}

pub(super) async fn repeat_after_expiry_is_a_new_term(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let claim = scene.short("job", "a");
    let old = store.hold(&claim).await;
    scene.wait_out().await;
    // The very same claim, come late: not the term that is over.
    let claim = Claim { ttl: LONG, ..claim };
    let new = store.hold(&claim).await;
    assert!(new.token > old.token, "{new:?} after {old:?}");
    store.lost(&old).await;
    store.unsaved(&old, 1).await;
    store.kept(&new).await;
    Ok(())
}

pub(super) async fn renew_extends(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let hold = store.hold(&scene.short("job", "a")).await;
    store.kept(&hold).await;
    scene.wait_out().await;
    let lease = store.refused(&scene.claim("job", "b")).await;
    assert_eq!(lease.ttl, LONG, "the TTL is the renewal's");
    store.kept(&hold).await;
    // And by the renewal's TTL, not by the first one's.
    let short = scene.fixture.short_ttl();
    let renewed = store.renew(&hold, short).await;
    assert!(matches!(&renewed, Ok(answer) if answer.is_held()), "{renewed:?}");
    scene.wait_out().await;
    store.hold(&scene.claim("job", "b")).await;
    Ok(())
}

pub(super) async fn repeat_of_a_claim_extends(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let claim = scene.short("job", "a");
    let hold = store.hold(&claim).await;
    let repeated = Claim { ttl: LONG, ..claim };
    assert_eq!(store.hold(&repeated).await, hold);
    scene.wait_out().await;
    store.refused(&anew(&repeated)).await;
    store.kept(&hold).await;
    Ok(())
}
