//! Every way in which the command ends.

use std::process::ExitCode;

use tenure::Kind;

/// The exit codes of `docs/CLI.md`. 1 is an answer, 120 and up are ours, everything else is left to
/// the command that `run` wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done; or stopped by SIGINT or SIGTERM with no command running.
    Done,
    /// The answer is no: a check failed, an invariant broke, nobody leads.
    No,
    /// `--wait` ran out, somebody else leads.
    WaitedInVain,
    /// Leadership lost, with `--once`.
    LeadershipLost,
    /// The store is unreachable.
    Unreachable,
    /// An operator must act: denied, or what is stored is corrupt.
    Operator,
    /// Usage or settings; nothing was tried.
    Usage,
    /// The command cannot be run.
    CannotRun,
    /// The command is not found.
    NotFound,
    /// The command's own, passed through; 128 and the signal's number if it died of one.
    Passed(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::No => 1,
            Exit::WaitedInVain => 120,
            Exit::LeadershipLost => 121,
            Exit::Unreachable => 122,
            Exit::Operator => 123,
            Exit::Usage => 125,
            Exit::CannotRun => 126,
            Exit::NotFound => 127,
            Exit::Passed(code) => code,
        })
    }
}

impl From<Kind> for Exit {
    fn from(kind: Kind) -> Exit {
        match kind {
            Kind::Unavailable => Exit::Unreachable,
            Kind::Invalid => Exit::Usage,
            // A kind this build does not know of is not something to shrug off.
            Kind::Denied | Kind::Corrupt | _ => Exit::Operator,
        }
    }
}
