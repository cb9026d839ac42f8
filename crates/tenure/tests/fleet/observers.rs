//! `Fleet::events`: several observers of one member, and what a handle says about its term.

use std::time::Duration;

use futures_util::StreamExt;
use tenure::Clock;
use tenure::fleet::{FleetEvent, FleetNotice, Reason};

use crate::workers::{Notices, WorkRecord, member, wait_until};

#[tokio::test]
async fn each_observer_receives_all_notices_and_its_stream_ends_with_the_fleet() {
    let fleet = member("observers:all", "m", &["a", "b"]).await;
    let (first, second) = (Notices::of(&fleet), Notices::of(&fleet));
    let record = WorkRecord::default();
    let run = fleet.run(|work| record.clone().work_forever(work));
    let leave = async {
        wait_until("both work", || record.running() == 2).await;
        fleet.leave().await;
    };
    tokio::join!(run, leave);
    wait_until("both streams end", || first.have_ended() && second.have_ended()).await;
    assert_eq!(first.texts(), second.texts());
    let count = |is: fn(&FleetNotice) -> bool| first.count(is);
    assert_eq!(count(|notice| matches!(notice, FleetNotice::Assigned { .. })), 2);
    let why = |notice: &FleetNotice| match notice {
        FleetNotice::Revoked { why, .. } | FleetNotice::Released { why, .. } => {
            *why == Reason::Shutdown
        }
        _ => false,
    };
    assert_eq!(count(why), 4);
    assert_eq!(count(|notice| matches!(notice, FleetNotice::Left { .. })), 1);
    assert_eq!(fleet.events().count().await, 0, "the fleet has ended");
}

#[tokio::test]
async fn the_streams_end_when_the_fleet_is_dropped() {
    let fleet = member("observers:drop", "m", &["a"]).await;
    let notices = Notices::of(&fleet);
    wait_until("it owns the shard", || fleet.is_owned("a")).await;
    drop(fleet);
    wait_until("the stream ends", || notices.have_ended()).await;
}

#[tokio::test]
async fn a_handle_describes_its_term_and_releases_its_shard_on_request() {
    let fleet = member("observers:handle", "m", &["a"]).await;
    let work = loop {
        if let Some(FleetEvent::Assigned { work, .. }) = fleet.next().await {
            break work;
        }
    };
    assert_eq!((work.shard().as_str(), work.checkpoint()), ("a", None));
    assert_eq!(fleet.owned(), [(work.shard().clone(), work.token())]);
    assert_eq!(work.save("row 7").await.unwrap(), tenure::Saved::Kept);
    assert!(!work.should_stop());
    let waiting = tokio::spawn({
        let work = work.clone();
        async move { work.revoked().await }
    });
    work.release();
    assert!(work.should_stop() && work.is_valid() && !fleet.is_owned("a"));
    assert_eq!(waiting.await.unwrap(), Reason::Released);
    assert_eq!(work.revoked().await, Reason::Released);
    // It is renewed until the work has ended.
    Clock::boot().sleep(Duration::from_secs(3)).await;
    assert!(work.is_valid());
    work.release();
    let token = work.token();
    drop(work);
    let mut reasons = Vec::new();
    let again = loop {
        match fleet.next().await.unwrap() {
            FleetEvent::Assigned { work, .. } => break work,
            FleetEvent::Revoked { why, .. } | FleetEvent::Released { why, .. } => reasons.push(why),
            _ => {}
        }
    };
    assert_eq!(reasons, [Reason::Released; 2]);
    assert!(again.token() > token);
    assert_eq!(again.checkpoint().unwrap().as_bytes(), b"row 7");
    assert!(!again.should_stop());
    drop(again);
    fleet.leave().await;
}
