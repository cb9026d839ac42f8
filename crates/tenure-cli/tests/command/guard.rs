//! The guard, with the test in the leader's place: what it does when the line ends and the leader lives.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use serde_json::json;
use tenure::store::Scope;
use tenure::{CandidateId, Claim, Clock, Hold, Name, Nonce};

use crate::candidates::{NAME, Place};
use crate::support::eventually;

/// Long, so that nothing ends because its time has run out.
const TTL: Duration = Duration::from_secs(60);

/// A lease of ours, and a guard over `sleep` that was told of it. Whoever drops the socket hangs up.
fn guarded(place: &Place) -> (Hold, Child, std::os::fd::OwnedFd) {
    let id = CandidateId::new("a").unwrap();
    let claim = Claim::new(Name::new(NAME).unwrap(), id, Nonce::random(), TTL);
    let granted = place.runtime.block_on(place.store.acquire(&[claim])).unwrap().remove(0);
    let hold = granted.unwrap().held().unwrap().hold;
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let mut command: Command = place.world.command(&["guard", "sleep", "60"]);
    let guard = command.stdin(Stdio::from(theirs)).spawn().unwrap();
    let setup = json!({
        "store": place.store.url(), "name": NAME, "candidate": "a",
        "nonce": hold.nonce.to_string(), "token": hold.token.get(),
        "deadline": (Clock::boot().now() + TTL).as_nanos(), "stop_within_ms": 1000,
        "on_lose": null, "leader": std::process::id(), "log": "Text",
    });
    let setup = serde_json::to_vec(&setup).unwrap();
    let sent = rustix::net::send(&ours, &setup, SendFlags::empty()).unwrap();
    assert_eq!(sent, setup.len());
    (hold, guard, ours)
}

fn holder(place: &Place) -> Option<Nonce> {
    let scope = Scope::name(&Name::new(NAME).unwrap());
    let lease = place.runtime.block_on(place.store.observe(&scope)).unwrap().remove(0).unwrap();
    lease.holder.and_then(|holder| holder.nonce)
}

#[test]
fn the_end_of_the_line_with_a_living_leader_kills_the_command_and_releases_nothing() {
    let place = Place::new();
    let (hold, mut guard, line) = guarded(&place);
    // The guard and the command.
    eventually("the command runs", || place.world.processes().len() == 2);
    drop(line);
    assert!(guard.wait().unwrap().success());
    assert!(place.world.processes().is_empty(), "the command is gone before its guard");
    assert_eq!(holder(&place), Some(hold.nonce), "still ours: the leader lives");
}
