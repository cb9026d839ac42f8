//! What can happen to a machine, and what it wants done.

use std::sync::Arc;
use std::time::Duration;

use super::priority::OtherCandidates;
use crate::clock::Moment;
use crate::error::{Error, Kind, Result};
use crate::lease::{
    Answer, CandidateId, Checkpoint, ClaimedWait, Grant, Hold, Lease, Nonce, Release, StartupWait,
    Token,
};
use crate::store::Change;

/// The number of a request; its answer carries it back. Answers to any but the last request are not looked at.
pub type RequestId = u64;

/// What can happen to a machine.
#[derive(Clone, Debug)]
pub enum Input {
    /// It is [`Machine::wake_at`](super::Machine::wake_at) or later.
    Woke,
    /// The answer to [`Action::Acquire`].
    Acquired(RequestId, Result<Answer<Grant>>),
    /// The answer to [`Action::Renew`].
    Renewed(RequestId, Result<Answer>),
    /// The answer to [`Action::Release`].
    Released(RequestId, Result<()>),
    /// The answer to [`Action::Observe`]; `None` if the name was never used.
    Observed(RequestId, Result<Option<Lease>>),
    /// The store's watch gave a hint.
    Changed(Change),
    /// Somebody outside asked for something.
    Asked(Request),
    /// The application resigns, and names whom it prefers next.
    Resign(Option<CandidateId>),
    /// Whether the application has any use for leading has changed.
    Wanted(bool),
    /// Whether this candidate is fit to lead has changed.
    Health(bool),
    /// The note that claims carry has changed: a holder sends it now. Ignored unless the lease
    /// [grants no right](super::Machine::begin_without_right).
    NoteChanged,
    /// Whether the store keeps a drain of this candidate; `None` if it did not answer.
    DrainRecord(Option<bool>),
    /// The other candidates have changed, as far as they are known.
    Rivals(Arc<OtherCandidates>),
    /// The work of the term has ended. Expected after every [`Action::Lead`], once, and not before [`Action::End`].
    WorkEnded,
    /// Give up for good.
    Stop,
}

impl Input {
    /// Whether it is an answer of the store, and not the lack of one.
    pub(crate) fn is_definite(&self) -> bool {
        match self {
            Input::Acquired(_, answer) => answer.is_ok(),
            Input::Renewed(_, answer) => answer.is_ok(),
            Input::Released(_, answer) => answer.is_ok(),
            Input::Observed(_, answer) => answer.is_ok(),
            _ => false,
        }
    }
}

/// What can be asked of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Stop leading now, and let this one come next.
    Resign(Option<CandidateId>),
    /// Stop leading, and do not campaign until told otherwise.
    Drain,
    /// Campaign again.
    Undrain,
}

/// What a machine wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Claim the lease with this nonce; the holder will wait like this before it leads.
    Acquire(RequestId, Nonce, ClaimedWait),
    /// Renew it.
    Renew(RequestId, Hold),
    /// Release it: the work has ended.
    Release(RequestId, Release),
    /// Look at the lease without claiming it.
    Observe(RequestId),
    /// The lease was granted in this term, and is not led before a start-up wait is over.
    Starting(Token, StartupWait),
    /// A term begins: start the work.
    Lead(Box<TermStart>),
    /// The term goes on; its new deadline.
    Extend(Moment),
    /// The term is over: end the work, and say [`Event::WorkEnded`] when it has ended.
    End(TermEnd),
    /// The store has taken back the lease of this term.
    Released(Token),
    /// Another candidate holds the lease now, or none; and whether the holder leads: it is not in its start-up wait.
    HolderChanged(Option<String>, bool),
    /// The store does not answer, or answers with an error. Reported again when an answered error follows.
    Unreachable(Error),
    /// The store answers again.
    Back,
    /// A second living candidate with this candidate's id holds the lease. Reported once between two terms of this candidate.
    SameId,
    /// Something an operator should know.
    Warn(String),
}

/// How a term begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermStart {
    /// Its proof.
    pub hold: Hold,
    /// What the last leader left.
    pub checkpoint: Option<Checkpoint>,
    /// When to stop believing.
    pub deadline: Moment,
}

/// How a term ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermEnd {
    /// Why.
    pub why: EndReason,
    /// Until when the work may still have effects while it stops; past already after a refusal.
    pub deadline: Moment,
}

/// Why a term ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// Renewals have failed since then, until it was time to stop.
    Unreachable(Moment),
    /// The store answered with this error: at once for [`Kind::Corrupt`]; for other kinds, renewals have failed until it
    /// was time to stop.
    StoreError(Error),
    /// This process did not run, and the time to stop went by; nothing had happened here for so long.
    Paused(Duration),
    /// The store says that the lease is not ours any more; who has it, if anybody.
    Refused(Option<String>),
    /// The application resigned, or its work has come to an end.
    Resigned,
    /// Somebody outside asked for it.
    Asked,
    /// This candidate is not fit to lead.
    Unhealthy,
    /// This candidate is drained.
    Drained,
    /// This candidate is shutting down.
    Shutdown,
}

impl EndReason {
    /// Whether the store has said that the lease is not this candidate's any more: the work has no time left to stop, and
    /// there is nothing to release.
    pub fn ends_at_once(&self) -> bool {
        match self {
            EndReason::Refused(_) => true,
            EndReason::StoreError(error) => error.kind() == Kind::Corrupt,
            _ => false,
        }
    }
}

/// Where a machine stands, in the words of the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Somebody else leads, or nobody; this one waits for its turn.
    Waiting,
    /// Holding the lease without leading yet, because an earlier leader may still be at work.
    Starting,
    /// Leading.
    Leading,
    /// The work is being stopped, or the lease is being given back.
    Resigning,
    /// Given up for good.
    Stopped,
}

impl Phase {
    /// The word used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Waiting => "waiting",
            Phase::Starting => "starting",
            Phase::Leading => "leading",
            Phase::Resigning => "stopping",
            Phase::Stopped => "stopped",
        }
    }
}
