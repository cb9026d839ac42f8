//! The lines people read that `run` and `fleet run` have in common: spelled in `docs/CLI.md`.

use std::time::Duration;

use tenure::{CandidateId, Error};

use crate::duration::shown;
use crate::signals::KILL_WINDOW;

/// How long whoever is to end waits for a store that does not answer, when its work has ended and only the giving back is
/// left. Containers get ten seconds to stop, and who typed Ctrl-C has less patience.
pub(crate) const FAREWELL: Duration = Duration::from_secs(5);

/// One line, at its level, with what programs look for.
macro_rules! say {
    ($level:ident, $id:expr, $event:literal, $($text:tt)+) => {
        tracing::$level!(target: $crate::logs::LINE, candidate = %$id, event = $event, $($text)+)
    };
}
pub(crate) use say;

/// Whoever says what happens, for one candidate or member.
pub(crate) trait CommonMessages {
    fn id(&self) -> &CandidateId;

    fn unreachable(&self, error: &Error) {
        say!(warn, self.id(), "store", "{error}");
    }

    fn back(&self) {
        let id = self.id();
        say!(info, id, "store", "[{id}] The store answers again");
    }

    /// We end now, after [`FAREWELL`].
    fn left_behind(&self) {
        self.trouble("the store does not answer: what could not be given back runs out by itself");
    }

    /// The first Ctrl-C was passed on; `what` is killed by the next.
    fn next_interrupt_kills(&self, what: &str) {
        let (id, within) = (self.id(), shown(KILL_WINDOW));
        say!(info, id, "interrupt", "[{id}] Ctrl-C again within {within} kills {what}");
    }

    /// A process of the command could not be killed; which and why.
    fn not_stopped(&self, failure: &str) {
        let id = self.id();
        say!(error, id, "not-stopped", "[{id}] the command is not stopped: {failure}");
    }

    /// Something went wrong that we go on from.
    fn trouble(&self, text: &str) {
        let id = self.id();
        say!(warn, id, "trouble", "[{id}] {text}");
    }
}
