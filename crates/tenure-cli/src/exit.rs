//! The exit codes of the command.

use std::process::ExitCode;

use tenure::Kind;

/// The exit codes of `docs/CLI.md`. 1 means "no"; 120 and up are Tenure's own; all others are left to the command that `run`
/// wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done; or stopped by SIGINT or SIGTERM with no command running.
    Done,
    /// The answer is no: a check failed, an invariant is violated, or there is no leader.
    No,
    /// `--wait` has passed; another candidate leads.
    WaitedInVain,
    /// Leadership lost, with `--once`.
    LeadershipLost,
    /// The store is unreachable.
    Unreachable,
    /// An operator must act: denied, or what is stored is corrupt.
    Operator,
    /// Invalid usage or settings; nothing was attempted.
    Usage,
    /// The command cannot be run.
    CannotRun,
    /// The command is not found.
    NotFound,
    /// The exit code of the wrapped command, passed through; 128 plus the signal number if a signal killed it.
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
            // A kind that this build does not know must not be ignored.
            Kind::Denied | Kind::Corrupt | _ => Exit::Operator,
        }
    }
}
