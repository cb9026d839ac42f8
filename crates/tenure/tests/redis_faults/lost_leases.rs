//! Reproductions of two leaders on a server that lost a lease: real servers, real elections. The holder is disconnected, so it
//! leads until its deadline; the next candidate must not lead before that.
//!
//! `TENURE_TURNS=50` repeats each of them fifty times.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use tenure::supervise::{self, SupervisedTerm as _};
use tenure::{Clock, Election, Kind, Leadership};

use crate::proxy::Proxy;
use crate::startup_wait::{replicate, replicate_from};
use tenure_rig::redis_rig::{self, DURABLE, NOT_DURABLE, Rig, open, pause};

const TTL: Duration = Duration::from_secs(1);
/// Concurrent turns: the machine has two cores, and each turn has up to two servers.
const MAX_CONCURRENT_TURNS: u32 = 5;

/// The holder lost its lease before the fault, because the machine is busy and the TTL short. Such a turn proves nothing.
struct HolderLost;

type Turn = Result<(), HolderLost>;

/// Runs `turn` until the requested number of turns have proved something.
async fn turns(turn: impl AsyncFn() -> Turn) {
    let turns = redis_rig::turns();
    let (mut conclusive, mut lost) = (0, 0);
    while conclusive < turns {
        let batch = (turns - conclusive).min(MAX_CONCURRENT_TURNS);
        for outcome in join_all((0..batch).map(|_| turn())).await {
            match outcome {
                Ok(()) => conclusive += 1,
                Err(HolderLost) => lost += 1,
            }
        }
    }
    println!(
        "{turns} turns without an overlap, {lost} more in which the holder lost its lease early"
    );
}

async fn candidate(url: &str, id: &str) -> Election {
    Election::builder("job").id(id).ttl(TTL).start(open(url).await).await.expect("a candidate")
}

async fn wait_for_leadership(election: &Election) -> Leadership {
    election.leadership().await.expect("it was not stopped")
}

/// Waits until `next` leads, and asserts that this is not before the deadline of `first`, which stays disconnected.
async fn assert_successor(next: &Election, first: &Leadership) {
    let term = wait_for_leadership(next).await;
    let (now, deadline) = (Clock::boot().now(), first.deadline());
    assert!(now >= deadline, "two leaders for {:?}", deadline.since(now));
    assert!(term.token() > first.token(), "the token grows");
    assert!(!first.is_valid());
}

/// Waits for a renewal, so that the holder leads for as long as it can from now on.
async fn wait_for_renewal(first: &Leadership) -> Turn {
    tokio::select! {
        biased;
        _ = first.lost() => Err(HolderLost),
        _ = supervise::extended(first, first.deadline()) => Ok(()),
    }
}

/// A3, F48: durability is switched off, the holder renews, and the server comes back with the log from before.
pub(crate) async fn no_overlap_after_durability_was_switched_off() {
    turns(async || {
        let rig = Rig::new(DURABLE);
        let proxy = Proxy::start(rig.port).await;
        let a = candidate(&proxy.url(), "a").await;
        let first = wait_for_leadership(&a).await;
        rig.run::<()>("CONFIG SET appendonly no").await;
        pause(2 * TTL).await;
        wait_for_renewal(&first).await?;
        proxy.redirect_to(None);
        rig.kill();
        rig.start_again();
        let b = candidate(&rig.url(), "b").await;
        assert_successor(&b, &first).await;
        Ok(())
    })
    .await;
}

/// A4, F49: writes that were not fsynced during a rewrite are lost with the machine.
pub(crate) async fn no_overlap_after_unsynced_writes_were_lost() {
    let unsynced = [DURABLE, &["--no-appendfsync-on-rewrite", "yes"]].concat();
    turns(async || {
        let rig = Rig::new(&unsynced);
        // An earlier term, so that the server is not new to Tenure.
        let before = candidate(&rig.url(), "before").await;
        drop(wait_for_leadership(&before).await);
        before.stop().await;
        let log = rig.server.directory().join("appendonlydir");
        let fsynced = rig.server.directory().join("fsynced");
        copy(&log, &fsynced);
        pause(2 * TTL).await;
        let proxy = Proxy::start(rig.port).await;
        let a = candidate(&proxy.url(), "a").await;
        let first = wait_for_leadership(&a).await;
        wait_for_renewal(&first).await?;
        proxy.redirect_to(None);
        rig.kill();
        // What a crash of the machine leaves of a log whose end was not fsynced.
        std::fs::remove_dir_all(&log).expect("the server wrote its log there");
        copy(&fsynced, &log);
        rig.start_again();
        let b = candidate(&rig.url(), "b").await;
        assert_successor(&b, &first).await;
        Ok(())
    })
    .await;
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a new directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}

/// A5, F50: the new candidate uses a replica that accepts writes.
pub(crate) async fn no_overlap_on_a_writable_replica() {
    turns(async || {
        let (primary, replica) = (Rig::new(DURABLE), Rig::new(DURABLE));
        replica.run::<()>("CONFIG SET replica-read-only no").await;
        replicate(&replica, &primary).await;
        let a = candidate(&primary.url(), "a").await;
        let first = wait_for_leadership(&a).await;
        let store = open(&replica.url()).await;
        let refused = Election::builder("job").id("b").ttl(TTL).start(store).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Denied, "{refused}");
        assert!(first.is_valid());
        Ok(())
    })
    .await;
}

/// A6, F14: the promoted replica lacks the grant, and never had `tenure:server`.
pub(crate) async fn no_overlap_after_a_promotion_that_lost_the_grant() {
    turns(async || {
        let (primary, replica) = (Rig::new(DURABLE), Rig::new(NOT_DURABLE));
        let (to_holder, to_replica) =
            (Proxy::start(primary.port).await, Proxy::start(primary.port).await);
        replicate_from(&replica, to_replica.port()).await;
        pause(3 * TTL).await;
        to_replica.redirect_to(None);
        let a = candidate(&to_holder.url(), "a").await;
        let first = wait_for_leadership(&a).await;
        wait_for_renewal(&first).await?;
        to_holder.redirect_to(None);
        primary.kill();
        replica.run::<()>("REPLICAOF NO ONE").await;
        let b = candidate(&replica.url(), "b").await;
        assert_successor(&b, &first).await;
        Ok(())
    })
    .await;
}

/// A12: failover, failback and failover again with only renewals in between; the last one loses a renewal. The waiter has
/// observed the holder and follows to each primary.
pub(crate) async fn no_overlap_after_a_second_promotion() {
    turns(async || {
        let (one, two) = (Rig::new(DURABLE), Rig::new(DURABLE));
        let (holder, waiter) = (Proxy::start(one.port).await, Proxy::start(one.port).await);
        let to_replica = Proxy::start(one.port).await;
        let redirect_to = |port| {
            holder.redirect_to(Some(port));
            waiter.redirect_to(Some(port));
        };
        replicate(&two, &one).await;
        two.run::<()>("REPLICAOF NO ONE").await;
        redirect_to(two.port);
        let a = candidate(&holder.url(), "a").await;
        let first = wait_for_leadership(&a).await;
        let b = candidate(&waiter.url(), "b").await;
        // Failback to the first server, without a grant there.
        replicate(&one, &two).await;
        one.run::<()>("REPLICAOF NO ONE").await;
        redirect_to(one.port);
        replicate_from(&two, to_replica.port()).await;
        wait_for_renewal(&first).await?;
        wait_for_renewal(&first).await?;
        // The replica misses the last renewals.
        to_replica.redirect_to(None);
        wait_for_renewal(&first).await?;
        holder.redirect_to(None);
        one.kill();
        two.run::<()>("REPLICAOF NO ONE").await;
        waiter.redirect_to(Some(two.port));
        assert_successor(&b, &first).await;
        Ok(())
    })
    .await;
}
