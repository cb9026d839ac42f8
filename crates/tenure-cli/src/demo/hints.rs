//! PURE: hints for each step of the demo: a command for another terminal, and what it shows.

use super::DemoFault;

/// The hint for a leader before the first fault.
pub(super) fn leader(port: u16) -> String {
    hint(port, "\"isLeader\":true, and false from all the others")
}

/// The hint for a leader to which the fault is about to happen.
pub(super) fn victim(fault: DemoFault, port: u16) -> String {
    let shows = match fault {
        DemoFault::Kill => "connection refused: its process is gone",
        DemoFault::Term => "connection refused once it has ended",
        DemoFault::Freeze => "no answer until it thaws",
        DemoFault::None => "as before",
    };
    hint(port, shows)
}

/// The hint for the new leader.
pub(super) fn successor(port: u16) -> String {
    hint(port, "\"isLeader\":true, and its \"count\" goes on where the other stopped")
}

/// The hint for a former leader that was frozen and runs again.
pub(super) fn thawed(port: u16) -> String {
    hint(port, "\"isLeader\":false, and \"lastPolled\" is when it last led")
}

fn hint(port: u16, shows: &str) -> String {
    format!("   Look:    curl localhost:{port}/status   {shows}")
}
