//! The Redis store while its server is killed, frozen, flushed, restored, at its limits, and
//! meddled with.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::ExitCode;
use std::time::Duration;

use futures_util::StreamExt;
use rustix::process::Signal;
use tenure::store::{Change, Grade, Revoke, Scope, Verdict};
use tenure::{Answer, Ended, Kind, Release};

#[path = "redis_faults/proxy.rs"]
mod proxy;
mod redis_rig;
#[path = "conformance/servers.rs"]
#[allow(dead_code, reason = "shared with the conformance trials")]
mod servers;

use proxy::Proxy;
use redis_rig::{
    DURABLE, FORGETFUL, Rig, TTL, acquire, claim, granted, open, pause, release, renew, taken,
    tests,
};

fn main() -> ExitCode {
    redis_rig::main(tests![
        a_store_that_is_down_says_so,
        killed_and_back_works_again,
        killed_connections_are_replaced,
        flushed_scripts_are_sent_again,
        flushed_leases_are_lost_and_begin_anew,
        a_deleted_key_is_held_back_until_its_time,
        expiry_changed_by_a_stranger_is_not_ours,
        a_key_of_another_type_is_corrupt,
        huge_and_unreadable_values_are_strangers,
        a_broken_index_stands_in_nobodys_way,
        garbage_about_the_server_is_not_relied_on,
        a_young_server_is_quarantined,
        a_server_that_went_back_in_time_breaks_the_chain,
        a_durable_restart_breaks_nothing,
        out_of_memory_is_unavailable,
        a_busy_server_is_unavailable,
        a_replica_is_unavailable_and_bad,
        a_promoted_replica_is_quarantined,
        a_frozen_server_costs_one_call,
        late_answers_are_nobodys,
        replies_cut_anywhere_leave_no_confusion,
        a_watch_is_made_again,
        examination_is_honest,
    ])
}

async fn a_store_that_is_down_says_so() {
    let port = servers::free_port();
    let store = open(&format!("redis://u:geheim@127.0.0.1:{port}/3")).await;
    let error = acquire(&*store, &claim("a", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert_eq!(
        error.to_string(),
        format!(
            "cannot reach redis://127.0.0.1:{port}: connection refused. Is Redis running? \
             Try 'docker compose up -d redis' or 'redis-server', or give --store."
        )
    );
    let store = open("redis://no-such-host.invalid").await;
    let error = acquire(&*store, &claim("a", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
}

async fn killed_and_back_works_again() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    rig.kill();
    assert_eq!(renew(&*store, &grant.hold).await.unwrap_err().kind(), Kind::Unavailable);
    rig.start_again();
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
}

async fn killed_connections_are_replaced() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    for _ in 0..5 {
        rig.run::<i64>("CLIENT KILL TYPE normal SKIPME yes").await;
        pause(Duration::from_millis(50)).await;
        assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
    }
}

async fn flushed_scripts_are_sent_again() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    rig.run::<()>("SCRIPT FLUSH").await;
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
    rig.run::<()>("SCRIPT FLUSH").await;
    let many: Vec<_> = (0..5_000).map(|i| claim(&format!("n{i}"), "me")).collect();
    let answers = store.acquire(&many).await.unwrap();
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().is_held()));
}

async fn flushed_leases_are_lost_and_begin_anew() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    rig.run::<()>("FLUSHALL").await;
    let lease = taken(renew(&*store, &grant.hold).await);
    assert_eq!((lease.holder, lease.token), (None, None));
    assert_eq!(rig.run::<i64>("DBSIZE").await, 0, "a renewal makes nothing");
    let next = granted(&*store, &claim("a", "other")).await;
    assert!(next.hold.token > grant.hold.token, "the clock is a floor under the tokens");
    assert_eq!(next.lineage.before, Ended::Nothing);
    assert_ne!(next.lineage.origin, grant.lineage.origin);
}

/// The companion knows how long the holder may still believe.
async fn a_deleted_key_is_held_back_until_its_time() {
    let rig = Rig::new(DURABLE);
    let store = open(&format!("{}?quarantine=0s", rig.url())).await;
    let first = granted(&*store, &claim("a", "me")).await;
    assert_eq!(first.quarantine, Duration::ZERO);
    rig.run::<()>("DEL a").await;
    let seen = store.observe(&Scope::name(&first.hold.name)).await.unwrap().remove(0).unwrap();
    assert_eq!((seen.holder, seen.lineage.unwrap().before), (None, Ended::Nothing));
    assert_eq!(taken(renew(&*store, &first.hold).await).holder, None);
    assert_eq!(rig.run::<i64>("EXISTS a").await, 0, "a renewal does not bring it back");

    let waits = |grant: &tenure::Grant| {
        let wait = grant.quarantine;
        assert!(wait > TTL - Duration::from_secs(5) && wait <= TTL, "{wait:?}");
        assert_eq!(grant.lineage.before, Ended::Nothing);
    };
    let newcomer = claim("a", "newcomer");
    let second = granted(&*store, &newcomer).await;
    waits(&second);
    assert!(second.hold.token > first.hold.token);
    assert_eq!(second.lineage.origin, second.hold.token);
    // Also when the reply was lost, and for whoever comes after one that did not wait for the end
    // of it.
    waits(&granted(&*store, &newcomer).await);
    release(&*store, &second.hold).await;
    let third = granted(&*store, &claim("a", "third")).await;
    assert!(third.quarantine > TTL - Duration::from_secs(5), "{:?}", third.quarantine);
    assert_eq!(third.lineage.before, Ended::Released(second.hold.token));
}

async fn expiry_changed_by_a_stranger_is_not_ours() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    for (number, meddle) in
        ["PEXPIRE KEY 5000", "PEXPIRE KEY 500000", "PERSIST KEY", "SETEX KEY 7 me", "SET KEY me"]
            .iter()
            .enumerate()
    {
        let claim = claim(&format!("k{number}"), "me");
        let grant = granted(&*store, &claim).await;
        rig.run::<redis::Value>(&meddle.replace("KEY", &format!("k{number}"))).await;
        for lease in
            [taken(renew(&*store, &grant.hold).await), taken(acquire(&*store, &claim).await)]
        {
            let holder = lease.holder.expect("a stranger");
            assert_eq!((holder.id.as_str(), holder.nonce), ("me", None), "{meddle}");
            assert!(!lease.left.is_zero(), "{meddle}");
        }
        release(&*store, &grant.hold).await;
        assert_eq!(rig.run::<i64>(&format!("EXISTS k{number}")).await, 1, "{meddle}");
    }
}

async fn a_key_of_another_type_is_corrupt() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    rig.run::<()>("DEL a").await;
    rig.run::<()>("RPUSH a 1 2").await;
    assert_eq!(renew(&*store, &grant.hold).await.unwrap_err().kind(), Kind::Corrupt);
    let error = acquire(&*store, &claim("a", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("'tenure:{a}'"), "{error}");
    assert_eq!(rig.run::<String>("TYPE a").await, "list");
}

async fn huge_and_unreadable_values_are_strangers() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    for value in [vec![b'x'; 10 << 20], b"\xff\xfe\x00\n".to_vec(), Vec::new()] {
        let set =
            [b"SET".to_vec(), b"big".to_vec(), value.clone(), b"PX".to_vec(), b"9000".to_vec()];
        rig.run_bytes::<()>(&set).await;
        let lease = taken(acquire(&*store, &claim("big", "me")).await);
        let id = lease.holder.expect("a stranger").id;
        assert!(id.chars().count() <= 256, "{} characters", id.len());
        assert_eq!(id.is_empty(), value.is_empty());
        let error = store.revoke(&lease.name, Revoke::Now).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
    }
    assert_eq!(rig.run::<i64>("EXISTS big").await, 1);
}

async fn a_broken_index_stands_in_nobodys_way() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    let all = Scope::Prefix(String::new());
    rig.run::<()>("SET tenure:index nonsense").await;
    assert_eq!(store.observe(&all).await.unwrap_err().kind(), Kind::Corrupt);
    granted(&*store, &claim("b", "me")).await;
    rig.run::<()>("DEL tenure:index").await;
    assert!(store.observe(&all).await.unwrap().is_empty());
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
    assert_eq!(store.observe(&all).await.unwrap().len(), 1, "a renewal puts it back");
}

/// What the server is known by is garbage as well: nothing is relied on, and nothing stands still.
async fn garbage_about_the_server_is_not_relied_on() {
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

async fn a_young_server_is_quarantined() {
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
async fn a_server_that_went_back_in_time_breaks_the_chain() {
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

async fn a_durable_restart_breaks_nothing() {
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

async fn out_of_memory_is_unavailable() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    rig.run::<()>("CONFIG SET maxmemory 1mb").await;
    for error in [
        acquire(&*store, &claim("b", "me")).await.unwrap_err(),
        renew(&*store, &grant.hold).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("OOM"), "{error}");
    }
    assert_eq!(rig.run::<i64>("EXISTS b tenure:{b}").await, 0, "nothing is half done");
    // A release that cannot be written is not half done either.
    let answers = store.release(&[Release::from(grant.hold.clone())]).await;
    assert_eq!(answers.unwrap_err().kind(), Kind::Unavailable);
    rig.run::<()>("CONFIG SET maxmemory 0").await;
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
}

async fn a_busy_server_is_unavailable() {
    let rig = Rig::new(&["--lua-time-limit", "50"]);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    let mut admin = rig.admin().await;
    let endless = tokio::spawn(async move {
        let mut command = redis::cmd("EVAL");
        let _ = command.arg("while true do end").arg(0).query_async::<()>(&mut admin).await;
    });
    pause(Duration::from_millis(300)).await;
    let error = renew(&*store, &grant.hold).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("BUSY"), "{error}");
    let client = redis::Client::open(rig.url()).unwrap();
    let mut killer = client.get_multiplexed_async_connection().await.unwrap();
    redis::cmd("SCRIPT").arg("KILL").query_async::<()>(&mut killer).await.unwrap();
    endless.await.unwrap();
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
}

async fn a_replica_is_unavailable_and_bad() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    rig.run::<()>(&format!("REPLICAOF 127.0.0.1 {}", servers::free_port())).await;
    let error = renew(&*store, &grant.hold).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("READONLY"), "{error}");
    let report = store.examine().await.unwrap();
    let role = report.checks.iter().find(|check| check.what == "role").unwrap();
    assert_eq!((role.verdict, report.grade), (Verdict::Bad, Grade::C));
    rig.run::<()>("REPLICAOF NO ONE").await;
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
}

async fn a_promoted_replica_is_quarantined() {
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

async fn a_frozen_server_costs_one_call() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    rig.signal(Signal::STOP);
    let limit = Duration::from_millis(300);
    assert!(tokio::time::timeout(limit, renew(&*store, &grant.hold)).await.is_err());
    rig.signal(Signal::CONT);
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
    let before = rig.run::<String>("INFO stats").await;
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
    let after = rig.run::<String>("INFO stats").await;
    let connections = |info: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    // One of ours is the administrator's: the store itself has kept its new connection.
    assert_eq!(connections(&after), connections(&before) + 1);
}

async fn late_answers_are_nobodys() {
    let rig = Rig::new(DURABLE);
    let proxy = Proxy::start(rig.port).await;
    let store = open(&proxy.url()).await;
    let grant = granted(&*store, &claim("a", "me")).await;
    for round in 0..10 {
        proxy.hold_replies(Duration::from_millis(150));
        let name = format!("late-{round}");
        let limit = Duration::from_millis(50);
        assert!(tokio::time::timeout(limit, acquire(&*store, &claim(&name, "x"))).await.is_err());
        proxy.hold_replies(Duration::ZERO);
        // Were the late answer taken for this call's, it would be Held with another name's token.
        assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
        let lease = taken(acquire(&*store, &claim("a", "you")).await);
        assert_eq!(lease.token, Some(grant.hold.token));
    }
}

async fn replies_cut_anywhere_leave_no_confusion() {
    let rig = Rig::new(DURABLE);
    let proxy = Proxy::start(rig.port).await;
    let store = open(&proxy.url()).await;
    let ours = claim("a", "me");
    let token = granted(&*store, &ours).await.hold.token;
    let mut cuts = 0;
    for bytes in 1..120 {
        proxy.cut_after(bytes);
        match acquire(&*store, &ours).await {
            Ok(answer) => assert_eq!(answer.held().expect("ours").hold.token, token),
            Err(error) => {
                assert_eq!(error.kind(), Kind::Unavailable, "{error}");
                cuts += 1;
            }
        }
        proxy.cut_after(usize::MAX);
        pause(Duration::from_millis(2)).await;
        let again = loop {
            match acquire(&*store, &ours).await {
                Ok(answer) => break answer,
                Err(error) => assert_eq!(error.kind(), Kind::Unavailable, "{error}"),
            }
        };
        assert_eq!(again.held().expect("ours").hold.token, token);
    }
    assert!(cuts > 50, "the cuts were felt: {cuts}");
}

async fn a_watch_is_made_again() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    let mut changes = store.watch(&Scope::name(&grant.hold.name));
    let mut next = async || {
        let change = tokio::time::timeout(Duration::from_secs(10), changes.next()).await;
        change.expect("something comes").expect("the watch goes on")
    };
    assert_eq!(next().await, Change::Look);
    rig.run::<i64>("CLIENT KILL TYPE pubsub").await;
    assert_eq!(next().await, Change::Look, "it listens again");
    rig.kill();
    rig.start_again();
    assert_eq!(next().await, Change::Look, "and after a restart");
    release(&*store, &grant.hold).await;
    assert_eq!(next().await, Change::Freed { name: grant.hold.name, next: None });
}

async fn examination_is_honest() {
    let verdict = |report: &tenure::store::Report, what: &str| {
        report.checks.iter().find(|check| check.what == what).unwrap().verdict
    };
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let report = store.examine().await.unwrap();
    assert!(report.what.starts_with("Redis 7."), "{}", report.what);
    assert_eq!(report.grade, Grade::B, "{report:?}");
    assert!(report.round_trip > Duration::ZERO && report.round_trip < Duration::from_secs(1));
    rig.run::<()>("CONFIG SET appendfsync everysec").await;
    let report = store.examine().await.unwrap();
    assert_eq!((report.grade, verdict(&report, "durability")), (Grade::C, Verdict::Weak));
    rig.run::<()>("CONFIG SET appendfsync always maxmemory 100mb maxmemory-policy allkeys-lru")
        .await;
    let report = store.examine().await.unwrap();
    assert_eq!((report.grade, verdict(&report, "eviction")), (Grade::C, Verdict::Weak));
    // What may not be asked is not taken for good.
    rig.run::<()>("CONFIG SET maxmemory-policy noeviction").await;
    rig.run::<()>("ACL SETUSER default -config -info").await;
    let report = store.examine().await.unwrap();
    assert_eq!((report.grade, verdict(&report, "durability")), (Grade::C, Verdict::Weak));
    assert!(matches!(acquire(&*store, &claim("a", "me")).await, Ok(Answer::Held(_))));
}
