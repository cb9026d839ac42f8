//! The closures and the places in which `Fleet::run` compiles. Each test also runs.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure::Fleet;
use tenure::fleet::ShardWork;
use tokio::task::JoinSet;

use crate::workers::{member, wait_until};

/// A function of an application that wraps `run`.
async fn run_with<F, Fut>(fleet: &Fleet, work: F)
where
    F: FnMut(ShardWork) -> Fut + Send,
    Fut: Future<Output = ()> + Send,
{
    fleet.run(work).await;
}

async fn wait_for_revocation(work: ShardWork) {
    work.revoked().await;
}

fn is_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test]
async fn run_compiles_in_a_spawned_task_with_owned_values() {
    let count = Arc::new(AtomicUsize::new(0));
    let fleet = member("run:compile-spawn", "m", &["a"]).await;
    let mut tasks = JoinSet::new();
    let (spawned, counted) = (fleet.clone(), count.clone());
    tasks.spawn(async move {
        spawned
            .run(|work| {
                let count = counted.clone();
                async move {
                    count.fetch_add(1, Ordering::SeqCst);
                    work.revoked().await;
                }
            })
            .await;
    });
    wait_until("it works", || count.load(Ordering::SeqCst) == 1).await;
    fleet.leave().await;
    tasks.join_all().await;
}

#[tokio::test]
async fn run_compiles_in_a_spawned_task_with_an_async_closure() {
    let fleet = member("run:compile-async", "m", &["a"]).await;
    let spawned = fleet.clone();
    let task = tokio::spawn(async move {
        let wait = async |work: ShardWork| {
            work.revoked().await;
        };
        spawned.run(wait).await;
    });
    let spawned = fleet.clone();
    let moved = tokio::spawn(async move {
        let wait = async move |work: ShardWork| {
            work.revoked().await;
        };
        spawned.run(wait).await;
    });
    fleet.leave().await;
    task.await.unwrap();
    moved.await.unwrap();
}

#[tokio::test]
async fn run_compiles_in_a_spawned_task_with_a_function_and_in_a_generic_wrapper() {
    let fleet = member("run:compile-generic", "m", &["a"]).await;
    let spawned = fleet.clone();
    let function = tokio::spawn(async move { spawned.run(wait_for_revocation).await });
    let spawned = fleet.clone();
    let generic = tokio::spawn(async move { run_with(&spawned, wait_for_revocation).await });
    fleet.leave().await;
    function.await.unwrap();
    generic.await.unwrap();
}

#[tokio::test]
async fn run_compiles_with_captured_references() {
    let fleet = member("run:compile-references", "m", &["a", "b"]).await;
    let (count, text) = (AtomicUsize::new(0), String::from("borrowed"));
    let (counted, borrowed) = (&count, text.as_str());
    let mut calls = 0;
    let run = is_send(fleet.run(|work| {
        calls += 1;
        async move {
            counted.fetch_add(borrowed.len(), Ordering::SeqCst);
            work.revoked().await;
        }
    }));
    let leave = async {
        wait_until("both work", || count.load(Ordering::SeqCst) == 2 * "borrowed".len()).await;
        fleet.leave().await;
    };
    tokio::join!(run, leave);
    assert_eq!(calls, 2);
}
