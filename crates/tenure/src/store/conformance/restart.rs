//! Restarts: a store keeps what it has acknowledged.

use std::time::Duration;

use super::harness::{HANG_TIMEOUT, Harness, PropertyResult, checkpoint, claim};
use crate::clock::Clock;
use crate::error::Kind;
use crate::lease::{Answer, Ended};

pub(super) async fn token_grows_over_restart(harness: Harness<'_>) -> PropertyResult {
    let before = harness.open().await;
    let released = before.hold(&harness.claim("released", "a")).await;
    before.release(&released).await;
    let expired = before.hold(&harness.short_claim("expired", "a")).await;
    let raised = before.hold(&harness.claim("revoked", "a")).await;
    let raised_to = before.revoked(&raised.name, crate::store::Revoke::Now).await.token;
    drop(before);
    harness.restart().await?;
    let after = harness.open().await;
    // A store that judges expiry by observation must have observed the lease first.
    after.observe_one(&expired.name).await;
    harness.wait_for_expiry().await;
    for (hold, last) in
        [(&released, Some(released.token)), (&expired, Some(expired.token)), (&raised, raised_to)]
    {
        let next = after.hold(&claim(&hold.name, "b")).await;
        assert!(Some(next.token) > last, "{next:?} after {last:?}");
        after.lost(hold).await;
    }
    Ok(())
}

pub(super) async fn restart_keeps_the_holder(harness: Harness<'_>) -> PropertyResult {
    let hold = harness.open().await.hold(&harness.claim("job", "a")).await;
    harness.restart().await?;
    let after = harness.open().await;
    let lease = after.refused(&harness.claim("job", "b")).await;
    assert_eq!(lease.token, Some(hold.token));
    after.kept(&hold).await;
    after.release(&hold).await;
    after.hold(&harness.claim("job", "b")).await;
    Ok(())
}

pub(super) async fn restart_keeps_lineage_and_checkpoint(harness: Harness<'_>) -> PropertyResult {
    let before = harness.open().await;
    let hold = before.hold(&harness.claim("job", "a")).await;
    before.saved(&hold, 1, b"kept").await;
    before.release(&hold).await;
    harness.restart().await?;
    let grant = harness.open().await.granted(&harness.claim("job", "b")).await;
    assert_eq!(grant.lineage.origin, hold.token);
    assert_eq!(grant.lineage.before, Ended::Released(hold.token));
    assert_eq!(grant.checkpoint, Some(checkpoint(b"kept")));
    Ok(())
}

pub(super) async fn handle_outlives_a_restart(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let hold = store.hold(&harness.claim("job", "a")).await;
    harness.restart().await?;
    // A store does not retry, so the first answer may be an error; but the handle recovers by itself.
    let clock = Clock::boot();
    let end = clock.now() + HANG_TIMEOUT;
    loop {
        match store.renew(&hold, super::harness::LONG).await {
            Ok(Answer::Held(())) => return Ok(()),
            Err(error) if error.kind() == Kind::Unavailable && clock.now() < end => {}
            other => panic!("renew after the restart: expected Held at last, got {other:?}"),
        }
        clock.sleep(Duration::from_millis(20)).await;
    }
}
