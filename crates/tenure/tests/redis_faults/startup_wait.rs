//! Servers that restarted, were promoted, or lost durability: how long their first holders wait.

use std::time::Duration;

use tenure::store::{Grade, Store, StoreExt as _, Verdict};
use tenure::{ClaimedWait, Clock, Ended, Grant, Kind, Lease, StartupWait, WaitReason};

use tenure_rig::redis_rig::{
    DURABLE, NOT_DURABLE, Rig, TTL, acquire, claim, granted, open, pause, release, renew, taken,
};

/// The granularity of a server's uptime.
const SECOND: Duration = Duration::from_secs(1);
/// The time that a busy machine may take between the server's start and the claim.
const SLACK: Duration = Duration::from_secs(10);

async fn observed(store: &dyn Store, name: &tenure::Name) -> Lease {
    store.observe_one(name).await.unwrap().expect("it was used")
}

/// Asserts that `grant` waits for about `whole`, for this reason.
fn assert_waits(grant: &Grant, whole: Duration, reason: WaitReason) -> StartupWait {
    let wait = grant.wait.expect("the holder waits");
    assert_eq!(wait.reason, reason);
    assert!(wait.left > whole - SLACK && wait.left <= whole + SECOND, "{wait:?} of {whole:?}");
    wait
}

pub(crate) async fn a_durable_server_that_just_started_grants_at_once() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let first = granted(&*store, &claim("a", "one")).await;
    assert_eq!(first.wait, None);
    assert_eq!(observed(&*store, &first.hold.name).await.leader(), Some("one"));
    release(&*store, &first.hold).await;
    rig.kill();
    rig.start_again();
    let next = granted(&*store, &claim("a", "two")).await;
    assert_eq!(next.wait, None, "the last term was released");
    assert_eq!(next.lineage.before, Ended::Released(first.hold.token));
    assert_eq!(granted(&*store, &claim("new", "two")).await.wait, None, "nothing was lost");
}

/// D3, F13; and F49, A4: a server that does not fsync during a rewrite is not durable.
pub(crate) async fn the_first_holder_on_any_other_server_waits_for_one_ttl() {
    let everysec: &[&str] = &["--appendonly", "yes", "--appendfsync", "everysec"];
    let unsynced_rewrites = [DURABLE, &["--no-appendfsync-on-rewrite", "yes"]].concat();
    for arguments in [NOT_DURABLE, everysec, &unsynced_rewrites] {
        let rig = Rig::new(arguments);
        let store = rig.open().await;
        assert_eq!(store.examine().await.unwrap().grade, Grade::C);
        let ours = claim("a", "me");
        for _ in 0..2 {
            // The second claim is the repeat after a lost reply.
            assert_waits(&granted(&*store, &ours).await, TTL, WaitReason::Restarted);
        }
        let lease = observed(&*store, &ours.name).await;
        assert_eq!(lease.leader(), None, "no reader names a leader");
        assert_eq!(lease.holder.unwrap().id, "me");
        assert_eq!(lease.wait.unwrap().reason, WaitReason::Restarted);
        // Each claimer's own TTL counts, and an option can replace it.
        let short = claim("b", "me").with_ttl(TTL / 2);
        assert_waits(&granted(&*store, &short).await, TTL / 2, WaitReason::Restarted);
        let given = open(&format!("{}?startup_wait=90s", rig.url())).await;
        let grant = granted(&*given, &claim("c", "me")).await;
        assert_waits(&grant, Duration::from_secs(90), WaitReason::Restarted);
        for option in ["startup_wait=0s", "quarantine=0s"] {
            let none = open(&format!("{}?{option}", rig.url())).await;
            let ours = claim(&format!("d-{}", option.len()), "me");
            assert_eq!(granted(&*none, &ours).await.wait, None, "{option}");
        }
        // Presence and membership grant no right.
        let presence = claim("e", "me").with_wait(ClaimedWait::Never);
        assert_eq!(granted(&*store, &presence).await.wait, None);
    }
}

/// Releasing while starting does not count as released: the next holder waits for the rest.
pub(crate) async fn a_wait_survives_release_and_a_new_grant() {
    let rig = Rig::new(NOT_DURABLE);
    let store = rig.open().await;
    let first = granted(&*store, &claim("a", "one")).await;
    let before = assert_waits(&first, TTL, WaitReason::Restarted);
    release(&*store, &first.hold).await;
    let none = open(&format!("{}?startup_wait=0s", rig.url())).await;
    let next = granted(&*none, &claim("a", "two")).await;
    let after = assert_waits(&next, TTL, WaitReason::Restarted);
    assert!(after.left <= before.left);
    assert_eq!(next.lineage.before, Ended::Released(first.hold.token));
}

/// What the claimer itself has observed is recorded for every reader.
pub(crate) async fn a_longer_wait_of_the_holder_is_recorded() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let ours = claim("a", "me");
    assert_eq!(granted(&*store, &ours).await.wait, None);
    let requested = StartupWait::new(Duration::from_secs(20), WaitReason::Observed);
    let again = ours.clone().with_wait(ClaimedWait::AtLeast(requested));
    let grant = granted(&*store, &again).await;
    assert_waits(&grant, requested.left, WaitReason::Observed);
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
    assert_eq!(observed(&*store, &ours.name).await.leader(), None, "a renewal keeps it");
    release(&*store, &grant.hold).await;
    assert_waits(&granted(&*store, &claim("a", "two")).await, requested.left, WaitReason::Observed);
}

/// A3, F48: durability is switched off, the holder renews, and the server comes back with the log from before.
pub(crate) async fn durability_switched_off_at_run_time_is_detected_and_causes_a_wait() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let short = |name, id| claim(name, id).with_ttl(Duration::from_secs(4));
    let holder = granted(&*store, &short("a", "holder")).await;
    assert_eq!((holder.wait, store.limits().grade), (None, Grade::B));
    rig.run::<()>("CONFIG SET appendonly no").await;
    let clock = Clock::boot();
    let switched_off = clock.now();
    while store.limits().grade == Grade::B {
        assert!(clock.now().since(switched_off) < SLACK, "the grade is still B");
        let renewed = store.renew_one(&holder.hold, Duration::from_secs(4)).await;
        assert!(renewed.unwrap().is_held());
        pause(Duration::from_millis(300)).await;
    }
    rig.kill();
    rig.start_again();
    let restarted = clock.now();
    // The log states until when the term of the first grant was to last; the holder has renewed since.
    let newcomer = loop {
        match acquire(&*store, &short("a", "newcomer")).await.unwrap() {
            tenure::Answer::Held(grant) => break grant,
            tenure::Answer::Taken(lease) => pause(lease.left).await,
        }
    };
    let wait = newcomer.wait.map_or(Duration::ZERO, |wait| wait.left);
    let leads_after = clock.now().since(restarted) + wait;
    assert!(leads_after > Duration::from_secs(3), "{leads_after:?} after the restart");
}

/// A4: an append-only file that was just switched on contains nothing before its first rewrite is done.
pub(crate) async fn a_log_whose_first_rewrite_is_pending_is_not_durable() {
    let rig = Rig::new(NOT_DURABLE);
    for number in 0..50 {
        rig.run::<()>(&format!("SET filler:{number} x")).await;
    }
    // The rewrite takes five seconds.
    rig.run::<()>("CONFIG SET rdb-key-save-delay 100000").await;
    rig.run::<()>("CONFIG SET appendfsync always").await;
    rig.run::<()>("CONFIG SET appendonly yes").await;
    let store = rig.open().await;
    let report = store.examine().await.unwrap();
    let durability = report.checks.iter().find(|check| check.what == "durability").unwrap();
    assert_eq!((durability.verdict, report.grade), (Verdict::Weak, Grade::C), "{durability:?}");
    assert_waits(&granted(&*store, &claim("a", "me")).await, TTL, WaitReason::Restarted);
    rig.run::<()>("CONFIG SET rdb-key-save-delay 0").await;
}

/// A run that was observed without durability may have lost a grant, even if the next run is durable.
pub(crate) async fn a_durable_run_after_one_that_was_not_waits() {
    let rig = Rig::new(DURABLE);
    rig.run::<()>("CONFIG SET appendfsync everysec").await;
    let store = rig.open().await;
    granted(&*store, &claim("a", "me")).await;
    // On disk, though not fsynced.
    pause(2 * SECOND).await;
    rig.kill();
    rig.start_again();
    assert_waits(&granted(&*store, &claim("new", "me")).await, TTL, WaitReason::Restarted);
    rig.kill();
    rig.start_again();
    assert_eq!(granted(&*store, &claim("newer", "me")).await.wait, None, "both runs were durable");
}

/// A killed server comes back with a snapshot from before the last grant.
pub(crate) async fn a_server_that_went_back_in_time_makes_the_next_holder_wait() {
    let rig = Rig::new(NOT_DURABLE);
    let store = rig.open().await;
    let first = granted(&*store, &claim("a", "one")).await;
    release(&*store, &first.hold).await;
    rig.run::<()>("SAVE").await;
    let lost = granted(&*store, &claim("a", "two")).await;
    rig.kill();
    rig.start_again();
    taken(renew(&*store, &lost.hold).await);
    let next = granted(&*store, &claim("a", "three")).await;
    assert!(next.hold.token > lost.hold.token, "the clock is a floor under the tokens");
    assert!(
        next.lineage.before.token() < Some(lost.hold.token),
        "a waiter that observed 'two' sees it"
    );
    assert_waits(&next, TTL, WaitReason::Restarted);
}

/// `tenure:server` contains garbage: it is not trusted, and does not block grants.
pub(crate) async fn garbage_about_the_server_is_not_trusted() {
    let rig = Rig::new(NOT_DURABLE);
    let store = rig.open().await;
    granted(&*store, &claim("a", "me")).await;
    for (number, change) in [
        "HSET tenure:server run x",
        "HSET tenure:server since -5",
        "HSET tenure:server since 9007199254740991",
        "HSET tenure:server durable 7",
        "HDEL tenure:server run",
        "DEL tenure:server",
        "SETEX tenure:server 100 x",
    ]
    .iter()
    .enumerate()
    {
        rig.run::<redis::Value>(change).await;
        let grant = granted(&*store, &claim(&format!("k{number}"), "me")).await;
        assert_waits(&grant, TTL, WaitReason::Restarted);
        assert!(renew(&*store, &grant.hold).await.unwrap().is_held(), "{change}");
    }
}

async fn until_replicated(replica: &Rig, key: &str) {
    while replica.run::<i64>(&format!("EXISTS {key}")).await == 0 {
        pause(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn replicate(replica: &Rig, primary: &Rig) {
    replicate_from(replica, primary.port).await;
}

pub(crate) async fn replicate_from(replica: &Rig, port: u16) {
    replica.run::<()>(&format!("REPLICAOF 127.0.0.1 {port}")).await;
    let up = async || replica.run::<String>("INFO replication").await.contains("link_status:up");
    while !up().await {
        pause(Duration::from_millis(20)).await;
    }
}

/// A6: a replica that never had `tenure:server` is not as old as its process once it is promoted.
pub(crate) async fn a_promoted_replica_waits_from_its_promotion() {
    let (primary, replica) = (Rig::new(DURABLE), Rig::new(DURABLE));
    let short = |id| claim("a", id).with_ttl(3 * SECOND);
    replicate(&replica, &primary).await;
    primary.run::<()>("SET something else").await;
    until_replicated(&replica, "something").await;
    // Both are older than the claimer's TTL by now.
    pause(5 * SECOND).await;
    primary.kill();
    replica.run::<()>("REPLICAOF NO ONE").await;
    let store = replica.open().await;
    let grant = granted(&*store, &short("two")).await;
    let wait = grant.wait.expect("the holder waits");
    assert_eq!(wait.reason, WaitReason::Promoted);
    assert!(wait.left > 2 * SECOND, "{wait:?}");
    release(&*store, &grant.hold).await;
    pause(wait.left).await;
    assert_eq!(granted(&*store, &short("three")).await.wait, None, "once per promotion");
}

/// A12: failover, failback and failover again, with only renewals in between.
pub(crate) async fn a_replica_that_is_promoted_again_waits_again() {
    let (first, second) = (Rig::new(DURABLE), Rig::new(DURABLE));
    let short = |name, id| claim(name, id).with_ttl(3 * SECOND);
    replicate(&second, &first).await;
    second.run::<()>("REPLICAOF NO ONE").await;
    let on_second = second.open().await;
    let hold = granted(&*on_second, &short("a", "holder")).await.hold;
    // Failback: the second is a replica again, and only renewals happen on the first.
    replicate(&first, &second).await;
    first.run::<()>("REPLICAOF NO ONE").await;
    replicate(&second, &first).await;
    let on_first = first.open().await;
    let renewed = on_first.renew_one(&hold, 3 * SECOND).await;
    assert!(renewed.unwrap().is_held());
    pause(2 * SECOND).await;
    second.run::<()>("REPLICAOF NO ONE").await;
    let grant = granted(&*second.open().await, &short("b", "newcomer")).await;
    assert_eq!(grant.wait.expect("the holder waits").reason, WaitReason::Promoted);
}

/// A5, F50: a replica that accepts writes is refused like any other.
pub(crate) async fn a_writable_replica_is_refused() {
    let (primary, replica) = (Rig::new(DURABLE), Rig::new(DURABLE));
    let store = replica.open().await;
    let hold = granted(&*store, &claim("a", "me")).await.hold;
    replica.run::<()>("CONFIG SET replica-read-only no").await;
    replicate(&replica, &primary).await;
    let assert_refused = |error: tenure::Error, kind| {
        let text = error.to_string();
        assert!(text.contains(&format!("replica of 127.0.0.1:{}", primary.port)), "{text}");
        assert_eq!(error.kind(), kind, "{text}");
    };
    // It was a primary before: this may be a failover.
    assert_refused(renew(&*store, &hold).await.unwrap_err(), Kind::Unavailable);
    assert_refused(acquire(&*store, &claim("b", "me")).await.unwrap_err(), Kind::Unavailable);
    let newcomer = replica.open().await;
    assert_refused(acquire(&*newcomer, &claim("b", "me")).await.unwrap_err(), Kind::Denied);
}
