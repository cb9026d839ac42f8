//! The Redis store while its server is killed, frozen, flushed, restored or at its limits, and while other clients change its
//! keys.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::ExitCode;
use std::time::Duration;

use futures_util::StreamExt;
use rustix::process::Signal;
use tenure::store::{Change, Grade, Scope, Verdict};
use tenure::{Answer, Kind, Release};

mod clock_set_back;
mod foreign_keys;
mod lost_leases;
mod proxy;
mod startup_wait;

use clock_set_back::*;
use foreign_keys::*;
use lost_leases::*;
use proxy::Proxy;
use startup_wait::*;
use tenure_rig::redis_rig::{
    DURABLE, Rig, acquire, claim, granted, open, pause, release, renew, taken, tests,
};

fn main() -> ExitCode {
    tenure_rig::redis_rig::main(tests![
        a_server_that_is_down_is_reported,
        a_restarted_server_works_again,
        killed_connections_are_replaced,
        flushed_scripts_are_sent_again,
        flushed_leases_are_lost_and_start_again,
        after_a_deleted_key_the_next_holder_waits_for_its_time,
        a_key_whose_expiry_was_changed_is_a_foreign_holder,
        a_key_of_another_type_is_corrupt,
        huge_and_unreadable_values_are_foreign_holders,
        a_broken_index_blocks_no_claim_or_renewal,
        a_lost_index_is_complete_after_one_round_of_renewals,
        a_hold_is_compared_in_every_field,
        a_durable_server_that_just_started_grants_at_once,
        the_first_holder_on_any_other_server_waits_for_one_ttl,
        a_wait_survives_release_and_a_new_grant,
        a_longer_wait_of_the_holder_is_recorded,
        durability_switched_off_at_run_time_is_detected_and_causes_a_wait,
        a_log_whose_first_rewrite_is_pending_is_not_durable,
        a_durable_run_after_one_that_was_not_waits,
        a_server_that_went_back_in_time_makes_the_next_holder_wait,
        garbage_about_the_server_is_not_trusted,
        out_of_memory_is_unavailable,
        a_busy_server_is_unavailable,
        a_server_that_becomes_a_replica_is_unavailable,
        a_promoted_replica_waits_from_its_promotion,
        a_replica_that_is_promoted_again_waits_again,
        a_writable_replica_is_refused,
        no_overlap_after_durability_was_switched_off,
        no_overlap_after_unsynced_writes_were_lost,
        no_overlap_on_a_writable_replica,
        no_overlap_after_a_promotion_that_lost_the_grant,
        no_overlap_after_a_second_promotion,
        a_clock_set_back_delays_the_next_holder_by_one_ttl,
        a_clock_set_back_takes_no_lease_from_its_holder,
        a_clock_set_back_does_not_lengthen_a_wait,
        a_revocation_at_once_works_after_a_clock_was_set_back,
        a_deleted_key_after_a_clock_was_set_back_delays_by_one_ttl,
        times_out_of_range_are_corrupt,
        a_frozen_server_costs_one_call,
        calls_in_flight_are_bounded,
        late_answers_are_discarded,
        replies_cut_at_any_byte_are_never_misread,
        a_broken_watch_reconnects,
        examine_reports_weak_settings,
    ])
}

async fn a_server_that_is_down_is_reported() {
    let port = tenure_rig::servers::free_port();
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

async fn a_restarted_server_works_again() {
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
    let endless_script = tokio::spawn(async move {
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
    endless_script.await.unwrap();
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
}

async fn a_server_that_becomes_a_replica_is_unavailable() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    rig.run::<()>(&format!("REPLICAOF 127.0.0.1 {}", tenure_rig::servers::free_port())).await;
    let error = renew(&*store, &grant.hold).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("READONLY"), "{error}");
    let error = store.examine().await.unwrap_err();
    assert!(error.to_string().contains("name its primary instead"), "{error}");
    rig.run::<()>("REPLICAOF NO ONE").await;
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
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
    // One of the new connections is the administrator's: the store itself has kept the connection that it made after the
    // freeze.
    assert_eq!(connections(&after), connections(&before) + 1);
}

/// B2: calls that time out and are repeated do not pile up on a server that does not answer.
async fn calls_in_flight_are_bounded() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let hold = granted(&*store, &claim("a", "me")).await.hold;
    assert!(renew(&*store, &hold).await.unwrap().is_held(), "the script is known by its hash");
    rig.run::<()>("CONFIG RESETSTAT").await;
    rig.signal(Signal::STOP);
    let limit = Duration::from_millis(300);
    for _ in 0..5 {
        let calls = (0..100).map(|_| tokio::time::timeout(limit, renew(&*store, &hold)));
        let answers = futures_util::future::join_all(calls).await;
        assert!(answers.iter().all(Result::is_err), "the server is stopped");
    }
    rig.signal(Signal::CONT);
    assert!(renew(&*store, &hold).await.unwrap().is_held());
    let stats = rig.run::<String>("INFO commandstats").await;
    let count = |command: &str| -> u64 {
        let prefix = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    let executed = count("eval") + count("evalsha");
    assert!(executed <= 40, "of 501 calls the server got {executed}");
}

async fn late_answers_are_discarded() {
    let rig = Rig::new(DURABLE);
    let proxy = Proxy::start(rig.port).await;
    let store = open(&proxy.url()).await;
    let grant = granted(&*store, &claim("a", "me")).await;
    for round in 0..10 {
        proxy.delay_replies(Duration::from_millis(150));
        let name = format!("late-{round}");
        let limit = Duration::from_millis(50);
        assert!(tokio::time::timeout(limit, acquire(&*store, &claim(&name, "x"))).await.is_err());
        proxy.delay_replies(Duration::ZERO);
        // If the late answer were taken for the answer to this call, it would be Held with another name's token.
        assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
        let lease = taken(acquire(&*store, &claim("a", "you")).await);
        assert_eq!(lease.token, Some(grant.hold.token));
    }
}

async fn replies_cut_at_any_byte_are_never_misread() {
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

async fn a_broken_watch_reconnects() {
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

async fn examine_reports_weak_settings() {
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
    // What the user may not read does not count as good.
    rig.run::<()>("CONFIG SET maxmemory-policy noeviction").await;
    rig.run::<()>("ACL SETUSER default -config -info").await;
    let report = store.examine().await.unwrap();
    assert_eq!((report.grade, verdict(&report, "durability")), (Grade::C, Verdict::Weak));
    assert!(matches!(acquire(&*store, &claim("a", "me")).await, Ok(Answer::Held(_))));
}
