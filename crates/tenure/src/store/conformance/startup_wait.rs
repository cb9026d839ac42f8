//! A start-up wait that a holder requests is recorded, shown to every reader, and kept over release and re-grant.

use std::time::Duration;

use super::harness::{Harness, PropertyResult};
use crate::lease::{Claim, ClaimedWait, StartupWait, WaitReason};
use crate::store::Revoke;

const LONG_WAIT: StartupWait =
    StartupWait { left: Duration::from_secs(300), reason: WaitReason::Observed };

fn waiting(claim: &Claim, wait: StartupWait) -> Claim {
    Claim { wait: ClaimedWait::AtLeast(wait), ..claim.clone() }
}

/// Asserts that this is about the remaining time of [`LONG_WAIT`].
fn assert_long(wait: Option<StartupWait>) {
    let wait = wait.expect("the holder waits");
    assert_eq!(wait.reason, LONG_WAIT.reason);
    assert!(wait.left <= LONG_WAIT.left, "{wait:?}");
    assert!(wait.left > LONG_WAIT.left - Duration::from_secs(100), "{wait:?}");
}

pub(super) async fn wait_of_a_holder_is_recorded_by_its_repeated_claim(
    harness: Harness<'_>,
) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let claim = harness.claim("job", "a");
    let first = a.granted(&claim).await;
    assert_eq!(first.wait, None);
    assert_eq!(b.observe_one(&claim.name).await.leader(), Some("a"));
    let again = a.granted(&waiting(&claim, LONG_WAIT)).await;
    assert_eq!(again.hold, first.hold, "the same term");
    assert_long(again.wait);
    let lease = b.observe_one(&claim.name).await;
    assert_eq!((lease.leader(), lease.holder.as_ref().map(|h| h.id.as_str())), (None, Some("a")));
    assert_long(lease.wait);
    assert_long(b.refused(&harness.claim("job", "b")).await.wait);
    a.kept(&first.hold).await;
    assert_long(b.observe_one(&claim.name).await.wait);
    Ok(())
}

pub(super) async fn wait_is_over_when_its_time_has_passed(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let claim = harness.claim("job", "a");
    let short_wait = StartupWait { left: harness.fixture.short_ttl(), ..LONG_WAIT };
    let first = a.granted(&waiting(&claim, short_wait)).await;
    assert!(first.wait.is_some(), "the holder waits");
    harness.wait_for_expiry().await;
    let lease = b.observe_one(&claim.name).await;
    assert_eq!((lease.wait, lease.leader()), (None, Some("a")));
    assert_eq!(b.refused(&harness.claim("job", "b")).await.wait, None);
    assert_eq!(a.granted(&claim).await.wait, None);
    Ok(())
}

pub(super) async fn wait_survives_release_and_expiry(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let first = store.granted(&waiting(&harness.claim("job", "a"), LONG_WAIT)).await;
    assert_long(first.wait);
    store.release(&first.hold).await;
    assert_eq!(store.observe_one(&first.hold.name).await.wait, None, "no candidate holds it");
    assert_long(store.granted(&harness.short_claim("job", "b")).await.wait);
    harness.wait_for_expiry().await;
    assert_long(store.granted(&harness.claim("job", "c")).await.wait);
    Ok(())
}

pub(super) async fn wait_never_becomes_shorter_by_a_claim(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let claim = harness.claim("job", "a");
    store.granted(&waiting(&claim, LONG_WAIT)).await;
    let short_wait = StartupWait { left: Duration::from_millis(1), ..LONG_WAIT };
    assert_long(store.granted(&waiting(&claim, short_wait)).await.wait);
    assert_long(store.granted(&claim).await.wait);
    Ok(())
}

pub(super) async fn wait_ends_with_a_revocation_now_and_for_a_lease_without_right(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    let first = store.granted(&waiting(&harness.claim("job", "a"), LONG_WAIT)).await;
    store.0.revoke(&first.hold.name, Revoke::Now).await.expect("a lease to revoke");
    assert_eq!(store.granted(&harness.claim("job", "b")).await.wait, None);
    let second = store.granted(&waiting(&harness.claim("node", "a"), LONG_WAIT)).await;
    store.release(&second.hold).await;
    let presence = Claim { wait: ClaimedWait::Never, ..harness.claim("node", "b") };
    assert_eq!(store.granted(&presence).await.wait, None);
    assert_eq!(store.observe_one(&presence.name).await.leader(), Some("b"));
    Ok(())
}
