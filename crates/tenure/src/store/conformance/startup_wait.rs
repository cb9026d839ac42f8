//! A start-up wait that a holder asks for: recorded, shown to every reader, kept over release and re-grant.

use std::time::Duration;

use super::harness::{Harness, PropertyResult};
use crate::lease::{Claim, ClaimedWait, StartupWait, WaitReason};
use crate::store::Revoke;

const LONG_WAIT: StartupWait =
    StartupWait { left: Duration::from_secs(300), reason: WaitReason::Observed };

fn waiting(claim: &Claim, wait: StartupWait) -> Claim {
    Claim { wait: ClaimedWait::AtLeast(wait), ..claim.clone() }
}

/// Asserts that this is about what is left of [`LONG_WAIT`].
fn is_long(wait: Option<StartupWait>) {
    let wait = wait.expect("the holder waits");
    assert_eq!(wait.reason, LONG_WAIT.reason);
    assert!(wait.left <= LONG_WAIT.left, "{wait:?}");
    assert!(wait.left > LONG_WAIT.left - Duration::from_secs(100), "{wait:?}");
}

pub(super) async fn wait_of_a_holder_is_recorded_by_its_repeated_claim(
    scene: Harness<'_>,
) -> PropertyResult {
    let (a, b) = (scene.open().await, scene.open().await);
    let claim = scene.claim("job", "a");
    let first = a.granted(&claim).await;
    assert_eq!(first.wait, None);
    assert_eq!(b.look(&claim.name).await.leader(), Some("a"));
    let again = a.granted(&waiting(&claim, LONG_WAIT)).await;
    assert_eq!(again.hold, first.hold, "the same term");
    is_long(again.wait);
    let lease = b.look(&claim.name).await;
    assert_eq!((lease.leader(), lease.holder.as_ref().map(|h| h.id.as_str())), (None, Some("a")));
    is_long(lease.wait);
    is_long(b.refused(&scene.claim("job", "b")).await.wait);
    a.kept(&first.hold).await;
    is_long(b.look(&claim.name).await.wait);
    Ok(())
}

pub(super) async fn wait_survives_release_and_expiry(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let first = store.granted(&waiting(&scene.claim("job", "a"), LONG_WAIT)).await;
    is_long(first.wait);
    store.release(&first.hold).await;
    assert_eq!(store.look(&first.hold.name).await.wait, None, "no candidate holds it");
    is_long(store.granted(&scene.short("job", "b")).await.wait);
    scene.wait_out().await;
    is_long(store.granted(&scene.claim("job", "c")).await.wait);
    Ok(())
}

pub(super) async fn wait_never_becomes_shorter_by_a_claim(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let claim = scene.claim("job", "a");
    store.granted(&waiting(&claim, LONG_WAIT)).await;
    let short = StartupWait { left: Duration::from_millis(1), ..LONG_WAIT };
    is_long(store.granted(&waiting(&claim, short)).await.wait);
    is_long(store.granted(&claim).await.wait);
    Ok(())
}

pub(super) async fn wait_ends_with_a_revocation_now_and_for_a_lease_without_right(
    scene: Harness<'_>,
) -> PropertyResult {
    let store = scene.open().await;
    let first = store.granted(&waiting(&scene.claim("job", "a"), LONG_WAIT)).await;
    store.0.revoke(&first.hold.name, Revoke::Now).await.expect("a lease to revoke");
    assert_eq!(store.granted(&scene.claim("job", "b")).await.wait, None);
    let second = store.granted(&waiting(&scene.claim("node", "a"), LONG_WAIT)).await;
    store.release(&second.hold).await;
    let presence = Claim { wait: ClaimedWait::Never, ..scene.claim("node", "b") };
    assert_eq!(store.granted(&presence).await.wait, None);
    assert_eq!(store.look(&presence.name).await.leader(), Some("b"));
    Ok(())
}
