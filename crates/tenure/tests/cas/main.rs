//! The compare-and-swap layer under faults: a slow challenger, lost and late writes, sessions that many leases share.
//!
//! The service is a fake ([`tenure_rig::document_service`]) on a manual clock, so no test waits.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod random_faults;
mod shared_sessions;
mod slow_challengers;

use std::sync::Arc;
use std::time::Duration;

use tenure::store::cas::CasStore;
use tenure::store::{Store, StoreExt};
use tenure::{Answer, CandidateId, Claim, Clock, Grant, Hold, Kind, Name, Nonce, Result};
use tenure_rig::document_service::{
    DocumentBackend, DocumentService, ExpiryKind, Observation, ServerLease, StoreClock, SwapFault,
};

const TTL: Duration = Duration::from_secs(4);
/// Longer than any challenger waits for a term of [`TTL`].
const EXPIRED: Duration = Duration::from_millis(4_100);

/// A service and two processes that use it.
struct Setup<K: ExpiryKind> {
    service: Arc<DocumentService>,
    clock: Clock,
    a: CasStore<DocumentBackend<K>>,
    b: CasStore<DocumentBackend<K>>,
}

impl<K: ExpiryKind> Setup<K> {
    fn new(touches: bool) -> Self {
        let clock = Clock::manual();
        let service = DocumentService::new(clock.clone(), K::EXPIRY);
        let store = || CasStore::new(DocumentBackend::new(&service, touches), clock.clone());
        let (a, b) = (store(), store());
        Setup { service, clock, a, b }
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn claim(lease: &str, id: &str) -> Claim {
    Claim::new(name(lease), CandidateId::new(id).unwrap(), Nonce::random(), TTL)
}

async fn acquire(store: &dyn Store, claim: &Claim) -> Result<Answer<Grant>> {
    store.acquire_one(claim).await
}

async fn hold(store: &dyn Store, claim: &Claim) -> Hold {
    acquire(store, claim).await.unwrap().held().expect("the lease is free").hold
}

async fn is_held(store: &dyn Store, claim: &Claim) -> bool {
    acquire(store, claim).await.unwrap().is_held()
}

async fn renew(store: &dyn Store, hold: &Hold) -> bool {
    store.renew_one(hold, TTL).await.unwrap().is_held()
}

async fn release(store: &dyn Store, hold: &Hold) -> Result<()> {
    store.release_one(hold).await
}

/// Lets tasks in the background run.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_lost_reply_is_safe_to_repeat() {
    let Setup { a, b, .. } = Setup::<StoreClock>::new(false);
    let first = claim("job", "a");
    a.backend().fail_next(SwapFault::LoseReply);
    assert_eq!(acquire(&a, &first).await.unwrap_err().kind(), Kind::Unavailable);
    assert!(!is_held(&b, &claim("job", "b")).await, "the claim has arrived");
    assert!(is_held(&a, &first).await, "the same campaign gets the same answer");
}

#[tokio::test]
async fn conflicts_are_retried_a_bounded_number_of_times() {
    let Setup { a, .. } = Setup::<StoreClock>::new(false);
    for _ in 0..30 {
        a.backend().fail_next(SwapFault::Conflict);
    }
    assert!(is_held(&a, &claim("job", "a")).await);
    for _ in 0..31 {
        a.backend().fail_next(SwapFault::Conflict);
    }
    let error = acquire(&a, &claim("other", "a")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("'other' was changed by others"), "{error}");
}

/// As Consul does it during a lock-delay: a refusal is an answer, and not a reason to try thirty times.
#[tokio::test]
async fn a_name_that_is_granted_to_no_session_yet_is_taken() {
    let Setup { a, .. } = Setup::<ServerLease>::new(true);
    let left = Duration::from_secs(1);
    a.backend().fail_next(SwapFault::Delayed(left));
    let Ok(Answer::Taken(lease)) = acquire(&a, &claim("job", "a")).await else {
        panic!("expected Taken");
    };
    assert_eq!((lease.name, lease.holder, lease.left), (name("job"), None, left));
    assert!(is_held(&a, &claim("job", "a")).await, "the next claim is granted");
}

#[tokio::test]
async fn a_session_that_ended_early_ends_its_terms() {
    for touches in [false, true] {
        let Setup { service, a, b, .. } = Setup::<ServerLease>::new(touches);
        let (job, other) = (claim("job", "a"), claim("other", "a"));
        let (job, other) = (hold(&a, &job).await, hold(&a, &other).await);
        service.end_sessions(&job.candidate);
        assert!(!renew(&a, &job).await && !renew(&a, &other).await);
        let next = hold(&b, &claim("job", "b")).await;
        assert!(next.token > job.token);
        assert!(!renew(&a, &job).await && renew(&b, &next).await);
    }
}

#[tokio::test]
async fn a_term_judged_by_observation_is_over_for_its_holder_too() {
    let Setup { clock, a, .. } = Setup::<Observation>::new(false);
    let job = hold(&a, &claim("job", "a")).await;
    clock.advance(TTL / 2);
    assert!(renew(&a, &job).await);
    clock.advance(EXPIRED);
    assert!(!renew(&a, &job).await, "an expired term never becomes valid again");
}
