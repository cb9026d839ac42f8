//! The commands of an application to its driver: inputs for a machine, and machines to add.

use std::fmt;
use std::sync::Arc;

use super::{DriverEvents, MachineId};
use crate::clock::Moment;
use crate::health::HealthResult;
use crate::lease::{CandidateId, Claim, ClaimedWait, Nonce, Note, Token};
use crate::machine::{Input as MachineInput, Machine, OtherCandidates, Phase, Request};

/// An input from the application to a machine. Smaller than [`MachineInput`]: a hundred thousand may be queued.
#[derive(Debug)]
pub(crate) enum HandleInput {
    Wanted(bool),
    Resign(Option<CandidateId>),
    Drain,
    Undrain,
    /// The result of the health check, with the reason of a failure.
    Health(HealthResult),
    /// The new note of the lease.
    Note(Note),
    Rivals(Arc<OtherCandidates>),
    WorkEnded,
    /// The last handle of this term was dropped before the term ended.
    Dropped(Token),
    Stop,
}

impl From<HandleInput> for MachineInput {
    fn from(input: HandleInput) -> MachineInput {
        match input {
            HandleInput::Wanted(wanted) => MachineInput::Wanted(wanted),
            HandleInput::Resign(next) => MachineInput::Resign(next),
            HandleInput::Drain => MachineInput::Requested(Request::Drain),
            HandleInput::Undrain => MachineInput::Requested(Request::Undrain),
            HandleInput::Health(result) => MachineInput::Health(result.is_ok()),
            HandleInput::Note(_) => MachineInput::NoteChanged,
            HandleInput::Rivals(rivals) => MachineInput::Rivals(rivals),
            HandleInput::WorkEnded => MachineInput::WorkEnded,
            HandleInput::Dropped(token) => MachineInput::Dropped(token),
            HandleInput::Stop => MachineInput::Stop,
        }
    }
}

/// A command from the application to the driver.
#[derive(Debug)]
pub(crate) enum DriverCommand {
    Input(MachineId, HandleInput),
    /// Adds a machine.
    Add(MachineId, Box<MachineSlot>),
    /// Removes one machine at once and leaves its lease to its TTL.
    Remove(MachineId),
    /// No more machines will be added: end when all machines have stopped.
    Close,
    /// Stop at once and leave the leases to their TTL.
    Abandon,
}

/// One machine and its state in the driver.
pub(crate) struct MachineSlot {
    pub(crate) machine: Machine,
    /// The callbacks that this machine's effects are reported to.
    pub(super) events: Arc<dyn DriverEvents>,
    pub(crate) note: Note,
    pub(crate) ends_with_process: bool,
    /// Whether the record of the lease keeps the terms that ended.
    pub(crate) keeps_history: bool,
    /// Whether the machine accepts requests from outside.
    pub(crate) accepts_requests: bool,
    /// The last request that the machine has processed: each request is processed once.
    pub(super) last_request: Option<Token>,
    /// When the timers will wake the machine.
    pub(super) due: Option<Moment>,
    pub(super) phase: Phase,
    /// The index of the requests that are sent together: those of machines with the same timing.
    pub(super) group: usize,
}

impl fmt::Debug for MachineSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineSlot").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl MachineSlot {
    pub(crate) fn new(machine: Machine, events: Arc<dyn DriverEvents>) -> Self {
        MachineSlot {
            phase: machine.phase(),
            machine,
            events,
            note: Note::default(),
            ends_with_process: false,
            keeps_history: false,
            accepts_requests: false,
            last_request: None,
            due: None,
            group: 0,
        }
    }

    pub(super) fn claim(&self, nonce: Nonce, wait: ClaimedWait) -> Claim {
        let machine = &self.machine;
        Claim {
            name: machine.name().clone(),
            candidate: machine.candidate().clone(),
            nonce,
            ttl: machine.timing().ttl,
            note: self.note.clone(),
            ends_with_process: self.ends_with_process,
            wait,
            keeps_history: self.keeps_history,
        }
    }
}
