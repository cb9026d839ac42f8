//! `Fleet::run`: one task for each shard that a member owns.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use tenure::Clock;
use tenure::fleet::{FleetNotice, Reason, ShardWork};
use tokio::task::JoinHandle;

use crate::workers::{Notices, WorkRecord, member, wait_until};

const SHARDS: [&str; 4] = ["a", "b", "c", "d"];

/// Works on the shards of a member until it leaves.
fn run_forever(fleet: &Arc<tenure::Fleet>, record: &WorkRecord) -> JoinHandle<()> {
    let (fleet, record) = (fleet.clone(), record.clone());
    tokio::spawn(async move { fleet.run(|work| record.clone().work_forever(work)).await })
}

#[tokio::test]
async fn run_works_on_each_owned_shard_and_returns_after_leave() {
    let fleet = member("run:leave", "m", &SHARDS).await;
    let record = WorkRecord::default();
    let running = run_forever(&fleet, &record);
    wait_until("four works", || record.running() == 4).await;
    fleet.leave().await;
    running.await.unwrap();
    assert_eq!(record.running(), 0);
    assert!(SHARDS.iter().all(|shard| record.terms(shard) == 1));
}

#[tokio::test]
async fn revoked_work_has_ended_before_another_member_works_on_the_shard() {
    let record = WorkRecord::default();
    let first = member("run:move", "m1", &SHARDS).await;
    let first_runs = run_forever(&first, &record);
    wait_until("the first has all", || first.owned().len() == 4 && record.running() == 4).await;
    let second = member("run:move", "m2", &SHARDS).await;
    let second_runs = run_forever(&second, &record);
    wait_until("two each", || {
        (first.owned().len(), second.owned().len(), record.running()) == (2, 2, 4)
    })
    .await;
    first.leave().await;
    first_runs.await.unwrap();
    wait_until("the second has all", || record.running() == 4).await;
    second.leave().await;
    second_runs.await.unwrap();
}

#[tokio::test]
async fn a_clone_in_another_task_delays_the_release() {
    let fleet = member("run:clone", "m", &["a"]).await;
    let record = WorkRecord::default();
    let stops = Arc::new(AtomicBool::new(false));
    let running = {
        let (fleet, record, stops) = (fleet.clone(), record.clone(), stops.clone());
        tokio::spawn(async move {
            let work = |work: ShardWork| {
                let (record, stops, clone) = (record.clone(), stops.clone(), work.clone());
                async move {
                    tokio::spawn(async move {
                        let _running = record.begin(&clone);
                        assert_eq!(clone.revoked().await, Reason::Shutdown);
                        wait_until("it may stop", || stops.load(Ordering::SeqCst)).await;
                        assert!(clone.should_stop() && clone.is_valid(), "it is renewed until now");
                    });
                    work.revoked().await;
                }
            };
            fleet.run(work).await;
        })
    };
    wait_until("the work runs", || record.running() == 1).await;
    let leaving = tokio::spawn(async move { fleet.leave().await });
    // Longer than the TTL.
    Clock::boot().sleep(Duration::from_secs(3)).await;
    assert!(!leaving.is_finished() && record.running() == 1);
    stops.store(true, Ordering::SeqCst);
    leaving.await.unwrap();
    running.await.unwrap();
    assert_eq!(record.running(), 0);
}

#[tokio::test]
async fn work_that_returns_releases_its_shard_and_gets_it_again_after_a_pause() {
    let fleet = member("run:return", "m", &["a", "b"]).await;
    let (record, notices) = (WorkRecord::default(), Notices::of(&fleet));
    let (clock, returned) = (Clock::boot(), Arc::new(AtomicUsize::new(0)));
    let start = clock.now();
    let running = {
        let (fleet, record, returned) = (fleet.clone(), record.clone(), returned.clone());
        tokio::spawn(async move {
            let work = |work: ShardWork| {
                let (record, returned) = (record.clone(), returned.clone());
                async move {
                    if work.shard().as_str() == "b" {
                        return record.work_forever(work).await;
                    }
                    drop(record.begin(&work));
                    returned.fetch_add(1, Ordering::SeqCst);
                }
            };
            fleet.run(work).await;
        })
    };
    wait_until("three terms", || returned.load(Ordering::SeqCst) == 3).await;
    assert!(clock.now().since(start) >= Duration::from_secs(1), "half a second between two terms");
    assert_eq!((record.terms("b"), record.running()), (1, 1), "the other work goes on");
    let released = |notice: &FleetNotice| matches!(notice, FleetNotice::Released { why: Reason::Released, shard, .. } if shard.as_str() == "a");
    wait_until("two releases", || notices.count(released) >= 2).await;
    fleet.leave().await;
    running.await.unwrap();
}

#[tokio::test]
async fn a_panic_ends_only_the_work_that_panicked_and_is_reported() {
    struct PanicOnDrop;
    impl Drop for PanicOnDrop {
        fn drop(&mut self) {
            panic!("in the destructor");
        }
    }
    let fleet = member("run:panic", "m", &SHARDS).await;
    let (record, notices) = (WorkRecord::default(), Notices::of(&fleet));
    let running = {
        let (fleet, record) = (fleet.clone(), record.clone());
        tokio::spawn(async move {
            let work = |work: ShardWork| {
                let first = record.terms(work.shard().as_str()) == 0;
                let record = record.clone();
                if work.shard().as_str() == "a" && first {
                    drop(record.begin(&work));
                    panic!("before the {}", "future");
                }
                async move {
                    let _running = record.begin(&work);
                    match work.shard().as_str() {
                        "b" if first => panic!("in the future"),
                        "c" if first => {
                            let _panics = PanicOnDrop;
                            work.release();
                            std::future::pending().await
                        }
                        _ => std::future::pending().await,
                    }
                }
            };
            fleet.run(work).await;
        })
    };
    wait_until("each panicked once and works again", || {
        let terms = SHARDS.map(|shard| record.terms(shard));
        terms == [2, 2, 2, 1] && record.running() == 4
    })
    .await;
    let mut panics = notices.texts();
    panics.retain(|text| text.starts_with("Panicked"));
    panics.sort();
    let messages = ["before the future", "in the future", "in the destructor"];
    assert_eq!(panics.len(), 3, "{panics:?}");
    for (text, message) in panics.iter().zip(messages) {
        assert!(text.contains(message), "{text}");
    }
    let why = |wanted: Reason| move |notice: &FleetNotice| matches!(notice, FleetNotice::Released { why, .. } if *why == wanted);
    assert_eq!(notices.count(why(Reason::Panicked)), 2, "{:?}", notices.texts());
    assert_eq!(notices.count(why(Reason::Released)), 1, "it was released before it panicked");
    fleet.leave().await;
    running.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn spawned_work_that_blocks_its_thread_does_not_delay_the_others() {
    let fleet = member("run:spawned", "m", &["a", "b"]).await;
    let (record, notices) = (WorkRecord::default(), Notices::of(&fleet));
    let (unblock, ticks) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
    let running = {
        let (fleet, record) = (fleet.clone(), record.clone());
        let (unblock, ticks) = (unblock.clone(), ticks.clone());
        tokio::spawn(async move {
            let work = |work: ShardWork| {
                let (record, unblock, ticks) = (record.clone(), unblock.clone(), ticks.clone());
                async move {
                    let _running = record.begin(&work);
                    match work.shard().as_str() {
                        "a" => drop(unblock.wait()),
                        _ if record.terms("b") == 1 => panic!("in a task"),
                        _ => {}
                    }
                    loop {
                        ticks.fetch_add(1, Ordering::SeqCst);
                        Clock::boot().sleep(Duration::from_millis(5)).await;
                    }
                }
            };
            fleet.run_spawned(work).await;
        })
    };
    wait_until("a blocks, b panics and ticks again", || {
        (record.terms("a"), record.terms("b")) == (1, 2) && ticks.load(Ordering::SeqCst) > 3
    })
    .await;
    assert_eq!(notices.count(|notice| matches!(notice, FleetNotice::Panicked { message, .. } if message == "in a task")), 1);
    let leaving = tokio::spawn(async move { fleet.leave().await });
    Clock::boot().sleep(Duration::from_secs(1)).await;
    assert!(!leaving.is_finished() && record.running() == 1, "a is aborted but has not stopped");
    unblock.wait();
    leaving.await.unwrap();
    running.await.unwrap();
    assert_eq!(record.running(), 0);
}
