//! Random histories run against the pure rules of a lease and against the Lua scripts on a real server: every answer agrees.
//!
//! The server's wall clock is a number that only the history moves, so both sides have the same time, hours pass at once, and
//! tokens, remaining times, waits and expiries are compared exactly. A failing history is shrunk and printed step by step.
//!
//! More histories: `TENURE_HISTORIES=100000`. The same again: `TENURE_SEED`, which every run prints.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use tenure_rig::redis_rig::server_clock::{COMPILER_HINT, has_compiler};
use tenure_rig::redis_rig::{DURABLE, NOT_DURABLE, main_with, tests};

mod history;
mod keyspace;
mod known_histories;
mod model;
mod replay;
mod server_model;
mod strategy;
mod test_server;

use known_histories::*;
use replay::Trace;
use strategy::Histories;
use test_server::{Setup, TestServer};

/// How many histories run without `TENURE_HISTORIES`; those with restarts are in addition.
const HISTORIES: u32 = 2_000;
/// How many histories with restarts run on each kind of server. A restart takes a tenth of a second.
const WITH_RESTARTS: u32 = 20;
/// Every acknowledged write is in the log, and may not be on disk: a power failure loses it, SIGKILL does not. (With
/// `everysec` SIGKILL loses some too: writes wait while the log is synced.)
const LOGGED: &[&str] = &["--appendonly", "yes", "--appendfsync", "no"];

const WITHOUT_WAIT: Setup = Setup {
    arguments: NOT_DURABLE,
    options: "?startup_wait=0s",
    durable: false,
    keeps_data: false,
};

fn main() -> ExitCode {
    let lacks = (!has_compiler()).then_some(COMPILER_HINT);
    let limit = Duration::from_secs(120) + Duration::from_millis(50) * histories();
    main_with(
        tests![
            histories_agree,
            histories_agree_without_a_startup_wait,
            histories_with_restarts_of_a_durable_server_agree,
            histories_with_restarts_of_a_server_that_may_lose_writes_agree,
            histories_with_restarts_of_a_server_that_loses_everything_agree,
            a_repeated_claim_that_never_waits_ends_the_wait,
            a_repeated_claim_decides_whether_the_lease_is_ephemeral,
            the_wait_of_a_repeated_claim_is_recorded,
        ],
        lacks,
        limit,
    )
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

fn histories() -> u32 {
    variable("TENURE_HISTORIES").map_or(HISTORIES, |count| u32::try_from(count).expect("fewer"))
}

async fn histories_agree() {
    let setup = Setup { options: "", ..WITHOUT_WAIT };
    run("histories_agree", setup, false, histories().div_ceil(2)).await;
}

async fn histories_agree_without_a_startup_wait() {
    run("histories_agree_without_a_startup_wait", WITHOUT_WAIT, false, histories() / 2).await;
}

async fn histories_with_restarts_of_a_durable_server_agree() {
    let setup = Setup { arguments: DURABLE, options: "", durable: true, keeps_data: true };
    run("… of a durable server", setup, true, WITH_RESTARTS).await;
}

async fn histories_with_restarts_of_a_server_that_may_lose_writes_agree() {
    let setup = Setup { arguments: LOGGED, options: "", durable: false, keeps_data: true };
    run("… of a server that may lose writes", setup, true, WITH_RESTARTS).await;
}

async fn histories_with_restarts_of_a_server_that_loses_everything_agree() {
    let setup = Setup { options: "", ..WITHOUT_WAIT };
    run("… of a server that loses everything", setup, true, WITH_RESTARTS).await;
}

/// Runs `count` random histories on one server. The histories wait for their answers on this thread, so it is not one of the
/// runtime's.
async fn run(what: &'static str, setup: Setup, restarts: bool, count: u32) {
    let seed = variable("TENURE_SEED").unwrap_or_else(|| fastrand::u64(..));
    let work = move || run_histories(what, setup, restarts, count, seed);
    if let Err(failure) = tokio::task::spawn_blocking(work).await.expect("no panic") {
        panic!("TENURE_SEED={seed} repeats this.\n{failure}");
    }
}

fn run_histories(
    what: &str,
    setup: Setup,
    restarts: bool,
    count: u32,
    seed: u64,
) -> Result<(), String> {
    let server = RefCell::new(TestServer::new(setup));
    let config = Config {
        cases: count,
        failure_persistence: None,
        max_shrink_iters: 5_000,
        ..Config::default()
    };
    let seed_bytes: Vec<u8> = seed.to_le_bytes().repeat(4);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed_bytes);
    let result = TestRunner::new_with_rng(config, rng).run(&Histories::new(restarts), |history| {
        let result = server.borrow_mut().replay(&history, &mut Trace::default());
        result.map_err(TestCaseError::fail)
    });
    let mut server = server.into_inner();
    match result {
        Ok(()) => {
            println!("{what}: {count} histories, seed {seed}, {:?}", server.counts);
            assert!(count < 100 || server.counts.rarest() >= u64::from(count) / 10, "too rare");
            Ok(())
        }
        Err(TestError::Abort(reason)) => Err(reason.to_string()),
        Err(TestError::Fail(reason, history)) => {
            let mut trace = Trace::written();
            let again = server.replay(&history, &mut trace);
            let again = again.map_or("", |()| "\nIt does not fail again!");
            Err(format!("{reason}\n\nThe history, shrunk:\n{}{again}", trace.text()))
        }
    }
}
