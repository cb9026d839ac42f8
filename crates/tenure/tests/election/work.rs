//! How work runs under an election, and that no candidate holds a lease without work (E2 to E10).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use tenure::machine::EndReason;
use tenure::store::memory::MemoryStore;
use tenure::{Clock, Election, Event, HealthGate, Kind, Leadership};
use tenure_rig::system::time::pause;

use crate::flaky_store::Flaky;
use crate::{SHORT_TTL, TTL, arc, candidate, leads, until};

/// Reproduces defect E2.
#[tokio::test]
async fn a_panic_in_work_that_holds_a_leadership_ends_the_term() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    let mut events = a.events();
    let leadership = a.leadership().await.unwrap();
    let token = leadership.token();
    let work = tokio::spawn(async move {
        assert!(leadership.token().get() == 0, "the work fails");
    });
    assert!(work.await.unwrap_err().is_panic());
    let lost = events
        .by_ref()
        .filter(|event| std::future::ready(matches!(event, Event::LostLeadership { .. })));
    let lost = pin!(lost).next().await.unwrap();
    assert!(
        matches!(&lost, Event::LostLeadership { token: ended, why: EndReason::Dropped, .. } if *ended == token),
        "{lost:?}"
    );
    // It campaigns again: the next term has another token.
    let again = a.leadership().await.unwrap();
    assert!(again.token() > token);
}

/// Reproduces defect E2.
#[tokio::test]
async fn the_lease_of_a_dropped_leadership_goes_to_the_next_candidate() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    let work = a.leadership().await.unwrap();
    let b = candidate(&store, "b", TTL).await;
    let clone = work.clone();
    drop(work);
    assert!(a.is_leader() && clone.is_valid(), "a clone counts as work");
    drop(clone);
    leads(&b).await;
    assert!(!a.is_leader());
}

#[tokio::test]
async fn an_application_without_a_handle_keeps_its_term_and_the_status_says_so() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", SHORT_TTL).await;
    leads(&a).await;
    let token = a.status().token;
    Clock::boot().sleep(2 * SHORT_TTL).await;
    assert!(a.is_leader());
    assert_eq!((a.status().token, a.status().handles, a.pulse().idle), (token, 0, true));
    let work = a.leadership().await.unwrap();
    assert_eq!((a.status().handles, a.pulse().idle), (1, false));
    drop(work);
}

/// Reproduces defect E3.
#[tokio::test]
async fn a_loop_that_asks_should_stop_ends_during_stop() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    let leadership = a.leadership().await.unwrap();
    let (asked, may_stop) = (Arc::new(AtomicU64::new(0)), leadership.signal());
    let steps = asked.clone();
    let work = std::thread::spawn(move || {
        while !leadership.should_stop() {
            steps.fetch_add(1, Ordering::SeqCst);
            pause(Duration::from_millis(1));
        }
        (leadership.ended(), leadership.is_valid())
    });
    until("the work runs", || asked.load(Ordering::SeqCst) > 3).await;
    assert!(!may_stop.should_stop() && may_stop.ended().is_none());
    a.stop().await;
    assert_eq!(work.join().unwrap(), (Some(EndReason::Shutdown), true));
    assert!(may_stop.should_stop());
    assert_eq!(may_stop.lost().await, EndReason::Shutdown);
}

#[tokio::test]
async fn a_thread_waits_for_the_end_of_a_term_without_a_runtime() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    let leadership = a.leadership().await.unwrap();
    let work = std::thread::spawn(move || {
        let early = leadership.lost_timeout(Duration::from_millis(10));
        (early, leadership.lost_timeout(TTL))
    });
    Clock::boot().sleep(Duration::from_millis(50)).await;
    a.resign();
    assert_eq!(work.join().unwrap(), (None, Some(EndReason::Resigned)));
}

/// Reproduces defect E4.
#[tokio::test]
async fn two_calls_of_lead_run_their_work_one_after_the_other() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    let (running, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = |_: Leadership| async {
        let now = running.fetch_add(1, Ordering::SeqCst) + 1;
        most.fetch_max(now, Ordering::SeqCst);
        Clock::boot().sleep(Duration::from_millis(30)).await;
        running.fetch_sub(1, Ordering::SeqCst);
    };
    let (first, second) = tokio::join!(a.lead(work), a.lead(work));
    assert!(first.is_some() && second.is_some());
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

/// Reproduces defect E5.
#[tokio::test]
async fn a_cancelled_lead_does_not_starve_a_waiter() {
    let store = Flaky::new(&Clock::boot());
    let b = candidate(&store, "b", TTL).await;
    leads(&b).await;
    let a = Arc::new(candidate(&store, "a", TTL).await);
    let lead = a.spawn_lead(|_| async {});
    let waiter = tokio::spawn({
        let a = a.clone();
        async move { a.leadership().await.map(|leadership| leadership.token()) }
    });
    Clock::boot().sleep(Duration::from_millis(50)).await;
    lead.abort();
    assert!(lead.await.unwrap_err().is_cancelled());
    b.stop().await;
    let waited = tokio::time::timeout(TTL, waiter).await;
    assert!(waited.expect("the waiter leads").unwrap().is_some());
}

/// Reproduces defect E6.
#[tokio::test]
async fn each_lead_returns_after_its_release() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    let mut tokens = Vec::new();
    for _ in 0..5 {
        let token = a.lead(|leadership| async move { leadership.token() }).await.unwrap();
        let lease = tenure::StoreExt::observe_one(store.memory(), a.name()).await;
        assert_eq!(lease.unwrap().unwrap().holder, None, "released");
        tokens.push(token);
    }
    tokens.dedup();
    assert_eq!(tokens.len(), 5, "a term each: {tokens:?}");
}

/// Reproduces defect E7.
#[test]
fn a_health_check_that_the_runtime_does_not_run_has_failed() {
    let mut one_worker = tokio::runtime::Builder::new_multi_thread();
    let runtime = one_worker.worker_threads(1).enable_all().build().unwrap();
    let store = Flaky::new(&Clock::boot());
    let gate = HealthGate::new(Duration::from_millis(50), 2, 1);
    let builder = Election::builder("job").id("a").ttl(TTL).health(gate, || async { true });
    let a = runtime.block_on(builder.start(arc(&store))).unwrap();
    runtime.block_on(leads(&a));
    assert!(a.status().healthy);
    // The only worker thread blocks.
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    runtime.spawn(async move { blocked.recv().is_ok() });
    let give_up = Clock::boot().now() + TTL;
    while a.status().healthy {
        assert!(Clock::boot().now() < give_up, "a blocked runtime looks healthy");
        pause(Duration::from_millis(5));
    }
    release.send(()).unwrap();
    runtime.block_on(until("it is healthy again", || a.status().healthy));
}

/// Reproduces defect E8.
#[test]
fn a_checkpoint_is_saved_outside_a_runtime() {
    let directory = tenure_rig::servers::Scratch::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = format!("file:{}", directory.path().join("leases").display());
    let (a, leadership) = runtime.block_on(async {
        let store = tenure::open(&url).await.unwrap();
        let a = Election::builder("job").ttl(TTL).start(store).await.unwrap();
        let leadership = a.leadership().await.unwrap();
        (a, leadership)
    });
    drop(runtime);
    assert_eq!(block_on(leadership.save("here")).unwrap(), tenure::Saved::Kept);
    drop(leadership);
    block_on(a.stop());
}

/// Reproduces defect E9.
#[tokio::test]
async fn the_events_end_after_the_last_event() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", TTL).await;
    leads(&a).await;
    let events = a.events();
    a.stop().await;
    let events = tokio::time::timeout(TTL, events.collect::<Vec<Event>>()).await;
    let events = events.expect("the stream ends");
    assert!(matches!(events.last(), Some(Event::Released { .. })), "{events:?}");
    let later = tokio::time::timeout(TTL, a.events().collect::<Vec<Event>>()).await;
    assert!(later.is_ok(), "a late subscription ends too");
}

/// Reproduces defect E10.
#[tokio::test]
async fn a_save_is_bounded_by_the_deadline_of_its_term() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", SHORT_TTL).await;
    let leadership = a.leadership().await.unwrap();
    store.freeze_saves();
    let clock = Clock::boot();
    let sent = clock.now();
    let error = leadership.save("x").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(clock.now().since(sent) < SHORT_TTL + Duration::from_millis(400), "{error}");
}

#[tokio::test]
async fn blocking_work_runs_on_its_own_thread_and_again_after_a_loss() {
    let store = Flaky::new(&Clock::boot());
    let a = candidate(&store, "a", SHORT_TTL).await;
    let terms = Arc::new(AtomicU64::new(0));
    let (seen, cut, name) = (terms.clone(), store.clone(), a.name().clone());
    let value = a.lead_blocking(move |leadership| {
        if seen.fetch_add(1, Ordering::SeqCst) == 0 {
            cut.memory().leases().forget(&name);
            while !leadership.should_stop() {
                pause(Duration::from_millis(1));
            }
        }
        leadership.token()
    });
    assert!(value.await.is_some());
    assert_eq!(terms.load(Ordering::SeqCst), 2);
    let b = candidate(&store, "b", TTL).await;
    leads(&b).await;
}

#[tokio::test]
async fn a_panic_in_blocking_work_releases_the_lease_and_reaches_the_caller() {
    let store = Flaky::new(&Clock::boot());
    let a = Arc::new(candidate(&store, "a", TTL).await);
    let lead = a.clone();
    let work = tokio::spawn(async move {
        lead.lead_blocking(|leadership| assert!(leadership.token().get() == 0)).await
    });
    assert!(work.await.unwrap_err().is_panic());
    let b = candidate(&store, "b", TTL).await;
    leads(&b).await;
}

/// The work notices the end of its term before the driver does, as after SIGCONT: `lead` takes the return for the end of the work
/// and returns `Some`, and the candidate never campaigns again. `lead_blocking` drops the value and runs the work again.
#[tokio::test]
async fn lead_runs_work_again_that_noticed_the_end_first() {
    let clock = Clock::manual();
    let store = Arc::new(MemoryStore::new(clock.clone()));
    let a = Election::builder("job").clock(clock.clone()).start(store).await.unwrap();
    let terms = AtomicU64::new(0);
    let work = |leadership: Leadership| {
        let (clock, term) = (clock.clone(), terms.fetch_add(1, Ordering::SeqCst));
        async move {
            if term == 0 {
                clock.advance(Duration::from_secs(60)); // a freeze
                while !leadership.should_stop() {
                    tokio::task::yield_now().await;
                }
            }
            term
        }
    };
    let advance = async {
        loop {
            Clock::boot().sleep(Duration::from_millis(1)).await;
            clock.advance(Duration::from_millis(20));
        }
    };
    let value = tokio::select! { value = a.lead(work) => value, () = advance => None };
    assert_eq!(value, Some(1), "Some(0): the value of a term that was over");
}

/// A dropped `lead_blocking` frees its turn while its thread still works, and the next call enters the same term, if the driver
/// has not ended it yet: two works under one token.
#[tokio::test]
async fn a_cancelled_lead_blocking_and_the_next_call_do_not_overlap() {
    let store = Arc::new(MemoryStore::new(Clock::boot()));
    let a = Election::builder("job").start(store).await.unwrap();
    let (running, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let work = {
        let (running, most) = (running.clone(), most.clone());
        move |leadership: Leadership| {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let _ = leadership.lost_timeout(Duration::from_millis(1));
            pause(Duration::from_millis(100)); // one step
            running.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let first =
        tokio::time::timeout(Duration::from_millis(30), a.lead_blocking(work.clone())).await;
    assert!(first.is_err());
    let _ = tokio::time::timeout(Duration::from_secs(5), a.lead_blocking(work)).await;
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

/// Runs a future on this thread, without a runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}
