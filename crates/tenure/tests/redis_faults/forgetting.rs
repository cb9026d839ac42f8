//! Servers that come back with less than they had acknowledged, or may have.

use std::time::Duration;

use tenure::Ended;

use crate::redis_rig::{
    DURABLE, FORGETFUL, Rig, TTL, claim, granted, open, pause, release, renew, taken,
};

/// What the server is known by is garbage as well: nothing is relied on, and nothing stands still.
pub(crate) async fn garbage_about_the_server_is_not_relied_on() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    granted(&*store, &claim("a", "me")).await;
    for (number, meddle) in [
        "HSET tenure:server chain x!",
        "HSET tenure:server whole -5",
        "HSET tenure:server whole 9007199254740993",
        "HDEL tenure:server life",
        "DEL tenure:server",
        "SETEX tenure:server 100 x",
    ]
    .iter()
    .enumerate()
    {
        rig.run::<redis::Value>(meddle).await;
        let ours = claim(&format!("k{number}"), "me");
        let grant = granted(&*store, &ours).await;
        let wait = grant.quarantine;
        assert!(wait > 2 * TTL && wait <= 3 * TTL, "{meddle}: {wait:?}");
        assert!(renew(&*store, &grant.hold).await.unwrap().is_held(), "{meddle}");
    }
}

pub(crate) async fn a_young_server_is_quarantined() {
    let everysec: &[&str] = &["--appendonly", "yes", "--appendfsync", "everysec"];
    // A durable one as well, as long as nobody has left word that it was so before: this is how a
    // server looks that was given its first appendonly file by a restart.
    for arguments in [FORGETFUL, everysec, DURABLE] {
        let rig = Rig::new(arguments);
        let store = rig.open().await;
        let ours = claim("a", "me");
        for _ in 0..2 {
            // The second is the repeat after a lost reply, which must not lose it.
            let wait = granted(&*store, &ours).await.quarantine;
            assert!(wait > 3 * TTL - Duration::from_secs(10) && wait <= 3 * TTL, "{wait:?}");
        }
        let short = open(&format!("{}?quarantine=30s", rig.url())).await;
        let wait = granted(&*short, &claim("b", "me")).await.quarantine;
        assert!(wait > Duration::from_secs(20) && wait <= Duration::from_secs(30), "{wait:?}");
        let none = open(&format!("{}?quarantine=0s", rig.url())).await;
        assert_eq!(granted(&*none, &claim("c", "me")).await.quarantine, Duration::ZERO);
    }
}

/// A server that was killed comes back with a snapshot from before the last grant.
pub(crate) async fn a_server_that_went_back_in_time_breaks_the_chain() {
    let rig = Rig::new(FORGETFUL);
    let store = rig.open().await;
    let first = granted(&*store, &claim("a", "one")).await;
    release(&*store, &first.hold).await;
    rig.run::<()>("SAVE").await;
    let lost = granted(&*store, &claim("a", "two")).await;
    assert_eq!(lost.lineage.origin, first.lineage.origin);
    rig.kill();
    rig.start_again();
    taken(renew(&*store, &lost.hold).await);
    let next = granted(&*store, &claim("a", "three")).await;
    assert!(next.hold.token > lost.hold.token, "the clock is a floor under the tokens");
    assert_eq!(next.lineage.before, Ended::Nothing);
    assert_eq!(next.lineage.origin, next.hold.token, "so that a waiter who saw 'two' holds back");
    assert!(next.quarantine > 2 * TTL, "so that a newcomer does: {:?}", next.quarantine);
    // Within one life of the server the chain holds.
    release(&*store, &next.hold).await;
    let after = granted(&*store, &claim("a", "four")).await;
    assert_eq!(after.lineage.origin, next.lineage.origin);
    assert_eq!(after.lineage.before, Ended::Released(next.hold.token));
    assert!(after.quarantine > 2 * TTL, "'three' may never have led: {:?}", after.quarantine);
}

pub(crate) async fn a_durable_restart_breaks_nothing() {
    let rig = Rig::new(DURABLE);
    let store = open(&format!("{}?quarantine=3s", rig.url())).await;
    let first = granted(&*store, &claim("a", "one")).await;
    assert!(first.quarantine > Duration::ZERO, "it may be the first durable life of many");
    release(&*store, &first.hold).await;
    pause(first.quarantine).await;
    rig.kill();
    rig.start_again();
    let next = granted(&*store, &claim("a", "two")).await;
    assert_eq!(next.lineage.before, Ended::Released(first.hold.token));
    assert_eq!(next.lineage.origin, first.lineage.origin);
    assert_eq!(next.quarantine, Duration::ZERO);
    assert_eq!(granted(&*store, &claim("new", "two")).await.quarantine, Duration::ZERO);
    // A life in which writes could be lost ends it.
    rig.run::<()>("CONFIG SET appendfsync everysec").await;
    let careless = open(&format!("{}?quarantine=3s", rig.url())).await;
    granted(&*careless, &claim("b", "two")).await;
    rig.kill();
    rig.start_again();
    assert!(granted(&*store, &claim("newer", "two")).await.quarantine > Duration::ZERO);
    release(&*store, &next.hold).await;
    let broken = granted(&*store, &claim("a", "three")).await;
    assert_eq!(broken.lineage.origin, broken.hold.token);
}

pub(crate) async fn a_promoted_replica_is_quarantined() {
    let (primary, replica) = (Rig::new(DURABLE), Rig::new(DURABLE));
    let window = "quarantine=2s";
    let old = open(&format!("{}?{window}", primary.url())).await;
    replica.run::<()>(&format!("REPLICAOF 127.0.0.1 {}", primary.port)).await;
    let first = granted(&*old, &claim("a", "one")).await;
    release(&*old, &first.hold).await;
    while replica.run::<i64>("EXISTS tenure:{a}").await == 0 {
        pause(Duration::from_millis(50)).await;
    }
    // Both are up for longer than the window by now.
    pause(Duration::from_millis(2_500)).await;
    primary.kill();
    replica.run::<()>("REPLICAOF NO ONE").await;
    let new = open(&format!("{}?{window}", replica.url())).await;
    let next = granted(&*new, &claim("a", "two")).await;
    assert!(next.quarantine > Duration::from_secs(1), "{:?}", next.quarantine);
    assert_eq!(next.lineage.origin, next.hold.token, "waiters hold back too");
}
