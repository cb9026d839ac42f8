//! Tests of the driver and the public API of one election, on the memory store.

#![allow(clippy::unwrap_used)] // Helpers of tests fail like tests.

mod flaky_store;
mod presence;
mod shared_driver;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flaky_store::Flaky;
use futures_util::StreamExt;
use tenure::machine::EndReason;
use tenure::request::{RemoteRequest, RequestOutcome, send};
use tenure::store::{Scope, StoreExt as _};
use tenure::{CandidateId, Clock, Election, Event, HealthGate, Kind, Name, Saved, Store};
use tenure_rig::system::time::until;

/// Long, so that a slow machine does not lose a lease.
const TTL: Duration = Duration::from_secs(10);
/// For tests that wait for a lease to expire.
const SHORT_TTL: Duration = Duration::from_millis(600);

fn arc(store: &Flaky) -> Arc<dyn Store> {
    store.arc()
}

async fn candidate(store: &Flaky, id: &str, ttl: Duration) -> Election {
    Election::builder("job").id(id).ttl(ttl).start(arc(store)).await.unwrap()
}

/// Waits until the candidate leads, without a handle: dropping one would end the term.
async fn leads(election: &Election) {
    until("it leads", || election.is_leader()).await;
}

#[tokio::test]
async fn the_work_runs_in_a_term_and_its_value_is_returned_after_the_release() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    let token = a.lead(async |leadership| leadership.token()).await.unwrap();
    let lease = store.memory().observe(&Scope::Prefix(String::new())).await;
    let lease = lease.unwrap().remove(0).unwrap();
    assert_eq!(lease.holder, None, "released before lead returned");
    assert_eq!(lease.token, Some(token));
    // It does not campaign now: another candidate leads and stays the leader.
    let b = candidate(&store, "b", TTL).await;
    let second = b.leadership().await.unwrap();
    assert!(second.token() > token);
    assert!(b.is_leader());
    assert!(!a.is_leader());
    drop(second);
    b.stop().await;
    // When it wants to lead again, it does.
    assert!(a.lead(async |leadership| leadership.is_valid()).await.unwrap());
    a.stop().await;
    assert!(a.lead(async |_| ()).await.is_none());
}

#[tokio::test]
async fn a_clean_stop_hands_over_with_the_checkpoint() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    let first = a.leadership().await.unwrap();
    assert_eq!(first.checkpoint(), None);
    assert_eq!(first.save("41").await.unwrap(), Saved::Kept);
    assert_eq!(first.save("42").await.unwrap(), Saved::Kept);
    let b = candidate(&store, "b", TTL).await;
    assert!(!b.is_leader());
    assert_eq!(b.current_leader().as_deref(), Some("a"));
    let stop = tokio::spawn(async move { a.stop().await });
    assert_eq!(first.lost().await, EndReason::Shutdown);
    assert!(first.is_valid(), "there is time to stop");
    assert!(!b.is_leader(), "the lease is kept while the work stops");
    drop(first);
    stop.await.unwrap();
    let second = b.leadership().await.unwrap();
    assert_eq!(second.checkpoint().unwrap().as_bytes(), b"42");
    assert_eq!(b.status().token, Some(second.token()));
}

#[tokio::test]
async fn a_stale_leader_saves_nothing() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    let first = a.leadership().await.unwrap();
    store.memory().leases().forget(a.name());
    assert_eq!(first.save("x").await.unwrap(), Saved::Lost);
}

#[tokio::test]
async fn a_refused_renewal_ends_the_work_at_once_and_it_campaigns_again() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", SHORT_TTL).await;
    let terms = AtomicU64::new(0);
    let ended = a
        .lead(async |leadership| {
            if terms.fetch_add(1, Ordering::SeqCst) == 0 {
                store.memory().leases().forget(a.name());
                std::future::pending::<()>().await;
            }
            leadership.token()
        })
        .await;
    assert!(ended.is_some());
    assert_eq!(terms.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_unreachable_store_ends_the_term_before_its_deadline() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", SHORT_TTL).await;
    let leadership = a.leadership().await.unwrap();
    store.cut(true);
    let reason = leadership.lost().await;
    assert!(matches!(reason, EndReason::Unreachable(_)), "{reason:?}");
    assert!(!a.is_leader());
    assert_eq!(a.status().store_reachable, Some(false));
    drop(leadership);
    store.cut(false);
    assert!(a.leadership().await.is_some(), "recovers by itself");
    assert_eq!(a.status().store_reachable, Some(true));
}

#[tokio::test]
async fn time_alone_ends_a_term_on_a_manual_clock() {
    let clock = Clock::manual();
    let store = Flaky::new(&clock);
    let start = Election::builder("job").id("a").clock(clock.clone()).start(arc(&store));
    let a = start.await.unwrap();
    let leadership = a.leadership().await.unwrap();
    assert!(leadership.is_valid() && a.is_leader());
    // As after a suspend: nothing ran, and the lease has expired meanwhile.
    clock.advance(Duration::from_secs(60));
    assert!(!leadership.is_valid(), "computed, not remembered");
    assert!(!a.is_leader());
    assert_eq!(leadership.valid_for(), Duration::ZERO);
    assert_eq!(leadership.lost().await, EndReason::Paused(Duration::from_secs(60)));
}

#[tokio::test]
async fn dropping_the_election_sends_nothing_more_and_leaves_the_lease_to_its_ttl() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", SHORT_TTL).await;
    let leadership = a.leadership().await.unwrap();
    drop(a);
    assert_eq!(leadership.lost().await, EndReason::Shutdown);
    assert!(!leadership.is_valid());
    let calls = store.calls();
    let b = candidate(&store, "b", SHORT_TTL).await;
    assert!(b.leadership().await.is_some());
    assert!(store.calls() > calls);
    drop(leadership);
}

#[tokio::test]
async fn a_dropped_election_campaigns_no_more_even_if_its_timer_is_due() {
    for _ in 0..50 {
        let clock = Clock::manual();
        let store = Flaky::new(&clock);
        let start = |id| Election::builder("job").id(id).clock(clock.clone()).start(arc(&store));
        let a = start("a").await.unwrap();
        leads(&a).await;
        let b = start("b").await.unwrap();
        drop(b);
        drop(a);
        // Now the lease has expired, and the timer of the waiting candidate is due.
        clock.advance(Duration::from_secs(5));
        Clock::boot().sleep(Duration::from_millis(5)).await;
        let lease = store.memory().observe(&Scope::Prefix("job".to_owned())).await;
        assert_eq!(
            lease.unwrap().remove(0).unwrap().holder,
            None,
            "no candidate is left to claim it"
        );
    }
}

#[tokio::test]
async fn drain_and_withdraw_are_independent() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    assert!(a.lead(async |_| ()).await.is_some());
    // It does not campaign. Drained now, it stays drained when it wants to lead again.
    a.drain();
    until("drained", || a.status().drained).await;
    let clock = Clock::boot();
    tokio::select! {
        _ = a.lead(async |_| ()) => panic!("a drained candidate leads"),
        () = clock.sleep(Duration::from_millis(700)) => {}
    }
    // Undrained while it does not campaign, it does not lead without work.
    a.undrain();
    until("undrained", || !a.status().drained).await;
    clock.sleep(Duration::from_millis(700)).await;
    assert!(!a.is_leader());
    assert!(a.lead(async |_| ()).await.is_some());
}

#[tokio::test]
async fn a_panic_in_the_work_releases_the_lease() {
    let store = Flaky::new(&Clock::boot());
    let a = Arc::new(candidate(&store, "a", TTL).await);
    let work = tokio::spawn({
        let a = a.clone();
        async move { a.lead(async |_| panic!("the work fails")).await }
    });
    assert!(work.await.unwrap_err().is_panic());
    let b = candidate(&store, "b", TTL).await;
    assert!(b.leadership().await.is_some(), "not only when the lease has run out");
}

#[tokio::test]
async fn dropping_lead_drops_the_work_and_releases() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    let started = Arc::new(AtomicBool::new(false));
    {
        let lead = a.lead(async |_| {
            started.store(true, Ordering::SeqCst);
            std::future::pending::<()>().await;
        });
        tokio::select! {
            _ = lead => unreachable!("it never ends by itself"),
            () = until("the work begins", || started.load(Ordering::SeqCst)) => {}
        }
    }
    let b = candidate(&store, "b", TTL).await;
    assert!(b.leadership().await.is_some());
}

#[tokio::test]
async fn a_busy_application_loses_nothing() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", SHORT_TTL).await;
    let leadership = a.leadership().await.unwrap();
    let clock = Clock::boot();
    let free = clock.now() + 4 * SHORT_TTL;
    while clock.now() < free {
        std::hint::spin_loop(); // The only thread of this runtime does nothing else.
    }
    assert!(leadership.is_valid(), "renewed on its own thread");
}

#[tokio::test]
async fn the_leader_resigns_on_request_and_the_named_successor_leads_next() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    leads(&a).await;
    let b = candidate(&store, "b", TTL).await;
    let c = candidate(&store, "c", TTL).await;
    // When a watch starts, the candidates poll once more, within 5 ms. A claim that is already in flight is legitimate: the
    // hint delays only later claims.
    Clock::boot().sleep(Duration::from_millis(100)).await;
    let name = Name::new("job").unwrap();
    let request = RemoteRequest::Resign { to: Some("c".to_owned()) };
    let outcome = send(store.memory(), &name, &request, TTL).await.unwrap();
    assert!(matches!(outcome, RequestOutcome::Done(_)), "{outcome:?}");
    leads(&c).await;
    assert!(!a.is_leader() && !b.is_leader());
    let again = send(store.memory(), &name, &request, TTL).await.unwrap();
    assert_eq!(again, RequestOutcome::Done(Some("c".to_owned())), "nothing to do");
}

#[tokio::test]
async fn a_drained_candidate_does_not_campaign_until_undrained() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    leads(&a).await;
    let name = Name::new("job").unwrap();
    let drain = RemoteRequest::Drain { id: "a".to_owned() };
    assert_eq!(send(store.memory(), &name, &drain, TTL).await.unwrap(), RequestOutcome::Done(None));
    assert!(a.status().drained);
    let b = candidate(&store, "b", TTL).await;
    leads(&b).await;
    b.stop().await;
    assert!(!a.is_leader());
    let undrain = RemoteRequest::Undrain { id: "a".to_owned() };
    assert_eq!(
        send(store.memory(), &name, &undrain, TTL).await.unwrap(),
        RequestOutcome::Done(None)
    );
    until("a leads again", || a.is_leader()).await;
}

#[tokio::test]
async fn a_request_for_an_absent_candidate_is_not_answered() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    leads(&a).await;
    let drain = RemoteRequest::Drain { id: "b".to_owned() };
    let outcome = send(store.memory(), a.name(), &drain, Duration::from_millis(50)).await.unwrap();
    assert_eq!(outcome, RequestOutcome::NoAnswer(Some("a".to_owned())));
    assert!(a.is_leader());
}

#[tokio::test]
async fn an_unhealthy_candidate_resigns_and_campaigns_again_when_healthy() {
    let store = Flaky::new(&Clock::boot());
    let healthy = Arc::new(AtomicBool::new(true));
    let gate = HealthGate::new(Duration::from_millis(5), 2, 2);
    let health = healthy.clone();
    let builder = Election::builder("job").id("a").ttl(TTL).health(gate, move || {
        let healthy = health.load(Ordering::SeqCst);
        async move { healthy }
    });
    let a = builder.start(arc(&store)).await.unwrap();
    let leadership = a.leadership().await.unwrap();
    healthy.store(false, Ordering::SeqCst);
    assert_eq!(leadership.lost().await, EndReason::Unhealthy);
    assert!(!a.status().healthy);
    drop(leadership);
    let b = candidate(&store, "b", TTL).await;
    leads(&b).await;
    b.stop().await;
    healthy.store(true, Ordering::SeqCst);
    until("a leads again", || a.is_leader()).await;
    assert!(a.status().healthy);
}

#[tokio::test]
async fn status_and_renewal_stats_show_the_term_and_its_renewals() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", SHORT_TTL).await;
    until("a renews", || a.renewals().durations.count > 0).await;
    let renewals = a.renewals();
    let in_buckets = renewals.durations.buckets().map(|(_, count)| count).sum::<u64>();
    assert_eq!(in_buckets, renewals.durations.count);
    assert_eq!((renewals.unavailable, renewals.refused), (0, 0));
    let b = candidate(&store, "b", SHORT_TTL).await;
    until("b knows", || b.current_leader().as_deref() == Some("a")).await;
    let since = a.status().since.unwrap();
    assert!(since.abs_diff(b.status().since.unwrap()) < 1_000, "both mean the same term");
    assert_eq!(b.renewals().durations.count, 0);
    store.cut(true);
    until("a fails to renew", || a.renewals().unavailable > 0).await;
    until("a does not lead", || !a.is_leader()).await;
    store.cut(false);
    b.stop().await;
    until("a leads", || a.is_leader()).await;
    assert!(a.status().since.unwrap() > since, "of this term");
    assert!(!a.pulse().ended);
    a.stop().await;
    let pulse = a.pulse();
    assert!(pulse.ended && pulse.overrun.is_zero());
    assert_eq!(a.status().since, None);
}

#[tokio::test]
async fn work_that_overruns_its_deadline_shows_in_the_pulse() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", SHORT_TTL).await;
    let work = a.leadership().await.unwrap();
    assert!(a.pulse().overrun.is_zero());
    store.cut(true);
    until("it is over its time", || !a.pulse().overrun.is_zero()).await;
    assert!(!work.is_valid());
    drop(work);
    assert!(a.pulse().overrun.is_zero());
}

#[tokio::test]
async fn events_are_in_order_and_a_panicking_listener_is_harmless() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    a.on_event(|_| panic!("a bad listener"));
    leads(&a).await;
    let mut events = a.events();
    // First the current state: a late subscriber has missed nothing.
    let known = events.next().await.unwrap();
    assert!(matches!(&known, Event::LeaderChanged { from: None, to: Some(to), .. } if to == "a"));
    let became = events.next().await.unwrap();
    assert!(matches!(became, Event::BecameLeader { .. }), "{became:?}");
    a.resign();
    let lost = events.next().await.unwrap();
    assert!(matches!(lost, Event::LostLeadership { why: EndReason::Resigned, .. }), "{lost:?}");
    let changed = events.next().await.unwrap();
    assert!(matches!(changed, Event::LeaderChanged { to: None, .. }), "{changed:?}");
    let released = events.next().await.unwrap();
    assert!(matches!(released, Event::Released { .. }), "{released:?}");
    // There is no other candidate, so it leads again.
    let changed = events.next().await.unwrap();
    assert!(matches!(&changed, Event::LeaderChanged { to: Some(to), .. } if to == "a"));
    let became = events.next().await.unwrap();
    assert!(matches!(became, Event::BecameLeader { checkpoint: None, .. }), "{became:?}");
    assert_eq!(a.status().transitions, 2);
}

/// I15: a follower does not report a leader whose lease has expired, even if the store is unreachable.
#[tokio::test]
async fn a_follower_names_no_leader_past_the_lease_while_the_store_is_down() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", SHORT_TTL).await;
    let work = a.leadership().await.unwrap();
    let b = candidate(&store, "b", SHORT_TTL).await;
    assert_eq!(b.current_leader().as_deref(), Some("a"));
    store.cut(true);
    until("the lease that b observed has expired", || b.current_leader().is_none()).await;
    assert_eq!(b.status().current_leader, None);
    drop(work);
    store.cut(false);
    until("one of them leads again", || b.current_leader().is_some()).await;
}

#[tokio::test]
async fn start_waits_for_a_store_that_is_down_and_try_start_does_not() {
    let store = Flaky::new(&Clock::boot());
    store.cut(true);
    let error = Election::builder("job").try_start(arc(&store)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    let waiting = tokio::spawn(Election::builder("job").start(arc(&store)));
    until("it has tried", || store.calls() > 3).await;
    assert!(!waiting.is_finished());
    store.cut(false);
    assert!(waiting.await.unwrap().unwrap().leadership().await.is_some());
}

#[tokio::test]
async fn start_fails_if_an_operator_must_act() {
    let store = Flaky::new(&Clock::boot());
    store.deny();
    let error = Election::builder("job").start(arc(&store)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
}

#[tokio::test]
async fn invalid_settings_are_refused_before_anything_is_written() {
    let store = Flaky::new(&Clock::boot());
    let day = Duration::from_secs(86_400);
    for builder in [
        Election::builder("two words"),
        Election::builder("tenure:mine"),
        Election::builder("job").id(""),
        Election::builder("job").ttl(Duration::ZERO),
        Election::builder("job").ttl(2 * day),
        Election::builder("job").renew_every(day),
        Election::builder("job").note("line\nbreak"),
    ] {
        assert_eq!(builder.start(arc(&store)).await.unwrap_err().kind(), Kind::Invalid);
    }
    assert_eq!(store.calls(), 0);
}

#[tokio::test]
async fn two_candidates_with_one_id_never_both_lead() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "same", TTL).await;
    let first = a.leadership().await.unwrap();
    let b = candidate(&store, "same", TTL).await;
    assert!(!b.is_leader());
    assert_eq!(b.current_leader().as_deref(), Some("same"));
    drop(first);
    a.stop().await;
    leads(&b).await;
}

#[tokio::test]
async fn a_candidate_that_observed_a_leader_does_not_trust_a_store_that_lost_it() {
    let clock = Clock::manual();
    let store = Flaky::new(&clock);
    let start =
        |id| Election::builder("job").id(id).ttl(TTL).clock(clock.clone()).start(arc(&store));
    let a = start("a").await.unwrap();
    let first = a.leadership().await.unwrap();
    let b = start("b").await.unwrap();
    assert_eq!(b.current_leader().as_deref(), Some("a"));
    // A is gone without a release, and the store has lost its record: only b remembers that a may be alive.
    drop(a);
    drop(first);
    store.memory().leases().forget(b.name());
    clock.advance(TTL + Duration::from_millis(20));
    until("b holds it", || b.status().state == tenure::CandidateState::Starting).await;
    assert!(!b.is_leader());
    for _ in 0..4 {
        // Its renewals succeed before the clock advances.
        let calls = store.calls();
        clock.advance(TTL / 3 + Duration::from_millis(20));
        until("it renews", || store.calls() > calls || b.is_leader()).await;
    }
    until("b leads at last", || b.is_leader()).await;
}

#[tokio::test]
async fn an_idle_waiter_calls_the_store_at_most_one_and_a_half_times_per_ttl() {
    let store = Flaky::new(&Clock::boot());
    let hold = store.memory();
    let name = Name::new("job").unwrap();
    let ttl = Duration::from_millis(300);
    let claim =
        tenure::Claim::new(name, CandidateId::new("holder").unwrap(), tenure::Nonce::random(), ttl);
    let grant = hold.acquire_one(&claim).await.unwrap().held().unwrap();
    let waiter = candidate(&store, "waiter", ttl).await;
    let clock = Clock::boot();
    let before = store.calls();
    let started = clock.now();
    // Renewed directly in memory, so that it is not counted, every third of the TTL.
    for _ in 0..60 {
        assert!(hold.renew(std::slice::from_ref(&grant.hold), ttl).await.unwrap()[0].is_ok());
        clock.sleep(ttl / 3).await;
    }
    let ttls = clock.now().since(started).as_secs_f64() / ttl.as_secs_f64();
    let calls = store.calls() - before;
    assert!((calls as f64) <= 1.5 * ttls + 2.0, "{calls} calls in {ttls:.1} TTLs");
    drop(waiter);
}
