//! Tests of `testing::FaultyStore`: each fault reaches exactly the calls that it was injected into, on every handle of the store.

#![allow(clippy::unwrap_used)] // Helpers of tests fail like tests.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use tenure::machine::EndReason;
use tenure::store::memory::MemoryStore;
use tenure::store::{Change, Scope};
use tenure::testing::{FaultyStore, StoreFault, StoreOperation};
use tenure::{
    CandidateId, Claim, Clock, Election, Error, Kind, Name, Nonce, Store as _, StoreExt as _,
};

const TTL: Duration = Duration::from_secs(10);

fn name() -> Name {
    Name::new("job").unwrap()
}

fn claim(id: &str) -> Claim {
    Claim::new(name(), CandidateId::new(id).unwrap(), Nonce::random(), TTL)
}

fn faulty() -> (MemoryStore, FaultyStore) {
    let memory = MemoryStore::new(Clock::boot());
    (memory.clone(), FaultyStore::new(Arc::new(memory)))
}

/// Lets the driver's thread work.
async fn pause() {
    Clock::boot().sleep(Duration::from_millis(1)).await;
}

#[tokio::test]
async fn an_error_keeps_the_call_from_the_store_and_a_lost_reply_does_not() {
    let (memory, store) = faulty();
    let denied = StoreFault::Error(Error::denied("wrong password"));
    store.inject_next(2, [StoreOperation::Acquire], denied);
    for _ in 0..2 {
        assert_eq!(store.acquire_one(&claim("a")).await.unwrap_err().kind(), Kind::Denied);
    }
    assert_eq!(memory.observe_one(&name()).await.unwrap(), None);
    store.inject_next(1, [StoreOperation::Acquire], StoreFault::lost_reply());
    let claim = claim("a");
    assert_eq!(store.acquire_one(&claim).await.unwrap_err().kind(), Kind::Unavailable);
    let holder = memory.observe_one(&name()).await.unwrap().unwrap().holder;
    assert_eq!(holder.unwrap().id, "a", "carried out");
    assert!(store.acquire_one(&claim).await.unwrap().is_held(), "the faults are used up");
    assert_eq!(store.calls(StoreOperation::Acquire), 4);
    assert_eq!((store.calls(StoreOperation::Renew), store.all_calls()), (0, 4));
}

#[tokio::test]
async fn faults_and_counters_are_shared_by_all_handles() {
    let (_, store) = faulty();
    let (clone, detached) = (store.clone(), store.detached());
    clone.inject(StoreOperation::ALL, StoreFault::unreachable());
    assert_eq!(detached.acquire_one(&claim("a")).await.unwrap_err().kind(), Kind::Unavailable);
    assert!(store.examine().await.is_err());
    store.heal();
    assert!(detached.detached().acquire_one(&claim("a")).await.unwrap().is_held());
    assert_eq!(store.all_calls(), 3);
    assert_eq!(store.url(), "memory:");
}

#[tokio::test]
async fn a_held_call_reaches_the_store_when_it_is_healed_and_a_held_reply_before() {
    let (memory, store) = faulty();
    for (fault, reached) in [(StoreFault::Hold, false), (StoreFault::HeldReply, true)] {
        store.inject_next(1, [StoreOperation::Acquire], fault);
        let claim = claim("a");
        let call = tokio::spawn({
            let (store, claim) = (store.clone(), claim.clone());
            async move { store.acquire_one(&claim).await }
        });
        store.holds().await;
        assert_eq!(store.held_calls(), 1);
        let holder = memory.observe_one(&name()).await.unwrap().and_then(|lease| lease.holder);
        assert_eq!(holder.is_some(), reached);
        store.heal();
        let grant = call.await.unwrap().unwrap().held().unwrap();
        assert_eq!(store.held_calls(), 0);
        memory.release_one(grant.hold).await.unwrap();
    }
}

#[tokio::test]
async fn a_caller_that_gives_up_is_not_counted_as_held() {
    let (memory, store) = faulty();
    store.inject([StoreOperation::Observe], StoreFault::Hold);
    let name = name();
    let mut call = Box::pin(store.observe_one(&name));
    assert!(call.as_mut().now_or_never().is_none());
    assert_eq!(store.held_calls(), 1);
    drop(call);
    assert_eq!(store.held_calls(), 0);
    assert!(memory.observe_one(&name).await.unwrap().is_none());
}

#[tokio::test]
async fn delays_are_counted_on_the_given_clock() {
    let clock = Clock::manual();
    let memory = MemoryStore::new(clock.clone());
    let store = FaultyStore::with_clock(Arc::new(memory.clone()), clock.clone());
    for (fault, reached) in [
        (StoreFault::Delay(Duration::from_secs(3)), false),
        (StoreFault::DelayedReply(Duration::from_secs(3)), true),
    ] {
        store.inject_next(1, [StoreOperation::Acquire], fault);
        let claim = claim("a");
        let mut call = Box::pin(store.acquire_one(&claim));
        assert!(call.as_mut().now_or_never().is_none());
        let holder = memory.observe_one(&name()).await.unwrap().and_then(|lease| lease.holder);
        assert_eq!(holder.is_some(), reached);
        clock.advance(Duration::from_secs(2));
        assert!(call.as_mut().now_or_never().is_none());
        clock.advance(Duration::from_secs(1));
        let grant = call.await.unwrap().held().unwrap();
        memory.release_one(grant.hold).await.unwrap();
    }
}

#[tokio::test]
async fn a_muted_watch_reports_afterwards_that_it_missed_a_change() {
    let (_, store) = faulty();
    let mut changes = store.watch(&Scope::name(&name()));
    assert_eq!(changes.next().await, Some(Change::Look), "subscribed");
    store.mute_watches(true);
    let grant = store.acquire_one(&claim("a")).await.unwrap().held().unwrap();
    tokio::task::yield_now().await;
    assert_eq!(changes.next().now_or_never(), None);
    store.mute_watches(false);
    assert_eq!(changes.next().await, Some(Change::Look));
    store.release_one(grant.hold).await.unwrap();
    assert!(matches!(changes.next().await, Some(Change::Freed { .. })));
}

#[tokio::test]
async fn a_frozen_store_ends_a_term_in_time_and_the_election_recovers() {
    let clock = Clock::manual();
    let memory = MemoryStore::new(clock.clone());
    let store = FaultyStore::new(Arc::new(memory));
    let start = Election::builder("job").clock(clock.clone()).start(Arc::new(store.clone()));
    let election = start.await.unwrap();
    let leadership = election.leadership().await.unwrap();
    store.inject([StoreOperation::Renew], StoreFault::Hold);
    // The leader renews after 1.3 s, and stops 2.8 s after its last renewal.
    clock.advance(Duration::from_millis(1_400));
    store.holds().await;
    let lost = loop {
        tokio::select! {
            reason = leadership.lost() => break reason,
            () = pause() => clock.advance(Duration::from_millis(20)),
        }
    };
    assert!(matches!(lost, EndReason::Unreachable(_)), "{lost:?}");
    assert!(leadership.is_valid(), "there is time to stop");
    drop(leadership);
    store.heal();
    let again = loop {
        tokio::select! {
            leadership = election.leadership() => break leadership,
            () = pause() => clock.advance(Duration::from_millis(20)),
        }
    };
    assert!(again.is_some());
}
