//! Expiry. No property here asserts that a short lease is live after more than one call: a busy machine may pause.

use super::harness::{Harness, LONG, PropertyResult, new_campaign};
use crate::lease::{Claim, Ended};

pub(super) async fn expiry_frees_within_the_limit(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let hold = a.hold(&harness.short_claim("job", "a")).await;
    // A store that judges expiry by observation must have observed the lease first.
    b.observe_one(&hold.name).await;
    harness.wait_for_expiry().await;
    let lease = b.observe_one(&hold.name).await;
    assert_eq!(lease.holder, None, "an expired lease has no holder");
    assert!(lease.left.is_zero(), "a free lease has nothing left: {lease:?}");
    let lineage = lease.lineage.expect("a record of ours has a lineage");
    assert_eq!(lineage.before, Ended::Expired(hold.token));
    let grant = b.granted(&harness.claim("job", "b")).await;
    assert_eq!(grant.lineage.before, Ended::Expired(hold.token));
    Ok(())
}

pub(super) async fn token_grows_over_expiry(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let first = a.hold(&harness.short_claim("job", "a")).await;
    b.observe_one(&first.name).await;
    harness.wait_for_expiry().await;
    let second = b.hold(&harness.short_claim("job", "b")).await;
    assert!(second.token > first.token, "{second:?} after {first:?}");
    a.observe_one(&first.name).await;
    harness.wait_for_expiry().await;
    let third = a.hold(&harness.claim("job", "a")).await;
    assert!(third.token > second.token, "{third:?} after {second:?}");
    Ok(())
}

pub(super) async fn renew_refused_after_expiry(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let hold = store.hold(&harness.short_claim("job", "a")).await;
    harness.wait_for_expiry().await;
    // Also while no other candidate has claimed it: an expired term never becomes valid again.
    let lease = store.lost(&hold).await;
    assert_eq!(lease.holder, None, "an expired lease has no holder");
    let next = store.hold(&harness.claim("job", "b")).await;
    store.lost(&hold).await;
    store.kept(&next).await;
    Ok(())
}

pub(super) async fn save_refused_after_expiry(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let hold = store.hold(&harness.short_claim("job", "a")).await;
    harness.wait_for_expiry().await;
    store.unsaved(&hold, 1).await;
    assert_eq!(store.observe_one(&hold.name).await.checkpoint, None);
    Ok(())
}

pub(super) async fn release_after_expiry_does_nothing(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let old = store.hold(&harness.short_claim("job", "a")).await;
    harness.wait_for_expiry().await;
    store.release(&old).await;
    let grant = store.granted(&harness.claim("job", "a")).await;
    let before = grant.lineage.before;
    assert_eq!(before, Ended::Expired(old.token), "it ended before the release came");
    store.release(&old).await;
    store.kept(&grant.hold).await;
    Ok(())
}

pub(super) async fn repeat_after_expiry_is_a_new_term(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let claim = harness.short_claim("job", "a");
    let old = store.hold(&claim).await;
    harness.wait_for_expiry().await;
    // The same claim, late: it must not continue the term that is over.
    let claim = Claim { ttl: LONG, ..claim };
    let new = store.hold(&claim).await;
    assert!(new.token > old.token, "{new:?} after {old:?}");
    store.lost(&old).await;
    store.unsaved(&old, 1).await;
    store.kept(&new).await;
    Ok(())
}

pub(super) async fn renew_extends(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let hold = store.hold(&harness.short_claim("job", "a")).await;
    store.kept(&hold).await;
    harness.wait_for_expiry().await;
    let lease = store.refused(&harness.claim("job", "b")).await;
    assert_eq!(lease.ttl, LONG, "the TTL is the renewal's");
    store.kept(&hold).await;
    // It extends by the renewal's TTL, not by the claim's.
    let short_ttl = harness.fixture.short_ttl();
    let renewed = store.renew(&hold, short_ttl).await;
    assert!(matches!(&renewed, Ok(answer) if answer.is_held()), "{renewed:?}");
    harness.wait_for_expiry().await;
    store.hold(&harness.claim("job", "b")).await;
    Ok(())
}

/// A renewal with the same TTL writes the same record: the store must notice it all the same.
pub(super) async fn renewal_with_the_same_ttl_keeps_the_lease(
    harness: Harness<'_>,
) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    // Several seconds, so that a busy machine does not let the lease expire.
    let ttl = harness.fixture.short_ttl() * 6;
    let hold = a.hold(&Claim { ttl, ..harness.claim("job", "a") }).await;
    // A store that judges expiry by observation begins to observe here.
    b.refused(&harness.claim("job", "b")).await;
    harness.fixture.pass(ttl / 2).await;
    let renewed = a.renew(&hold, ttl).await;
    assert!(matches!(&renewed, Ok(answer) if answer.is_held()), "{renewed:?}");
    // More than a TTL after the grant, and less than a TTL after the renewal.
    harness.fixture.pass(ttl / 2 + ttl / 12).await;
    b.refused(&harness.claim("job", "b")).await;
    Ok(())
}

pub(super) async fn repeat_of_a_claim_extends(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let claim = harness.short_claim("job", "a");
    let hold = store.hold(&claim).await;
    let repeated = Claim { ttl: LONG, ..claim };
    assert_eq!(store.hold(&repeated).await, hold);
    harness.wait_for_expiry().await;
    store.refused(&new_campaign(&repeated)).await;
    store.kept(&hold).await;
    Ok(())
}
