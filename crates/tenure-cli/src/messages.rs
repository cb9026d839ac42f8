//! The log messages that `run` and `fleet run` share, as specified in `docs/CLI.md`.

use std::time::Duration;

use tenure::{CandidateId, Error};

use crate::duration::shown;
use crate::signals::KILL_WINDOW;

/// How long a process that was told to stop waits for a store that does not answer, when its work has ended and only the
/// release is left. Containers get ten seconds to stop, and a user who pressed Ctrl-C expects less.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Logs one message at its level, with the structured fields that log processors use.
macro_rules! say {
    ($level:ident, $id:expr, $event:literal, $($text:tt)+) => {
        tracing::$level!(target: $crate::logs::LINE_TARGET, candidate = %$id, event = $event, $($text)+)
    };
}
pub(crate) use say;

/// Logs the events of one candidate or member.
pub(crate) trait CommonMessages {
    fn id(&self) -> &CandidateId;

    fn unreachable(&self, error: &Error) {
        say!(warn, self.id(), "store", "{error}");
    }

    fn back(&self) {
        let id = self.id();
        say!(info, id, "store", "[{id}] The store answers again");
    }

    /// This process exits after the release timeout, although some leases are not released.
    fn not_released(&self) {
        self.warning("the store does not answer: what could not be given back runs out by itself");
    }

    /// The first Ctrl-C was forwarded; the next one kills `what`.
    fn next_interrupt_kills(&self, what: &str) {
        let (id, within) = (self.id(), shown(KILL_WINDOW));
        say!(info, id, "interrupt", "[{id}] Ctrl-C again within {within} kills {what}");
    }

    /// A process of the command could not be killed; `failure` names the process and the reason.
    fn not_stopped(&self, failure: &str) {
        let id = self.id();
        say!(error, id, "not-stopped", "[{id}] the command is not stopped: {failure}");
    }

    /// A problem that does not end this process.
    fn warning(&self, text: &str) {
        let id = self.id();
        say!(warn, id, "trouble", "[{id}] {text}");
    }
}
