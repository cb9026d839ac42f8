//! The Redis store with a round trip of 300 ms to its server, with and without TLS, at the default TTL (F45, B1).
//!
//! `TENURE_HOLD_SECS=60` lets each leader lead for a minute before the failover.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::ExitCode;
use std::time::Duration;

use tenure::supervise::SupervisedTerm as _;
use tenure::{Clock, Election, Leadership};

use tenure_rig::redis_rig::certificates::Authority;
use tenure_rig::redis_rig::delay_line::{DelayLine, ONE_WAY};
use tenure_rig::redis_rig::tls_server::Secure;
use tenure_rig::redis_rig::{DURABLE, Rig, acquire, claim, open, pause, tests};
use tenure_rig::servers::Scratch;
use tenure_rig::stall_monitor::StallMonitor;

/// The timeout against hanging, on a machine with other load.
const HANG_TIMEOUT: Duration = Duration::from_secs(40);

fn main() -> ExitCode {
    tenure_rig::redis_rig::main(tests![
        elections_fail_over_at_300_ms,
        elections_over_tls_fail_over_at_300_ms,
        a_connection_attempt_outlives_its_callers,
        the_error_of_an_attempt_without_callers_is_reported,
    ])
}

fn plain_url(line: &DelayLine) -> String {
    format!("redis://127.0.0.1:{}", line.port())
}

async fn candidate(url: &str, name: &str, id: &str) -> Election {
    let starting = Election::builder(name).id(id).start(open(url).await);
    tokio::time::timeout(HANG_TIMEOUT, starting).await.expect("it starts").expect("a candidate")
}

async fn leads(election: &Election) -> Leadership {
    let leads = tokio::time::timeout(HANG_TIMEOUT, election.leadership()).await;
    leads.expect("it leads in time").expect("it was not stopped")
}

/// A request that takes 487 ms has failed at the default TTL. On a machine that stands still for longer than this, the round trip
/// is no longer one of 300 ms.
const STALL: Duration = Duration::from_millis(100);

/// Two candidates at the default TTL, each behind its own delay line: the first leads and loses nothing, and the second takes
/// over when the line of the first is cut. Repeated if the machine stood still.
async fn fail_over(server: u16, url: impl Fn(&DelayLine) -> String) {
    for round in 0.. {
        let stalls = StallMonitor::start();
        match fail_over_once(server, &format!("job-{round}"), &url).await {
            Ok(()) => return,
            Err(lost) if stalls.longest() < STALL => {
                panic!("{lost}; the machine stood still for {:?} at most", stalls.longest())
            }
            Err(lost) => {
                println!("once more: the machine stood still for {:?}: {lost}", stalls.longest())
            }
        }
    }
}

/// An error if a leader lost its lease to the latency.
async fn fail_over_once(
    server: u16,
    name: &str,
    url: impl Fn(&DelayLine) -> String,
) -> Result<(), String> {
    let first_line = DelayLine::start(server, ONE_WAY).await;
    let second_line = DelayLine::start(server, ONE_WAY).await;
    let a = candidate(&url(&first_line), name, "a").await;
    let first = leads(&a).await;
    let b = candidate(&url(&second_line), name, "b").await;
    let hold = std::env::var("TENURE_HOLD_SECS").ok().and_then(|secs| secs.parse().ok());
    pause(Duration::from_secs(hold.unwrap_or(10))).await;
    if !first.is_valid() {
        return Err(format!("lost: {:?} {:?}", a.status(), a.renewals()));
    }
    assert!(!b.is_leader());
    drop(first_line);
    let second = leads(&b).await;
    let (now, deadline) = (Clock::boot().now(), first.deadline());
    assert!(now >= deadline, "two leaders for {:?}", deadline.since(now));
    assert!(second.token() > first.token(), "the token grows");
    // The second leader keeps its lease.
    pause(Duration::from_secs(6)).await;
    match second.is_valid() {
        true => Ok(()),
        false => Err(format!("lost: {:?} {:?}", b.status(), b.renewals())),
    }
}

async fn elections_fail_over_at_300_ms() {
    let rig = Rig::new(DURABLE);
    fail_over(rig.port, plain_url).await;
}

async fn elections_over_tls_fail_over_at_300_ms() {
    let scratch = Scratch::new();
    let authority = Authority::new(scratch.path(), "ca");
    let files = authority.sign(scratch.path(), "server", &["localhost"], false);
    let server = Secure::new(&authority, &files, "no");
    let url = |line: &DelayLine| format!("rediss://localhost:{}?ca={}", line.port(), authority.ca);
    fail_over(server.port, url).await;
}

/// Callers that give up long before the connection is made do not start another attempt.
async fn a_connection_attempt_outlives_its_callers() {
    let rig = Rig::new(DURABLE);
    let line = DelayLine::start(rig.port, ONE_WAY).await;
    let store = open(&plain_url(&line)).await;
    let clock = Clock::boot();
    let start = clock.now();
    let ours = claim("a", "me");
    let mut calls = 0;
    // Each call ends before its own answer can arrive: only the shared attempt makes progress.
    while line.accepted() == 0 || clock.now().since(start) < 6 * ONE_WAY {
        let call = tokio::time::timeout(ONE_WAY / 2, acquire(&*store, &ours));
        assert!(call.await.is_err(), "no answer can have arrived");
        calls += 1;
    }
    let grant = acquire(&*store, &ours).await.unwrap().held().expect("it is free");
    assert_eq!(grant.hold.name, ours.name);
    assert!(calls > 1);
    assert_eq!(line.accepted(), 1, "one connection after {calls} calls that gave up");
}

/// A refused password is reported even if no caller waited for the end of the attempt.
async fn the_error_of_an_attempt_without_callers_is_reported() {
    let rig = Rig::with(&["--requirepass", "right"], ":right@");
    let line = DelayLine::start(rig.port, ONE_WAY).await;
    let store = open(&format!("redis://:wrong@127.0.0.1:{}", line.port())).await;
    let ours = claim("a", "me");
    let call = tokio::time::timeout(ONE_WAY / 2, acquire(&*store, &ours));
    assert!(call.await.is_err(), "no answer can have arrived");
    // By then the attempt has failed.
    pause(6 * ONE_WAY).await;
    let error = acquire(&*store, &ours).await.unwrap_err();
    assert!(error.to_string().contains("check user and password"), "{error}");
    assert_eq!(line.accepted(), 1, "no second attempt");
}
