//! The lines people read that `run` and `fleet run` have in common: spelled in `docs/CLI.md`.

use tenure::{CandidateId, Error};

/// One line, at its level, with what programs look for.
macro_rules! say {
    ($level:ident, $id:expr, $event:literal, $($text:tt)+) => {
        tracing::$level!(target: $crate::logs::LINE, candidate = %$id, event = $event, $($text)+)
    };
}
pub(crate) use say;

/// Whoever says what happens, for one candidate or member.
pub(crate) trait Common {
    fn id(&self) -> &CandidateId;

    fn unreachable(&self, error: &Error) {
        say!(warn, self.id(), "store", "{error}");
    }

    fn back(&self) {
        let id = self.id();
        say!(info, id, "store", "[{id}] The store answers again");
    }

    /// Something went wrong that we go on from.
    fn trouble(&self, text: &str) {
        let id = self.id();
        say!(warn, id, "trouble", "[{id}] {text}");
    }
}
