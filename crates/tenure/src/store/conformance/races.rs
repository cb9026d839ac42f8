//! Concurrent operations. These properties need a runtime with several threads to be meaningful.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::harness::{
    Harness, HarnessStore, PropertyResult, checkpoint, claim, new_campaign, within_timeout,
};
use crate::clock::Clock;
use crate::error::Kind;
use crate::lease::{Answer, Claim, Grant, Hold};

/// Claims concurrently, each over its own handle.
async fn race(racers: Vec<(HarnessStore, Claim)>) -> Vec<Answer<Grant>> {
    let start = Arc::new(tokio::sync::Barrier::new(racers.len()));
    let racers: Vec<_> = racers
        .into_iter()
        .map(|(store, claim)| {
            let start = Arc::clone(&start);
            tokio::spawn(async move {
                start.wait().await;
                store.acquire(&claim).await
            })
        })
        .collect();
    let mut answers = Vec::new();
    for racer in racers {
        let answer = within_timeout("a claim", racer).await.expect("no claim panics");
        answers.push(answer.expect("a contended claim is answered"));
    }
    answers
}

/// The hold of the only winner; all others must have got Taken with this holder.
fn only_winner(answers: Vec<Answer<Grant>>) -> Hold {
    let held = answers.iter().filter_map(|answer| match answer {
        Answer::Held(grant) => Some(grant.hold.clone()),
        Answer::Taken(_) => None,
    });
    let held: Vec<Hold> = held.collect();
    assert_eq!(held.len(), 1, "one must hold it, and only one: {held:?}");
    for answer in answers {
        if let Answer::Taken(lease) = answer {
            let nonce = lease.holder.as_ref().and_then(|holder| holder.nonce);
            assert_eq!(nonce, Some(held[0].nonce), "the winner has it: {lease:?}");
        }
    }
    held[0].clone()
}

pub(super) async fn a_hundred_concurrent_claims_give_one_held(
    harness: Harness<'_>,
) -> PropertyResult {
    let mut stores = Vec::new();
    for _ in 0..10 {
        stores.push(harness.open().await);
    }
    let claims = async || {
        let claim = |number: usize| harness.claim("job", &format!("c-{number}"));
        let racer = |number: usize| (stores[number % 10].clone(), claim(number));
        only_winner(race((0..100).map(racer).collect()).await)
    };
    // For a name that was never used, and for a name that was released.
    let first = claims().await;
    stores[0].kept(&first).await;
    stores[0].release(&first).await;
    let second = claims().await;
    stores[0].kept(&second).await;
    assert!(second.token > first.token, "{second:?} after {first:?}");
    Ok(())
}

pub(super) async fn same_id_twice_never_both_hold(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let mut last = None;
    for _ in 0..25 {
        // One id, as on a cloned machine: still two campaigns.
        let first = harness.claim("job", "twin");
        let second = new_campaign(&first);
        let winner = only_winner(race(vec![(a.clone(), first), (b.clone(), second)]).await);
        assert!(Some(winner.token) > last, "{winner:?} after {last:?}");
        last = Some(winner.token);
        a.release(&winner).await;
    }
    Ok(())
}

pub(super) async fn concurrent_repeats_of_a_claim_are_one_term(
    harness: Harness<'_>,
) -> PropertyResult {
    let claim = harness.claim("job", "a");
    let mut racers = Vec::new();
    for _ in 0..10 {
        racers.push((harness.open().await, claim.clone()));
    }
    let store = racers[0].0.clone();
    let holds: Vec<Hold> = race(racers)
        .await
        .into_iter()
        .map(|answer| answer.held().expect("its own claim is never refused").hold)
        .collect();
    assert!(holds.iter().all(|hold| hold == &holds[0]), "{holds:?}");
    store.kept(&holds[0]).await;
    Ok(())
}

pub(super) async fn concurrent_saves_end_on_the_highest_number(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    let hold = store.hold(&harness.claim("job", "a")).await;
    let mut saves = Vec::new();
    for number in 1..=30_u64 {
        let (store, hold) = (harness.open().await, hold.clone());
        saves.push(tokio::spawn(async move {
            store.save(&hold, number, number.to_string().as_bytes()).await
        }));
    }
    for save in saves {
        match within_timeout("a save", save).await.expect("no save panics") {
            Ok(Answer::Held(())) => {}
            Err(error) if error.kind() == Kind::Invalid => {}
            other => panic!("expected Held, or Invalid for one overtaken, got {other:?}"),
        }
    }
    assert_eq!(store.observe_one(&hold.name).await.checkpoint, Some(checkpoint(b"30")));
    Ok(())
}

/// The work that the lease protects: increments by reading, pausing and writing.
async fn increment(counter: &AtomicU64, inside: &AtomicU64) {
    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it at once");
    let value = counter.load(Ordering::SeqCst);
    tokio::task::yield_now().await;
    counter.store(value + 1, Ordering::SeqCst);
    inside.fetch_sub(1, Ordering::SeqCst);
}

pub(super) async fn contended_counter_loses_no_update(harness: Harness<'_>) -> PropertyResult {
    const WORKERS: u64 = 8;
    const ROUNDS: u64 = 25;
    let counter = Arc::new(AtomicU64::new(0));
    let inside = Arc::new(AtomicU64::new(0));
    let name = harness.name("counter");
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        let (store, name) = (harness.open().await, name.clone());
        let (counter, inside) = (Arc::clone(&counter), Arc::clone(&inside));
        workers.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let hold = campaign(&store, &claim(&name, &format!("w-{number}"))).await;
                increment(&counter, &inside).await;
                store.release(&hold).await;
            }
        }));
    }
    for worker in workers {
        within_timeout("a worker", worker).await.expect("no worker panics");
    }
    assert_eq!(counter.load(Ordering::SeqCst), WORKERS * ROUNDS);
    Ok(())
}

/// Claims until it is granted.
async fn campaign(store: &HarnessStore, claim: &Claim) -> Hold {
    loop {
        match store.acquire(claim).await.expect("a contended claim is answered") {
            Answer::Held(grant) => return grant.hold,
            Answer::Taken(_) => Clock::boot().sleep(Duration::from_millis(1)).await,
        }
    }
}
