//! Work of every ordinary form compiles, in place and in a task of its own.

#![allow(clippy::unwrap_used)] // A test fails at the first surprise.

use std::sync::Arc;

use tenure::{Election, Leadership};
use tokio::task::JoinSet;

async fn election(name: &str) -> Arc<Election> {
    let store = tenure::open("memory:").await.unwrap();
    Arc::new(Election::builder(name).start(store).await.unwrap())
}

async fn step(leadership: &Leadership, what: &str) -> usize {
    assert!(!leadership.should_stop());
    what.len()
}

#[tokio::test]
async fn a_closure_that_returns_a_future_is_spawned_with_owned_values() {
    let election = election("owned").await;
    let what = "owned".to_owned();
    let value = tokio::spawn(async move {
        let work = |leadership: Leadership| {
            let what = what.clone();
            async move { step(&leadership, &what).await }
        };
        election.lead(work).await
    });
    assert_eq!(value.await.unwrap(), Some(5));
}

#[tokio::test]
async fn an_async_closure_is_spawned() {
    let election = election("async").await;
    let value = tokio::spawn(async move {
        election.lead(async move |leadership: Leadership| step(&leadership, "async").await).await
    });
    assert_eq!(value.await.unwrap(), Some(5));
}

#[tokio::test]
async fn an_async_closure_borrows_what_its_caller_owns() {
    let election = election("borrowed").await;
    let what = "borrowed".to_owned();
    let (what, steps) = (&what, &std::sync::atomic::AtomicUsize::new(0));
    let value = election
        .lead(async move |leadership: Leadership| {
            steps.fetch_add(step(&leadership, what).await, std::sync::atomic::Ordering::SeqCst)
        })
        .await;
    assert_eq!((value, steps.load(std::sync::atomic::Ordering::SeqCst)), (Some(0), 8));
}

#[tokio::test]
async fn a_closure_borrows_what_the_task_owns() {
    let election = election("task").await;
    let value = tokio::spawn(async move {
        let what = "task".to_owned();
        let work = |leadership: Leadership| {
            let what = &what;
            async move { step(&leadership, what).await }
        };
        election.lead(work).await
    });
    assert_eq!(value.await.unwrap(), Some(4));
}

#[tokio::test]
async fn work_runs_in_a_join_set() {
    let mut set = JoinSet::new();
    for name in ["one", "two", "three"] {
        let election = election(name).await;
        set.spawn(async move {
            election.lead(move |leadership| async move { step(&leadership, name).await }).await
        });
    }
    let mut values: Vec<usize> = set.join_all().await.into_iter().flatten().collect();
    values.sort_unstable();
    assert_eq!(values, [3, 3, 5]);
}

/// A wrapper of an application, generic over its work.
async fn supervised<T, F, Fut>(election: Arc<Election>, work: F) -> Option<T>
where
    F: FnMut(Leadership) -> Fut + Send + 'static,
    Fut: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    tokio::spawn(async move { election.lead(work).await }).await.unwrap()
}

#[tokio::test]
async fn work_runs_in_a_generic_wrapper() {
    let election = election("generic").await;
    let value =
        supervised(election, |leadership| async move { step(&leadership, "generic").await });
    assert_eq!(value.await, Some(7));
}

#[tokio::test]
async fn spawn_lead_takes_a_method_of_an_application() {
    struct Application(Vec<u8>);
    impl Application {
        async fn work(self: Arc<Self>, leadership: Leadership) -> usize {
            step(&leadership, "method").await + self.0.len()
        }
    }
    let election = election("method").await;
    let application = Arc::new(Application(vec![0; 4]));
    let lead = election.spawn_lead(move |leadership| application.clone().work(leadership));
    assert_eq!(lead.await.unwrap(), Some(10));
}
