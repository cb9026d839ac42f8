//! PURE: what to look at in each step, as a command for another terminal and what it shows.

use super::Fault;

/// The leader counts in peace.
pub(super) fn leader(port: u16) -> String {
    look(port, "\"isLeader\":true, and false from all the others")
}

/// This is about to happen to the leader.
pub(super) fn victim(fault: Fault, port: u16) -> String {
    let shows = match fault {
        Fault::Kill => "nobody answers there any more",
        Fault::Term => "nobody answers there once it has ended",
        Fault::Freeze => "no answer until it thaws",
        Fault::None => "as before",
    };
    look(port, shows)
}

/// This one leads now.
pub(super) fn successor(port: u16) -> String {
    look(port, "\"isLeader\":true, and its \"count\" goes on where the other stopped")
}

/// This one led, was frozen, and is not any more.
pub(super) fn thawed(port: u16) -> String {
    look(port, "\"isLeader\":false, and \"lastPolled\" is when it last led")
}

fn look(port: u16, shows: &str) -> String {
    format!("   Look:    curl localhost:{port}/status   {shows}")
}
