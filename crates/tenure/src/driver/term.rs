//! [`Term`]: one term, shared by all of its handles: the proof, the deadline, and the number of handles.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::mpsc;

use super::{DriverCommand, HandleInput, MachineId};
use crate::clock::{Clock, Moment};
use crate::election::Saved;
use crate::error::Result;
use crate::fork_check::ProcessId;
use crate::lease::{Answer, Checkpoint, Hold};
use crate::machine::TermStart;
use crate::store::Store;

/// The state that all handles of one term share.
pub(crate) struct Term {
    pub(crate) hold: Hold,
    pub(crate) checkpoint: Option<Checkpoint>,
    machine: MachineId,
    deadline: AtomicU64,
    state: Mutex<TermState>,
    /// The number of saves so far: each save has its own number.
    saves: AtomicU64,
    pub(crate) context: Arc<Context>,
}

/// What a term needs from its election or fleet member.
pub(crate) struct Context {
    pub(crate) clock: Clock,
    /// The application's own connection: a checkpoint never delays a renewal.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) commands: mpsc::UnboundedSender<DriverCommand>,
    /// A forked child has no renewals, so it holds nothing.
    pub(crate) process: ProcessId,
}

impl Context {
    /// Sends an input to the driver. A driver that has ended needs none.
    pub(crate) fn tell(&self, machine: MachineId, input: HandleInput) {
        let _ = self.commands.send(DriverCommand::Input(machine, input));
    }
}

#[derive(Default)]
struct TermState {
    ended: bool,
    ended_at: Moment,
    handles: u32,
}

impl Term {
    pub(crate) fn begin(machine: MachineId, lead: TermStart, context: Arc<Context>) -> Self {
        Term {
            hold: lead.hold,
            checkpoint: lead.checkpoint,
            machine,
            deadline: AtomicU64::new(lead.deadline.as_nanos()),
            state: Mutex::default(),
            saves: AtomicU64::new(0),
            context,
        }
    }

    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn extend(&self, deadline: Moment) {
        self.deadline.store(deadline.as_nanos(), Ordering::Release);
    }

    /// Ends the term: the work must stop by `deadline`. Returns whether no handle is left, that is, the work has ended.
    pub(crate) fn end(&self, deadline: Moment) -> bool {
        self.extend(deadline);
        let mut state = self.state();
        if !state.ended {
            state.ended_at = self.context.clock.now();
        }
        state.ended = true;
        state.handles == 0
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.context.clock.now() < self.deadline() && self.context.process.is_current()
    }

    pub(crate) fn valid_for(&self) -> Duration {
        if !self.is_valid() {
            return Duration::ZERO;
        }
        self.deadline().since(self.context.clock.now())
    }

    /// Whether the term continues: it is valid, and its work was not notified to stop.
    pub(crate) fn continues(&self) -> bool {
        self.is_valid() && !self.state().ended
    }

    /// Adds a handle, unless the term has ended. After a pause this may run before the driver, which has not ended the term
    /// yet. So this checks the clock too; otherwise work would start in a term that is over.
    pub(crate) fn enter(&self) -> bool {
        let mut state = self.state();
        if state.ended || self.context.clock.now() >= self.deadline() {
            return false;
        }
        state.handles += 1;
        true
    }

    /// Adds a handle next to an existing one.
    pub(crate) fn add_handle(&self) {
        self.state().handles += 1;
    }

    /// Removes a handle. No I/O: the last handle notifies the driver, which does the rest.
    pub(crate) fn exit(&self) {
        let mut state = self.state();
        state.handles -= 1;
        if state.handles == 0 && state.ended {
            self.context.tell(self.machine, HandleInput::WorkEnded);
        }
    }

    /// How long the work has continued after its time was over. A refusal sets the deadline far into the past, so the time
    /// counts from the moment of the refusal.
    pub(crate) fn overrun(&self, now: Moment) -> Duration {
        let state = self.state();
        let over = self.deadline().max(state.ended_at);
        if state.handles == 0 { Duration::ZERO } else { now.since(over) }
    }

    /// Saves a checkpoint. If a caller sends a save before the last one was answered, they may arrive out of order: then the
    /// store refuses the older one.
    pub(crate) async fn save(&self, checkpoint: &Checkpoint) -> Result<Saved> {
        let number = self.saves.fetch_add(1, Ordering::Relaxed) + 1;
        let answer = self.context.store.save(&self.hold, number, checkpoint).await?;
        Ok(match answer {
            Answer::Held(()) => Saved::Kept,
            Answer::Taken(_) => Saved::Lost,
        })
    }

    pub(crate) fn send_input(&self, input: HandleInput) {
        self.context.tell(self.machine, input);
    }

    fn state(&self) -> MutexGuard<'_, TermState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
