//! The example `fenced_worker`: each item is applied once, however a term ends. This is its source, not a copy.

#![allow(clippy::unwrap_used)] // A test fails at the first surprise.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::memory::MemoryStore;
use tenure::{Clock, Election, Saved, Store};
use tenure_rig::servers::Scratch;

#[path = "../examples/fenced_worker.rs"]
#[expect(dead_code, reason = "its main function is for `cargo run --example`")]
mod fenced_worker;

use fenced_worker::{Applied, Ledger, Worker};

async fn candidate(store: &Arc<dyn Store>, id: &str) -> Election {
    let builder = Election::builder("items").id(id).ttl(Duration::from_secs(10));
    builder.start(store.clone()).await.unwrap()
}

fn worker(scratch: &Scratch, items: u64) -> Worker {
    let ledger = Ledger::open(scratch.path().join("ledger")).unwrap();
    Worker { ledger, items, prepare: Duration::ZERO }
}

#[tokio::test]
async fn the_next_worker_continues_and_the_earlier_one_is_refused() {
    let (scratch, store) = (Scratch::new(), MemoryStore::new(Clock::boot()));
    let store: Arc<dyn Store> = Arc::new(store);
    let a = candidate(&store, "a").await;
    let first = a.leadership().await.unwrap();
    assert_eq!(worker(&scratch, 3).work(&first).await.unwrap(), 3);
    // It dies after the effect of item 4, before it saves.
    let token = first.token();
    assert_eq!(worker(&scratch, 9).ledger.apply(token, 4).unwrap(), Applied::Now);
    drop(first);
    a.stop().await;

    let b = candidate(&store, "b").await;
    let second = b.leadership().await.unwrap();
    assert_eq!(second.checkpoint().unwrap().as_bytes(), b"3");
    let worker = worker(&scratch, 6);
    assert_eq!(worker.ledger.apply(second.token(), 4).unwrap(), Applied::Before);
    // The write of the first leader, late. It is refused although its successor has applied no new item yet.
    let late = worker.ledger.apply(token, 5).unwrap();
    assert_eq!(late, Applied::Refused(second.token().get()));
    assert_eq!(worker.work(&second).await.unwrap(), 6);
    assert_eq!(worker.ledger.read().unwrap(), (second.token().get(), 6));
}

#[tokio::test]
async fn a_worker_that_loses_its_term_saves_nothing_more() {
    let (scratch, store) = (Scratch::new(), MemoryStore::new(Clock::boot()));
    let shared: Arc<dyn Store> = Arc::new(store.clone());
    let a = candidate(&shared, "a").await;
    let leadership = a.leadership().await.unwrap();
    assert_eq!(leadership.save("1").await.unwrap(), Saved::Kept);
    store.leases().forget(a.name());
    // The effect is applied: no other candidate has used a newer token. The save is refused, so the work ends.
    assert_eq!(worker(&scratch, 3).work(&leadership).await.unwrap(), 0);
    assert_eq!(worker(&scratch, 3).ledger.read().unwrap(), (leadership.token().get(), 1));
}

#[tokio::test]
async fn the_worker_works_until_the_last_item() {
    let (scratch, store) = (Scratch::new(), MemoryStore::new(Clock::boot()));
    let store: Arc<dyn Store> = Arc::new(store);
    let a = candidate(&store, "a").await;
    assert_eq!(worker(&scratch, 5).lead(&a).await.unwrap(), 5);
    a.stop().await;
}
