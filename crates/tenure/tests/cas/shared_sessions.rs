//! One session keeps all leases of a candidate alive. A grant does not extend it, and nothing stays under it that no caller
//! holds.

use super::*;

type SessionSetup = Setup<ServerLease>;

#[tokio::test]
async fn a_grant_counts_from_the_last_keepalive_of_the_session() {
    let SessionSetup { service, clock, a, .. } = Setup::new(true);
    let counts_from = async |lease: &str| {
        let answer = acquire(&a, &claim(lease, "a")).await.unwrap();
        answer.held().expect("the lease is free").counts_from
    };
    let created = clock.now();
    let first = claim("one", "a");
    let first = acquire(&a, &first).await.unwrap().held().unwrap();
    assert_eq!(first.counts_from, Some(created));
    clock.advance(TTL / 4);
    assert_eq!(counts_from("two").await, Some(created), "the session is as old as before");
    let kept = clock.now();
    assert!(renew(&a, &first.hold).await);
    clock.advance(TTL / 4);
    assert_eq!(counts_from("three").await, Some(kept));
    assert_eq!(service.live_sessions(), 1);
}

/// Renews `hold` and lets the store release what it left behind.
async fn renew_and_clean_up(store: &dyn Store, hold: &Hold) {
    assert!(renew(store, hold).await, "the other lease keeps the session alive");
    settle().await;
}

#[tokio::test]
async fn a_lost_release_is_repeated_until_it_is_confirmed() {
    for touches in [false, true] {
        let SessionSetup { clock, a, b, .. } = Setup::new(touches);
        let (job, other) =
            (hold(&a, &claim("job", "a")).await, hold(&a, &claim("other", "a")).await);
        a.backend().fail_next(SwapFault::LoseRequest);
        release(&a, &job).await.unwrap_err();
        for _ in 0..3 {
            clock.advance(TTL / 2);
            renew_and_clean_up(&a, &other).await;
        }
        assert!(is_held(&b, &claim("job", "b")).await, "the name is not blocked for ever");
    }
}

#[tokio::test]
async fn a_claim_that_arrives_late_is_released() {
    let SessionSetup { service, a, b, .. } = Setup::new(true);
    let other = hold(&a, &claim("other", "a")).await;
    a.backend().fail_next(SwapFault::ArriveLate);
    acquire(&a, &claim("job", "a")).await.unwrap_err();
    // Nothing has arrived, and it still may.
    renew_and_clean_up(&a, &other).await;
    assert_eq!(service.deliver_late(), 1);
    assert!(!is_held(&b, &claim("job", "b")).await, "the late claim holds the name");
    renew_and_clean_up(&a, &other).await;
    assert!(is_held(&b, &claim("job", "b")).await);
}

#[tokio::test]
async fn a_late_claim_that_was_overtaken_has_no_effect() {
    let SessionSetup { service, a, b, .. } = Setup::new(true);
    let other = hold(&a, &claim("other", "a")).await;
    a.backend().fail_next(SwapFault::ArriveLate);
    acquire(&a, &claim("job", "a")).await.unwrap_err();
    let job = hold(&b, &claim("job", "b")).await;
    renew_and_clean_up(&a, &other).await;
    assert_eq!(service.deliver_late(), 0);
    assert!(renew(&b, &job).await);
}

#[tokio::test]
async fn a_new_campaign_replaces_what_an_earlier_one_left_behind() {
    let SessionSetup { a, .. } = Setup::new(true);
    let _other = hold(&a, &claim("other", "a")).await;
    a.backend().fail_next(SwapFault::LoseReply);
    acquire(&a, &claim("job", "a")).await.unwrap_err();
    assert!(is_held(&a, &claim("job", "a")).await, "the process does not block itself");
}

#[tokio::test]
async fn a_dropped_claim_is_released() {
    let SessionSetup { a, b, .. } = Setup::new(true);
    let other = hold(&a, &claim("other", "a")).await;
    let permits = Arc::new(tokio::sync::Semaphore::new(0));
    a.backend().fail_next(SwapFault::Wait(Arc::clone(&permits)));
    let dropped = claim("job", "a");
    tokio::select! {
        biased;
        _ = acquire(&a, &dropped) => panic!("the swap waits"),
        () = settle() => {}
    }
    renew_and_clean_up(&a, &other).await;
    assert!(is_held(&b, &claim("job", "b")).await);
}

#[tokio::test]
async fn a_claim_whose_reply_is_on_its_way_is_not_released() {
    let SessionSetup { a, b, .. } = Setup::new(true);
    let other = hold(&a, &claim("other", "a")).await;
    let permits = Arc::new(tokio::sync::Semaphore::new(0));
    a.backend().fail_next(SwapFault::DelayReply(Arc::clone(&permits)));
    let job = claim("job", "a");
    let (held, ()) = tokio::join!(is_held(&a, &job), async {
        settle().await;
        // The service has granted the lease, and the caller does not know it yet.
        renew_and_clean_up(&a, &other).await;
        assert!(!is_held(&b, &claim("job", "b")).await, "two candidates hold the lease");
        permits.add_permits(1);
    });
    assert!(held);
    renew_and_clean_up(&a, &other).await;
    assert!(!is_held(&b, &claim("job", "b")).await, "two candidates hold the lease");
}

#[tokio::test]
async fn a_claim_that_is_repeated_before_the_clean_up_is_not_released() {
    let SessionSetup { a, b, .. } = Setup::new(true);
    let other = hold(&a, &claim("other", "a")).await;
    let job = claim("job", "a");
    a.backend().fail_next(SwapFault::LoseReply);
    acquire(&a, &job).await.unwrap_err();
    // The clean-up is due, and its task has not run yet.
    assert!(renew(&a, &other).await);
    assert!(is_held(&a, &job).await, "the repeated claim holds the lease");
    settle().await;
    assert!(!is_held(&b, &claim("job", "b")).await, "two candidates hold the lease");
}

#[tokio::test]
async fn a_hold_that_is_renewed_is_never_released() {
    let SessionSetup { clock, a, .. } = Setup::new(true);
    let (job, other) = (hold(&a, &claim("job", "a")).await, hold(&a, &claim("other", "a")).await);
    a.backend().fail_next(SwapFault::LoseRequest);
    release(&a, &job).await.unwrap_err();
    for _ in 0..4 {
        clock.advance(TTL / 2);
        let answers = a.renew(&[job.clone(), other.clone()], TTL).await.unwrap();
        assert!(answers.into_iter().all(|answer| answer.unwrap().is_held()));
        settle().await;
    }
}

#[tokio::test]
async fn a_revoked_lease_is_free_after_its_ttl_although_the_session_lives() {
    for touches in [false, true] {
        let SessionSetup { clock, a, b, .. } = Setup::new(touches);
        let (job, other) =
            (hold(&a, &claim("job", "a")).await, hold(&a, &claim("other", "a")).await);
        b.revoke(&job.name, tenure::store::Revoke::InTime).await.unwrap();
        assert!(!renew(&a, &job).await, "the holder is refused at once");
        assert!(!is_held(&b, &claim("job", "b")).await, "its time has not passed");
        clock.advance(TTL / 2);
        renew_and_clean_up(&a, &other).await;
        assert!(!is_held(&b, &claim("job", "b")).await);
        clock.advance(TTL / 2);
        renew_and_clean_up(&a, &other).await;
        clock.advance(EXPIRED - TTL);
        assert!(is_held(&b, &claim("job", "b")).await);
        assert!(renew(&a, &other).await);
    }
}
