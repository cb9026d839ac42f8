//! Work while no command runs: between two slots, and in the leader itself. A guard without a command detects the leader's
//! death and releases the lease.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::trial;
use tenure_rig::servers::Scratch;
use tenure_rig::system::processes::{below, signal, watches_a_process};
use tenure_rig::system::time::poll_until;
use tenure_rig::system::trial_store::{StoreKind, TrialStore};

/// A candidate that waits for this TTL exceeds every limit.
const TTL: &str = "30s";
const SOON: Duration = Duration::from_secs(10);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, work) in [
        ("between_two_slots", &["--every", "365d", "--", "true"][..]),
        ("in_the_leader_itself", &["--mock", "--every", "365d"]),
    ] {
        let name = format!("at_rest::{name}::redis");
        trials.push(trial(name, StoreKind::Redis, move || dies_at_rest(work)));
    }
    trials
}

fn dies_at_rest(work: &'static [&'static str]) {
    let scratch = Scratch::in_memory();
    let place = TrialStore::open(StoreKind::Redis, scratch.path(), 2);
    let url = place.url();
    let mut nodes = ["a", "b"].map(|id| {
        let node = start(&url, id, work);
        if id == "a" {
            poll_until(SOON, || (leader(&url).as_deref() == Some("a")).then_some(()))
                .expect("a leads");
        }
        node
    });
    // Only the guard is left, which watches its leader already, and no command.
    let idle = poll_until(SOON, || match below(nodes[0].id())[..] {
        [guard] if watches_a_process(guard) => Some(()),
        _ => None,
    });
    idle.expect("a guard and nothing else");
    signal(nodes[0].id(), Signal::KILL);
    nodes[0].wait().unwrap();
    let led = poll_until(SOON, || (leader(&url).as_deref() == Some("b")).then_some(()));
    led.expect("b leads long before the lease has run out");
    signal(nodes[1].id(), Signal::TERM);
    assert!(nodes[1].wait().unwrap().success());
    assert_eq!(leader(&url), None);
}

fn start(url: &str, id: &str, work: &[&str]) -> Child {
    let mut tenure = Command::new(env!("CARGO_BIN_EXE_tenure"));
    tenure.args(["-q", "run", "at-rest", "--node-id", id, "--lease-duration", TTL]).args(work);
    tenure.env("TENURE_STORE", url).stdin(Stdio::null()).spawn().unwrap()
}

fn leader(url: &str) -> Option<String> {
    let mut tenure = Command::new(env!("CARGO_BIN_EXE_tenure"));
    let output = tenure.args(["--json", "status", "at-rest"]).env("TENURE_STORE", url).output();
    let status: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).ok()?;
    Some(status["currentLeader"].as_str()?.to_owned())
}
