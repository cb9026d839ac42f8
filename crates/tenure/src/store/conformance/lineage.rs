//! Lineage: a record's origin, how the last term ended, and the preferred successor.

use super::harness::{Harness, LONG, PropertyResult, id};
use crate::lease::{Ended, Lineage};

pub(super) async fn first_term_follows_nothing(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let grant = store.granted(&harness.claim("job", "a")).await;
    let first = Lineage { origin: grant.hold.token, before: Ended::Nothing };
    assert_eq!(grant.lineage, first);
    assert_eq!(grant.checkpoint, None);
    let lease = store.observe_one(&grant.hold.name).await;
    assert_eq!(lease.lineage, Some(first));
    Ok(())
}

pub(super) async fn origin_stays_over_renewal_release_and_expiry(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    let first = store.hold(&harness.claim("job", "a")).await;
    store.kept(&first).await;
    store.release(&first).await;
    let second = store.granted(&harness.short_claim("job", "b")).await;
    assert_eq!(second.lineage.origin, first.token);
    harness.wait_for_expiry().await;
    let third = store.granted(&harness.claim("job", "c")).await;
    assert_eq!(third.lineage.origin, first.token);
    let observed =
        store.observe_one(&first.name).await.lineage.expect("a record of ours has a lineage");
    assert_eq!(observed.origin, first.token);
    Ok(())
}

pub(super) async fn before_says_how_the_last_term_ended(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let name = harness.name("job");
    let before = async || {
        let lease = store.observe_one(&name).await;
        lease.lineage.expect("a record of ours has a lineage").before
    };
    let first = store.hold(&harness.claim("job", "a")).await;
    assert_eq!(before().await, Ended::Nothing, "its first term has none before it");
    store.release(&first).await;
    assert_eq!(before().await, Ended::Released(first.token), "the last one, while it is free");
    let second = store.granted(&harness.short_claim("job", "b")).await;
    assert_eq!(second.lineage.before, Ended::Released(first.token));
    harness.wait_for_expiry().await;
    let third = store.granted(&harness.claim("job", "c")).await;
    assert_eq!(third.lineage.before, Ended::Expired(second.hold.token));
    assert_eq!(before().await, Ended::Expired(second.hold.token));
    // A renewal is not an end.
    store.kept(&third.hold).await;
    assert_eq!(before().await, Ended::Expired(second.hold.token));
    Ok(())
}

pub(super) async fn preferred_successor_is_shown_until_the_next_grant(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    let first = store.hold(&harness.claim("job", "a")).await;
    assert_eq!(store.observe_one(&first.name).await.next, None);
    store.release_to(&first, Some(id("b"))).await;
    assert_eq!(store.observe_one(&first.name).await.next, Some(id("b")));
    // It is a hint and grants no right: another candidate is granted the lease all the same.
    let second = store.hold(&harness.claim("job", "c")).await;
    assert_eq!(store.observe_one(&first.name).await.next, None);
    store.release(&second).await;
    assert_eq!(
        store.observe_one(&first.name).await.next,
        None,
        "the preferred successor of an earlier release is not repeated"
    );
    Ok(())
}

pub(super) async fn term_keeps_its_start_time_over_renewals(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    let hold = store.hold(&harness.claim("job", "a")).await;
    let since = store.observe_one(&hold.name).await.since;
    harness.fixture.pass(std::time::Duration::from_millis(50)).await;
    store.kept(&hold).await;
    assert_eq!(store.observe_one(&hold.name).await.since, since);
    store.release(&hold).await;
    assert_eq!(store.observe_one(&hold.name).await.since, None, "a free lease has no current term");
    Ok(())
}

pub(super) async fn store_time_does_not_go_back(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let mut times = Vec::new();
    for round in 0..10 {
        let who = format!("a-{round}");
        let grant = store.granted(&harness.claim("job", &who)).await;
        times.push(grant.store_time);
        times.push(store.refused(&harness.claim("job", "b")).await.store_time);
        times.push(store.observe_one(&grant.hold.name).await.store_time);
        store.release(&grant.hold).await;
        times.push(store.lost(&grant.hold).await.store_time);
    }
    assert!(times.is_sorted(), "each after the one before: {times:?}");
    // A store has a clock or has none.
    assert!(times.iter().all(Option::is_some) || times.iter().all(Option::is_none), "{times:?}");
    if let (Some(Some(first)), Some(Some(last))) = (times.first(), times.last()) {
        harness.fixture.pass(std::time::Duration::from_millis(50)).await;
        let later = store.observe_one(&harness.name("job")).await.store_time;
        assert!(later > Some(*last), "it moves: {later:?} after {last:?}");
        assert!(last.since(*first) < LONG, "and counts microseconds");
    }
    Ok(())
}
