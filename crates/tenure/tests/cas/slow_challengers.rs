//! A challenger reads the document, finds the term over, and is delayed. The holder renews. The challenger's swap must fail.

use tenure::store::cas::Expiry;
use tokio::sync::Semaphore;

use super::*;

async fn cannot_replace_a_renewed_lease<K: ExpiryKind>(touches: bool) {
    let Setup { service, clock, a, .. } = Setup::<K>::new(touches);
    let job = hold(&a, &claim("job", "a")).await;
    // The challenger has a clock of its own, which runs ahead of the holder's.
    let ahead = Clock::manual();
    let b = CasStore::new(DocumentBackend::<K>::new(&service, touches), ahead.clone());
    assert!(!is_held(&b, &claim("job", "b")).await);
    if K::EXPIRY == Expiry::Observation {
        ahead.advance(EXPIRED);
    } else {
        b.backend().read_over_once();
    }
    clock.advance(TTL / 2);
    let permits = Arc::new(Semaphore::new(0));
    b.backend().fail_next(SwapFault::Wait(Arc::clone(&permits)));
    let challenger = claim("job", "b");
    let (held, ()) = tokio::join!(is_held(&b, &challenger), async {
        // The challenger has read the document by now, and waits before its swap.
        settle().await;
        assert!(renew(&a, &job).await, "the holder's term is live");
        permits.add_permits(1);
    });
    assert!(!held, "the challenger replaced a renewed lease");
    assert!(renew(&a, &job).await);
}

#[tokio::test]
async fn with_a_store_clock() {
    cannot_replace_a_renewed_lease::<StoreClock>(false).await;
}

#[tokio::test]
async fn with_a_store_clock_and_touch() {
    cannot_replace_a_renewed_lease::<StoreClock>(true).await;
}

#[tokio::test]
async fn with_a_server_lease() {
    cannot_replace_a_renewed_lease::<ServerLease>(false).await;
}

#[tokio::test]
async fn with_a_server_lease_and_touch() {
    cannot_replace_a_renewed_lease::<ServerLease>(true).await;
}

// With observation there is no touch: every renewal is a swap.
#[tokio::test]
async fn with_observation() {
    cannot_replace_a_renewed_lease::<Observation>(false).await;
}
