//! Histories in which the scripts once differed from the rules, each shrunk and under a name of its own.

use super::WITHOUT_WAIT;
use super::history::{ClaimStep, MEMBER, NameIndex, Operation, Pause, Step, WaitChoice};
use super::replay::Trace;
use super::test_server::TestServer;

async fn agree(history: Vec<Step>) {
    let replay = move || {
        let mut trace = Trace::written();
        let result = TestServer::new(WITHOUT_WAIT).replay(&history, &mut trace);
        result.map_err(|difference| format!("{difference}\n{}", trace.text()))
    };
    if let Err(difference) = tokio::task::spawn_blocking(replay).await.unwrap() {
        panic!("{difference}");
    }
}

/// Claims of one candidate with one nonce.
fn claim(name: NameIndex, wait: WaitChoice) -> Step {
    let (candidate, nonce, ttl_micros, note) = (0, 1, 5_000_000, "");
    let claim = ClaimStep { name, candidate, nonce, ttl_micros, note, wait, keeps_history: false };
    Step { pause: Pause::None, operation: Operation::Acquire(vec![claim]) }
}

/// The script kept the wait that was recorded before.
pub(crate) async fn a_repeated_claim_that_never_waits_ends_the_wait() {
    agree(vec![claim(0, WaitChoice::AtLeast(3_000_000)), claim(0, WaitChoice::Unusual)]).await;
}

/// The script kept what the first claim had decided, so the record was forgotten a day too early, or too late.
pub(crate) async fn a_repeated_claim_decides_whether_the_lease_is_ephemeral() {
    agree(vec![claim(MEMBER, WaitChoice::Usual), claim(MEMBER, WaitChoice::Unusual)]).await;
    agree(vec![claim(MEMBER, WaitChoice::Unusual), claim(MEMBER, WaitChoice::Usual)]).await;
}

/// The script told the holder of an ephemeral lease to wait and recorded nothing, so readers took it for the leader.
pub(crate) async fn the_wait_of_a_repeated_claim_is_recorded() {
    agree(vec![claim(MEMBER, WaitChoice::Usual), claim(MEMBER, WaitChoice::AtLeast(3_000_000))])
        .await;
}
