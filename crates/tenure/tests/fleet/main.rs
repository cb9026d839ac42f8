//! Members of one fleet over one store, in one process: each with its own threads, as it would be elsewhere.

#![allow(clippy::unwrap_used)] // Helpers of tests fail like tests.

mod lost_replies;
mod members;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lost_replies::LostReplies;
use members::Crowd;
use tenure::fleet::{FleetEvent, Reason, fleet_name, overrides, source};
use tenure::{CandidateId, Clock, Fleet};

const SETTLED: Duration = Duration::from_secs(20);

#[tokio::test]
async fn three_members_and_nine_shards_settle_at_three_each() {
    let mut crowd = Crowd::new(9).await;
    for id in ["a", "b", "c"] {
        crowd.join(id).await;
    }
    crowd.until("3/3/3", SETTLED, |shares| shares == [3, 3, 3]).await;
    crowd.leave_all().await;
    crowd.judge();
}

#[tokio::test]
async fn five_that_start_together_own_each_of_ten_shards_once() {
    let mut crowd = Crowd::new(10).await;
    for id in ["a", "b", "c", "d", "e"] {
        crowd.join(id).await;
    }
    crowd.until("two each", SETTLED, |shares| shares == [2, 2, 2, 2, 2]).await;
    crowd.leave_all().await;
    crowd.judge();
}

#[tokio::test]
async fn a_third_member_takes_three_or_four_of_ten_and_nothing_else_moves() {
    let mut crowd = Crowd::new(10).await;
    crowd.join("a").await;
    crowd.join("b").await;
    crowd.until("5/5", SETTLED, |shares| shares == [5, 5]).await;
    let before = crowd.grants();
    crowd.join("c").await;
    crowd
        .until("4/3/3", SETTLED, |shares| shares.iter().sum::<usize>() == 10 && shares[2] >= 3)
        .await;
    let moved = crowd.grants() - before;
    assert!((3..=4).contains(&moved), "{moved} shards have moved");
    crowd.leave_all().await;
    crowd.judge();
}

#[tokio::test]
async fn what_a_member_owned_that_leaves_has_other_owners_at_once() {
    let mut crowd = Crowd::new(12).await;
    for id in ["a", "b", "c"] {
        crowd.join(id).await;
    }
    crowd.until("4/4/4", SETTLED, |shares| shares == [4, 4, 4]).await;
    crowd.leave("b").await;
    crowd.until("6/6", Duration::from_secs(5), |shares| shares == [6, 6]).await;
    crowd.leave_all().await;
    crowd.judge();
}

#[tokio::test]
async fn what_a_member_owned_that_vanishes_is_taken_over_when_its_leases_have_run_out() {
    let mut crowd = Crowd::new(12).await;
    for id in ["a", "b", "c"] {
        crowd.join(id).await;
    }
    crowd.until("4/4/4", SETTLED, |shares| shares == [4, 4, 4]).await;
    crowd.vanish("c").await;
    crowd.until("6/6", SETTLED, |shares| shares == [6, 6]).await;
    crowd.leave_all().await;
    crowd.judge();
}

#[tokio::test]
async fn a_drained_member_gives_everything_away_and_takes_its_share_again_afterwards() {
    let mut crowd = Crowd::new(12).await;
    for id in ["a", "b", "c"] {
        crowd.join(id).await;
    }
    crowd.until("4/4/4", SETTLED, |shares| shares == [4, 4, 4]).await;
    crowd.say(|overrides| overrides.drained.insert(CandidateId::new("a").unwrap())).await;
    crowd.until("0/6/6", SETTLED, |shares| shares == [0, 6, 6]).await;
    assert!(crowd.reasons("a").contains(&Reason::Drain), "{:?}", crowd.reasons("a"));
    crowd.say(|overrides| overrides.drained.clear()).await;
    crowd.until("4/4/4", SETTLED, |shares| shares == [4, 4, 4]).await;
    crowd.leave_all().await;
    crowd.judge();
}

#[tokio::test]
async fn a_paused_shard_is_nobodys_until_it_is_resumed_also_when_its_owner_is_gone() {
    let mut crowd = Crowd::new(4).await;
    crowd.join("a").await;
    crowd.until("4", SETTLED, |shares| shares == [4]).await;
    let shard = crowd.shard(2);
    crowd.say(|overrides| overrides.paused.insert(shard.clone())).await;
    crowd.until("3", SETTLED, |shares| shares == [3]).await;
    crowd.leave("a").await;
    crowd.join("b").await;
    crowd.until("3", SETTLED, |shares| shares == [3]).await;
    crowd.say(|overrides| overrides.paused.clear()).await;
    crowd.until("4", SETTLED, |shares| shares == [4]).await;
    crowd.leave_all().await;
    crowd.judge();
}

#[tokio::test]
async fn a_second_member_with_the_same_id_claims_nothing_while_the_first_is_there() {
    let mut crowd = Crowd::new(4).await;
    crowd.join("a").await;
    crowd.until("4", SETTLED, |shares| shares == [4]).await;
    let twin = Fleet::builder(crowd.name())
        .member("a")
        .shards(source::list(crowd.names()))
        .ttl(Duration::from_secs(2))
        .join(crowd.store())
        .await
        .unwrap();
    Clock::boot().sleep(Duration::from_secs(1)).await;
    assert!(!twin.is_member() && twin.owned().is_empty());
    twin.leave().await;
    crowd.until("4", SETTLED, |shares| shares == [4]).await;
    crowd.leave_all().await;
    crowd.judge();
}

#[tokio::test]
async fn a_drain_that_hangs_keeps_the_lease_until_the_work_has_ended() {
    let mut crowd = Crowd::new(4).await;
    crowd.join("a").await;
    crowd.until("4", SETTLED, |shares| shares == [4]).await;
    crowd.hang("a", true);
    crowd.join("b").await;
    Clock::boot().sleep(Duration::from_secs(3)).await;
    assert_eq!(crowd.shares()[1], 0, "its work has not ended");
    crowd.hang("a", false);
    crowd.until("2/2", SETTLED, |shares| shares == [2, 2]).await;
    crowd.leave_all().await;
    crowd.judge();
}

#[tokio::test]
async fn no_shards_at_all_is_no_error() {
    let mut crowd = Crowd::new(0).await;
    crowd.join("a").await;
    crowd.until("0", SETTLED, |shares| shares == [0]).await;
    crowd.leave_all().await;
}

#[tokio::test]
async fn a_checkpoint_goes_with_its_shard() {
    let store = tenure::open("memory:").await.unwrap();
    let join = async |id: &str| {
        let fleet = Fleet::builder("fleet:checkpoint").member(id).shards(source::list(["x"]));
        fleet.join(store.clone()).await.unwrap()
    };
    let assigned = async |fleet: &Fleet| {
        let assigned = fleet.events().filter_map(async |event| match event {
            FleetEvent::Assigned { checkpoint, work, .. } => Some((checkpoint, work)),
            _ => None,
        });
        std::pin::pin!(assigned).next().await.unwrap()
    };
    let first = join("a").await;
    let (checkpoint, work) = assigned(&first).await;
    assert!(checkpoint.is_none());
    assert_eq!(work.save("row 7").await.unwrap(), tenure::Saved::Kept);
    drop(work);
    first.leave().await;
    let second = join("b").await;
    let (checkpoint, work) = assigned(&second).await;
    assert_eq!(checkpoint.unwrap().as_bytes(), b"row 7");
    assert!(second.is_owned("x") && work.is_valid());
    drop(work);
    second.leave().await;
    let control = overrides::read(&*store, &fleet_name("fleet:checkpoint").unwrap()).await.unwrap();
    assert!(control.paused.is_empty());
}

/// Each claim is carried out and extends the lease, as a renewal of another process would.
#[tokio::test]
async fn claims_whose_replies_are_lost_are_no_second_member_with_the_same_id() {
    const TTL: Duration = Duration::from_secs(1);
    let clock = Clock::boot();
    let store = LostReplies::new();
    let builder = Fleet::builder("lost-replies").member("a").ttl(TTL);
    let builder = builder.shards(source::list(&["shard"]));
    // `join` would wait for the first reply.
    let fleet = builder.launch(Arc::new(store.clone())).unwrap();
    let end = clock.now() + 4 * TTL;
    while clock.now() < end {
        assert!(!fleet.has_namesake());
        clock.sleep(TTL / 20).await;
    }
    store.heal();
    while !fleet.is_member() {
        assert!(!fleet.has_namesake());
        clock.sleep(TTL / 20).await;
    }
}
