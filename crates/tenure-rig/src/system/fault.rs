//! The faults that hit a leader.

use rustix::process::Signal;
use tenure::Moment;

use super::election_trial::{ElectionTrial, ObservedTerm, TIMEOUT};
use super::freezer::Frozen;
use super::processes::{below, is_stopped, signal};
use super::time::{now, poll_until};

/// The names are those of the command line, plus `kill-pair` and `guard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL to the leader process.
    Kill,
    /// SIGKILL to the leader, the guard, the command and its descendants.
    KillTree,
    /// SIGKILL to the leader and the guard; the command is left alone.
    KillPair,
    /// SIGTERM to the leader process.
    Term,
    /// SIGSTOP to the leader process.
    Freeze,
    /// Freezes the leader, the guard, the command and its descendants.
    FreezeTree,
    /// Nothing passes between the leader's processes and the store.
    Cut,
    /// SIGKILL to the guard.
    Guard,
}

impl Fault {
    pub const ALL: [Fault; 8] = [
        Fault::Kill,
        Fault::KillTree,
        Fault::KillPair,
        Fault::Term,
        Fault::Freeze,
        Fault::FreezeTree,
        Fault::Cut,
        Fault::Guard,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::KillTree => "kill-tree",
            Fault::KillPair => "kill-pair",
            Fault::Term => "term",
            Fault::Freeze => "freeze",
            Fault::FreezeTree => "freeze-tree",
            Fault::Cut => "cut",
            Fault::Guard => "guard",
        }
    }

    /// Whether the command line accepts this fault.
    pub fn is_public(self) -> bool {
        !matches!(self, Fault::KillPair | Fault::Guard)
    }

    /// Injects the fault. Returns the moment just before.
    pub fn strike(self, stage: &ElectionTrial, term: &ObservedTerm) -> (Moment, Option<Frozen>) {
        let sent = |pid, which| {
            let at = now();
            signal(pid, which);
            (at, None)
        };
        match self {
            Fault::Kill => sent(term.leader, Signal::KILL),
            Fault::Term => sent(term.leader, Signal::TERM),
            Fault::Freeze => sent(term.leader, Signal::STOP),
            Fault::Guard => sent(term.guard, Signal::KILL),
            Fault::FreezeTree => {
                let (frozen, at) = Frozen::new(term.leader, stage.mark());
                (at, Some(frozen))
            }
            Fault::KillTree | Fault::KillPair => {
                // Stopped first, so that the guard does not observe the others die.
                signal(term.guard, Signal::STOP);
                poll_until(TIMEOUT, || is_stopped(term.guard).then_some(())).expect("it stops");
                let at = now();
                signal(term.leader, Signal::KILL);
                if self == Fault::KillTree {
                    below(term.guard).into_iter().for_each(|pid| signal(pid, Signal::KILL));
                }
                signal(term.guard, Signal::KILL);
                (at, None)
            }
            Fault::Cut => {
                let at = now();
                stage.place.cable(term.who).cut();
                (at, None)
            }
        }
    }
}
