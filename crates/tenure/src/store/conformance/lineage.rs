//! What a record remembers: where it comes from, how the last term ended, whom it asked for next.

use super::harness::{Harness, LONG, PropertyResult, id};
use crate::lease::{Ended, Lineage};

pub(super) async fn first_term_follows_nothing(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let grant = store.granted(&scene.claim("job", "a")).await;
    let first = Lineage { origin: grant.hold.token, before: Ended::Nothing };
    assert_eq!(grant.lineage, first);
    assert_eq!(grant.checkpoint, None);
    let lease = store.look(&grant.hold.name).await;
    assert_eq!(lease.lineage, Some(first));
    Ok(())
}

pub(super) async fn origin_stays_over_renewal_release_and_expiry(
    scene: Harness<'_>,
) -> PropertyResult {
    let store = scene.open().await;
    let first = store.hold(&scene.claim("job", "a")).await;
    store.kept(&first).await;
    store.release(&first).await;
    let second = store.granted(&scene.short("job", "b")).await;
    assert_eq!(second.lineage.origin, first.token);
    scene.wait_out().await;
    let third = store.granted(&scene.claim("job", "c")).await;
    assert_eq!(third.lineage.origin, first.token);
    let seen = store.look(&first.name).await.lineage.expect("a record of ours has a lineage");
    assert_eq!(seen.origin, first.token);
    Ok(())
}

pub(super) async fn before_says_how_the_last_term_ended(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let name = scene.name("job");
    let before = async || {
        let lease = store.look(&name).await;
        lease.lineage.expect("a record of ours has a lineage").before
    };
    let first = store.hold(&scene.claim("job", "a")).await;
    assert_eq!(before().await, Ended::Nothing, "its first term has none before it");
    store.release(&first).await;
    assert_eq!(before().await, Ended::Released(first.token), "the last one, while it is free");
    let second = store.granted(&scene.short("job", "b")).await;
    assert_eq!(second.lineage.before, Ended::Released(first.token));
    scene.wait_out().await;
    let third = store.granted(&scene.claim("job", "c")).await;
    assert_eq!(third.lineage.before, Ended::Expired(second.hold.token));
    assert_eq!(before().await, Ended::Expired(second.hold.token));
    // A renewal is not an end.
    store.kept(&third.hold).await;
    assert_eq!(before().await, Ended::Expired(second.hold.token));
    Ok(())
}

pub(super) async fn next_is_shown_until_somebody_comes(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let first = store.hold(&scene.claim("job", "a")).await;
    assert_eq!(store.look(&first.name).await.next, None);
    store.release_to(&first, Some(id("b"))).await;
    assert_eq!(store.look(&first.name).await.next, Some(id("b")));
    // A hint, no right: another one gets it all the same.
    let second = store.hold(&scene.claim("job", "c")).await;
    assert_eq!(store.look(&first.name).await.next, None);
    store.release(&second).await;
    assert_eq!(store.look(&first.name).await.next, None, "an old wish is not repeated");
    Ok(())
}

pub(super) async fn term_keeps_its_beginning_over_renewals(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let hold = store.hold(&scene.claim("job", "a")).await;
    let since = store.look(&hold.name).await.since;
    scene.fixture.pass(std::time::Duration::from_millis(50)).await;
    store.kept(&hold).await;
    assert_eq!(store.look(&hold.name).await.since, since);
    store.release(&hold).await;
    assert_eq!(store.look(&hold.name).await.since, None, "a free lease has no current term");
    Ok(())
}

pub(super) async fn store_time_does_not_go_back(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let mut times = Vec::new();
    for round in 0..10 {
        let who = format!("a-{round}");
        let grant = store.granted(&scene.claim("job", &who)).await;
        times.push(grant.store_time);
        times.push(store.refused(&scene.claim("job", "b")).await.store_time);
        times.push(store.look(&grant.hold.name).await.store_time);
        store.release(&grant.hold).await;
        times.push(store.lost(&grant.hold).await.store_time);
    }
    assert!(times.is_sorted(), "each after the one before: {times:?}");
    // A store has a clock or has none.
    assert!(times.iter().all(Option::is_some) || times.iter().all(Option::is_none), "{times:?}");
    if let (Some(Some(first)), Some(Some(last))) = (times.first(), times.last()) {
        scene.fixture.pass(std::time::Duration::from_millis(50)).await;
        let later = store.look(&scene.name("job")).await.store_time;
        assert!(later > Some(*last), "it moves: {later:?} after {last:?}");
        assert!(last.since(*first) < LONG, "and counts microseconds");
    }
    Ok(())
}
