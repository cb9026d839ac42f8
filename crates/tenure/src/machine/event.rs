//! The inputs and effects of a [`Machine`](super::Machine), and the values that they carry.

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

/// The number of a request. Its answer carries the same number. The machine ignores answers to any request but the last.
pub type RequestId = u64;

/// An input of a machine.
///
/// Exhaustive on purpose: a driver decides for each input when it occurs, so a new one concerns every driver.
#[derive(Clone, Debug)]
pub enum Input {
    /// It is [`Machine::wake_at`](super::Machine::wake_at) or later.
    Woke,
    /// The answer to [`Effect::Acquire`].
    Acquired(RequestId, Result<Answer<Grant>>),
    /// The answer to [`Effect::Renew`].
    Renewed(RequestId, Result<Answer>),
    /// The answer to [`Effect::Release`].
    Released(RequestId, Result<()>),
    /// The answer to [`Effect::Observe`]; `None` if the name was never used.
    Observed(RequestId, Result<Option<Lease>>),
    /// The store's watch reported a hint.
    Changed(Change),
    /// A request arrived from outside.
    Requested(Request),
    /// The application resigns, and may name a preferred successor.
    Resign(Option<CandidateId>),
    /// The application wants to lead, or no longer wants to.
    Wanted(bool),
    /// The candidate became healthy or unhealthy.
    Health(bool),
    /// The note that claims carry has changed. A holder sends it now. Ignored unless the lease [grants no
    /// right](super::MachineConfig::grants_no_right).
    NoteChanged,
    /// Whether the store has recorded a drain of this candidate; `None` if the store did not answer.
    DrainRecord(Option<bool>),
    /// The set of known other candidates has changed.
    Rivals(Arc<OtherCandidates>),
    /// The work of the term has ended. The machine expects it once after every [`Effect::Lead`], and not before
    /// [`Effect::End`].
    WorkEnded,
    /// The application dropped the last handle of this term before the term ended, so no work runs in it. The machine ends the
    /// term, releases the lease, and campaigns again after the pause of a candidate that resigned.
    Dropped(Token),
    /// Stop for good: release the lease and do not campaign again.
    Stop,
}

impl Input {
    /// Whether this is an answer of the store, not the lack of one.
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

/// A request to a candidate from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Stop leading now, and name this candidate as the successor.
    Resign(Option<CandidateId>),
    /// Stop leading, and do not campaign until [`Undrain`](Self::Undrain).
    Drain,
    /// Campaign again.
    Undrain,
}

/// An effect of a machine: what the caller must do.
///
/// Exhaustive on purpose: a driver that ignored an effect would break the rules of the election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Claim the lease with this nonce and this start-up wait.
    Acquire(RequestId, Nonce, ClaimedWait),
    /// Renew the lease.
    Renew(RequestId, Hold),
    /// Release the lease: the work has ended.
    Release(RequestId, Release),
    /// Observe the lease without claiming it.
    Observe(RequestId),
    /// The lease was granted in this term. The candidate does not lead before this start-up wait is over.
    Starting(Token, StartupWait),
    /// A term begins: start the work.
    Lead(Box<TermStart>),
    /// The term goes on until this new deadline.
    Extend(Moment),
    /// The term is over: stop the work, and send [`Input::WorkEnded`] when it has ended.
    End(TermEnd),
    /// The store has released the lease of this term.
    Released(Token),
    /// Another candidate holds the lease now, or none does; and whether the holder leads, that is, is not in its start-up wait.
    HolderChanged(Option<String>, bool),
    /// The store does not answer, or answers with an error. Reported again if an answered error follows.
    Unreachable(Error),
    /// The store answers again.
    Back,
    /// A second living candidate with this candidate's id holds the lease. Reported once between two terms of this candidate.
    SameId,
    /// A warning for the operator.
    Warn(String),
}

/// The start of a term.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TermStart {
    /// The proof that this candidate holds the lease.
    pub hold: Hold,
    /// The checkpoint that the last leader saved.
    pub checkpoint: Option<Checkpoint>,
    /// When this candidate must stop considering itself the leader, unless the term is extended.
    pub deadline: Moment,
}

/// The end of a term.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TermEnd {
    /// The reason why the term ended.
    pub reason: EndReason,
    /// Until when the work may still have effects while it stops. Already in the past after a refusal.
    pub deadline: Moment,
}

/// Why a term ended.
///
/// [`EndReason::as_str`] and [`Display`](std::fmt::Display) give one stable word for each reason, without the details: a label for
/// metrics and logs.
///
/// ```
/// use std::time::Duration;
/// use tenure::machine::EndReason;
///
/// assert_eq!(EndReason::Paused(Duration::from_secs(5)).as_str(), "process-paused");
/// assert_eq!(EndReason::Refused(None).to_string(), "refused");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// Renewals have failed since this moment, until it was time to stop.
    Unreachable(Moment),
    /// The store answered with this error. For [`Kind::Corrupt`] the term ended at once; for other kinds, renewals failed until
    /// it was time to stop.
    StoreError(Error),
    /// This process was paused for this long, and the time to stop passed meanwhile.
    Paused(Duration),
    /// The store answered that this candidate no longer holds the lease. The id of the current holder, if there is one.
    Refused(Option<String>),
    /// The application resigned, or its work has ended.
    Resigned,
    /// The last handle of the term was dropped: by a return, a cancellation or a panic of the work.
    Dropped,
    /// A request from outside.
    Asked,
    /// This candidate is unhealthy.
    Unhealthy,
    /// This candidate is drained.
    Drained,
    /// This candidate is shutting down.
    Shutdown,
}

impl EndReason {
    /// The word used as a label in metrics, logs and JSON.
    pub fn as_str(&self) -> &'static str {
        match self {
            EndReason::Unreachable(_) => "unreachable",
            EndReason::StoreError(_) => "store-error",
            // Not `paused`: that is an operator's pause of a fleet's shard.
            EndReason::Paused(_) => "process-paused",
            EndReason::Refused(_) => "refused",
            EndReason::Resigned => "resigned",
            EndReason::Dropped => "dropped",
            EndReason::Asked => "asked",
            EndReason::Unhealthy => "unhealthy",
            EndReason::Drained => "drain",
            EndReason::Shutdown => "shutdown",
        }
    }

    /// Whether the store has answered that this candidate no longer holds the lease: the work has no time left to stop, and
    /// there is nothing to release.
    pub fn ends_at_once(&self) -> bool {
        match self {
            EndReason::Refused(_) => true,
            EndReason::StoreError(error) => error.kind() == Kind::Corrupt,
            _ => false,
        }
    }
}

/// The phase of a machine, as the status reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Another candidate leads, or none does. This candidate waits for a free lease.
    Waiting,
    /// Holding the lease without leading yet, because an earlier leader may still be working.
    Starting,
    /// This candidate leads, until its deadline at the latest.
    Leading,
    /// The work is stopping, or the lease is being released.
    Resigning,
    /// Stopped for good.
    Stopped,
}

impl Phase {
    /// The word used as a label in metrics, logs and JSON.
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
