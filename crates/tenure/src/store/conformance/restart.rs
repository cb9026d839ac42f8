//! What a store has acknowledged it keeps.

use std::time::Duration;

use super::harness::{Harness, PATIENCE, PropertyResult, checkpoint, claim};
use crate::clock::Clock;
use crate::error::Kind;
use crate::lease::{Answer, Ended};

pub(super) async fn token_grows_over_restart(scene: Harness<'_>) -> PropertyResult {
    let before = scene.open().await;
    let released = before.hold(&scene.claim("released", "a")).await;
    before.release(&released).await;
    let expired = before.hold(&scene.short("expired", "a")).await;
    let raised = before.hold(&scene.claim("revoked", "a")).await;
    let raised_to = before.revoked(&raised.name, crate::store::Revoke::Now).await.token;
    scene.wait_out().await;
    drop(before);
    scene.restart().await?;
    let after = scene.open().await;
    for (hold, last) in
        [(&released, Some(released.token)), (&expired, Some(expired.token)), (&raised, raised_to)]
    {
        let next = after.hold(&claim(&hold.name, "b")).await;
        assert!(Some(next.token) > last, "{next:?} after {last:?}");
        after.lost(hold).await;
    }
    Ok(())
}

pub(super) async fn restart_keeps_the_holder(scene: Harness<'_>) -> PropertyResult {
    let hold = scene.open().await.hold(&scene.claim("job", "a")).await;
    scene.restart().await?;
    let after = scene.open().await;
    let lease = after.refused(&scene.claim("job", "b")).await;
    assert_eq!(lease.token, Some(hold.token));
    after.kept(&hold).await;
    after.release(&hold).await;
    after.hold(&scene.claim("job", "b")).await;
    Ok(())
}

pub(super) async fn restart_keeps_lineage_and_checkpoint(scene: Harness<'_>) -> PropertyResult {
    let before = scene.open().await;
    let hold = before.hold(&scene.claim("job", "a")).await;
    before.saved(&hold, 1, b"kept").await;
    before.release(&hold).await;
    scene.restart().await?;
    let grant = scene.open().await.granted(&scene.claim("job", "b")).await;
    assert_eq!(grant.lineage.origin, hold.token);
    assert_eq!(grant.lineage.before, Ended::Released(hold.token));
    assert_eq!(grant.checkpoint, Some(checkpoint(b"kept")));
    Ok(())
}

pub(super) async fn handle_outlives_a_restart(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let hold = store.hold(&scene.claim("job", "a")).await;
    scene.restart().await?;
    // It does not retry, so the first answer may be that there is none; but it comes back alone.
    let clock = Clock::boot();
    let end = clock.now() + PATIENCE;
    loop {
        match store.renew(&hold, super::harness::LONG).await {
            Ok(Answer::Held(())) => return Ok(()),
            Err(error) if error.kind() == Kind::Unavailable && clock.now() < end => {}
            other => panic!("renew after the restart: expected Held at last, got {other:?}"),
        }
        clock.sleep(Duration::from_millis(20)).await;
    }
}
