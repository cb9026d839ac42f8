//! Members of one fleet over one store, in one process. Each member has its own threads, as in separate processes.

#![allow(clippy::unwrap_used)] // Helpers of tests fail like tests.

mod custom_source;
mod dropped_work;
mod members;
mod observers;
mod run;
mod run_signatures;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use members::TestFleet;
use tenure::fleet::{FleetEvent, Reason, fleet_name, overrides, source};
use tenure::store::memory::MemoryStore;
use tenure::testing::{FaultyStore, StoreFault, StoreOperation};
use tenure::{CandidateId, Clock, Fleet};

const SETTLED: Duration = Duration::from_secs(20);

#[tokio::test]
async fn three_members_and_nine_shards_settle_at_three_each() {
    let mut fleet = TestFleet::new(9).await;
    for id in ["a", "b", "c"] {
        fleet.join(id).await;
    }
    fleet.until("3/3/3", SETTLED, |shares| shares == [3, 3, 3]).await;
    fleet.leave_all().await;
    fleet.check_work_log();
}

#[tokio::test]
async fn five_members_that_start_together_own_each_of_ten_shards_once() {
    let mut fleet = TestFleet::new(10).await;
    for id in ["a", "b", "c", "d", "e"] {
        fleet.join(id).await;
    }
    fleet.until("two each", SETTLED, |shares| shares == [2, 2, 2, 2, 2]).await;
    fleet.leave_all().await;
    fleet.check_work_log();
}

#[tokio::test]
async fn a_third_member_takes_three_or_four_of_ten_and_nothing_else_moves() {
    let mut fleet = TestFleet::new(10).await;
    fleet.join("a").await;
    fleet.join("b").await;
    fleet.until("5/5", SETTLED, |shares| shares == [5, 5]).await;
    let before = fleet.grants();
    fleet.join("c").await;
    fleet
        .until("4/3/3", SETTLED, |shares| shares.iter().sum::<usize>() == 10 && shares[2] >= 3)
        .await;
    let moved = fleet.grants() - before;
    assert!((3..=4).contains(&moved), "{moved} shards have moved");
    fleet.leave_all().await;
    fleet.check_work_log();
}

#[tokio::test]
async fn the_shards_of_a_member_that_leaves_get_other_owners_at_once() {
    let mut fleet = TestFleet::new(12).await;
    for id in ["a", "b", "c"] {
        fleet.join(id).await;
    }
    fleet.until("4/4/4", SETTLED, |shares| shares == [4, 4, 4]).await;
    fleet.leave("b").await;
    fleet.until("6/6", Duration::from_secs(5), |shares| shares == [6, 6]).await;
    fleet.leave_all().await;
    fleet.check_work_log();
}

#[tokio::test]
async fn the_shards_of_a_member_that_vanishes_get_other_owners_when_its_leases_expire() {
    let mut fleet = TestFleet::new(12).await;
    for id in ["a", "b", "c"] {
        fleet.join(id).await;
    }
    fleet.until("4/4/4", SETTLED, |shares| shares == [4, 4, 4]).await;
    fleet.vanish("c").await;
    fleet.until("6/6", SETTLED, |shares| shares == [6, 6]).await;
    fleet.leave_all().await;
    fleet.check_work_log();
}

#[tokio::test]
async fn a_drained_member_releases_all_shards_and_gets_its_share_again_afterwards() {
    let mut fleet = TestFleet::new(12).await;
    for id in ["a", "b", "c"] {
        fleet.join(id).await;
    }
    fleet.until("4/4/4", SETTLED, |shares| shares == [4, 4, 4]).await;
    fleet
        .change_overrides(|overrides| overrides.drained.insert(CandidateId::new("a").unwrap()))
        .await;
    fleet.until("0/6/6", SETTLED, |shares| shares == [0, 6, 6]).await;
    assert!(fleet.reasons("a").contains(&Reason::Drain), "{:?}", fleet.reasons("a"));
    fleet.change_overrides(|overrides| overrides.drained.clear()).await;
    fleet.until("4/4/4", SETTLED, |shares| shares == [4, 4, 4]).await;
    fleet.leave_all().await;
    fleet.check_work_log();
}

#[tokio::test]
async fn a_paused_shard_has_no_owner_until_it_is_resumed_even_if_its_last_owner_left() {
    let mut fleet = TestFleet::new(4).await;
    fleet.join("a").await;
    fleet.until("4", SETTLED, |shares| shares == [4]).await;
    let shard = fleet.shard(2);
    fleet.change_overrides(|overrides| overrides.paused.insert(shard.clone())).await;
    fleet.until("3", SETTLED, |shares| shares == [3]).await;
    fleet.leave("a").await;
    fleet.join("b").await;
    fleet.until("3", SETTLED, |shares| shares == [3]).await;
    fleet.change_overrides(|overrides| overrides.paused.clear()).await;
    fleet.until("4", SETTLED, |shares| shares == [4]).await;
    fleet.leave_all().await;
    fleet.check_work_log();
}

#[tokio::test]
async fn a_second_member_with_the_same_id_claims_nothing_while_the_first_is_a_member() {
    let mut fleet = TestFleet::new(4).await;
    fleet.join("a").await;
    fleet.until("4", SETTLED, |shares| shares == [4]).await;
    let second = Fleet::builder(fleet.name())
        .member("a")
        .shards(source::list(fleet.names()))
        .ttl(Duration::from_secs(2))
        .join(fleet.store())
        .await
        .unwrap();
    Clock::boot().sleep(Duration::from_secs(1)).await;
    assert!(!second.is_member() && second.owned().is_empty());
    second.leave().await;
    fleet.until("4", SETTLED, |shares| shares == [4]).await;
    fleet.leave_all().await;
    fleet.check_work_log();
}

#[tokio::test]
async fn a_drain_that_hangs_keeps_the_lease_until_the_work_has_ended() {
    let mut fleet = TestFleet::new(4).await;
    fleet.join("a").await;
    fleet.until("4", SETTLED, |shares| shares == [4]).await;
    fleet.hang("a", true);
    fleet.join("b").await;
    Clock::boot().sleep(Duration::from_secs(3)).await;
    assert_eq!(fleet.shares()[1], 0, "its work has not ended");
    fleet.hang("a", false);
    fleet.until("2/2", SETTLED, |shares| shares == [2, 2]).await;
    fleet.leave_all().await;
    fleet.check_work_log();
}

#[tokio::test]
async fn an_empty_list_of_shards_is_no_error() {
    let mut fleet = TestFleet::new(0).await;
    fleet.join("a").await;
    fleet.until("0", SETTLED, |shares| shares == [0]).await;
    fleet.leave_all().await;
}

#[tokio::test]
async fn a_checkpoint_goes_with_its_shard() {
    let store = tenure::open("memory:").await.unwrap();
    let join = async |id: &str| {
        let fleet = Fleet::builder("fleet:checkpoint").member(id).shards(source::list(["x"]));
        fleet.join(store.clone()).await.unwrap()
    };
    let assigned = async |fleet: &Fleet| loop {
        if let FleetEvent::Assigned { checkpoint, work, .. } = fleet.next().await.unwrap() {
            break (checkpoint, work);
        }
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
    let overrides =
        overrides::read(&*store, &fleet_name("fleet:checkpoint").unwrap()).await.unwrap();
    assert!(overrides.paused.is_empty());
}

/// The store executes each claim, which extends the lease like a renewal of another process.
#[tokio::test]
async fn claims_whose_replies_are_lost_are_no_second_member_with_the_same_id() {
    const TTL: Duration = Duration::from_secs(1);
    let clock = Clock::boot();
    let store = FaultyStore::new(Arc::new(MemoryStore::new(Clock::boot())));
    store.inject([StoreOperation::Acquire], StoreFault::lost_reply());
    let builder = Fleet::builder("lost-replies").member("a").ttl(TTL);
    let builder = builder.shards(source::list(["shard"]));
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
