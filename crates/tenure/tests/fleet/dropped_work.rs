//! Work that ends without a release: an application drops every handle of a shard that its member owns.

use std::sync::Arc;
use std::time::Duration;

use tenure::fleet::{FleetEvent, FleetNotice, Reason, ShardWork};
use tenure::{Clock, Fleet};

use crate::workers::{Notices, TTL, WorkRecord, member, wait_until};

/// The next work that the member gets.
async fn next_work(fleet: &Fleet) -> ShardWork {
    loop {
        if let FleetEvent::Assigned { work, .. } = fleet.next().await.unwrap() {
            return work;
        }
    }
}

fn was_dropped(notice: &FleetNotice) -> bool {
    matches!(notice, FleetNotice::Released { why: Reason::Dropped, .. })
}

#[tokio::test]
async fn a_shard_whose_handles_are_all_dropped_is_released_and_claimed_again() {
    let fleet = member("dropped:handles", "m", &["a"]).await;
    let (clock, notices) = (Clock::boot(), Notices::of(&fleet));
    let work = next_work(&fleet).await;
    let (token, number, clone) = (work.token(), work.number(), work.clone());
    drop(work);
    clock.sleep(TTL / 10).await;
    assert!(clone.is_valid() && !clone.should_stop() && fleet.is_owned("a"), "a clone is left");
    let dropped_at = clock.now();
    drop(clone);
    let mut revoked = None;
    let again = loop {
        let event = tokio::time::timeout(Duration::from_secs(10), fleet.next()).await;
        match event.expect("the shard stays owned and idle").unwrap() {
            FleetEvent::Revoked { number: ended, why, .. } => revoked = Some((ended, why)),
            FleetEvent::Assigned { work, .. } => break work,
            _ => {}
        }
    };
    assert_eq!(revoked, Some((number, Reason::Dropped)));
    assert!(again.token() > token && again.number() > number);
    let pause = clock.now().since(dropped_at);
    assert!(pause >= Duration::from_millis(400), "the other members may claim first: {pause:?}");
    wait_until("observers learn of it", || notices.count(was_dropped) == 1).await;
    drop(again);
    fleet.leave().await;
}

#[tokio::test]
async fn a_task_that_panics_with_its_handle_leaves_no_idle_owner() {
    let fleet = member("dropped:panic", "m", &["a", "b"]).await;
    let works = [next_work(&fleet).await, next_work(&fleet).await];
    let [panics, stays] = works;
    let shard = panics.shard().clone();
    let task = tokio::spawn(async move {
        assert!(!panics.is_valid(), "this panic is part of the test");
    });
    assert!(task.await.unwrap_err().is_panic());
    let again = tokio::time::timeout(Duration::from_secs(10), next_work(&fleet)).await;
    let again = again.expect("the shard stays owned and idle");
    assert_eq!(*again.shard(), shard);
    assert!(stays.is_valid() && !stays.should_stop());
    drop((again, stays));
    fleet.leave().await;
}

#[tokio::test]
async fn the_shards_of_a_run_that_was_cancelled_are_released_and_claimed_again() {
    let fleet = member("dropped:run", "m", &["a", "b"]).await;
    let (record, notices) = (WorkRecord::default(), Notices::of(&fleet));
    let run = |fleet: Arc<Fleet>, record: WorkRecord| {
        tokio::spawn(async move { fleet.run(|work| record.clone().work_forever(work)).await })
    };
    let cancelled = run(fleet.clone(), record.clone());
    wait_until("both work", || record.running() == 2).await;
    cancelled.abort();
    assert!(cancelled.await.unwrap_err().is_cancelled());
    assert_eq!(record.running(), 0);
    wait_until("both are released", || notices.count(was_dropped) == 2).await;
    let again = run(fleet.clone(), record.clone());
    wait_until("both work again", || record.running() == 2).await;
    fleet.leave().await;
    again.await.unwrap();
}

#[tokio::test]
async fn work_that_was_never_taken_keeps_its_shard_and_does_not_delay_a_leave() {
    let fleet = member("dropped:never-taken", "m", &["a"]).await;
    wait_until("it owns the shard", || fleet.is_owned("a")).await;
    let token = fleet.owned()[0].1;
    Clock::boot().sleep(2 * TTL).await;
    assert_eq!(fleet.owned()[0].1, token);
    fleet.leave().await;
    let mut events = Vec::new();
    while let Some(event) = fleet.next().await {
        events.push(event);
    }
    let about_work = |event: &FleetEvent| {
        matches!(
            event,
            FleetEvent::Assigned { .. } | FleetEvent::Revoked { .. } | FleetEvent::Released { .. }
        )
    };
    assert!(!events.iter().any(about_work), "the term is over: {events:?}");
}
