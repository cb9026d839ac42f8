//! [`Term`]: one term, shared by all of its handles: the proof, the deadline, and the number of handles.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::{DriverCommand, HandleInput, MachineId};
use crate::clock::{Clock, Moment};
use crate::election::Saved;
use crate::error::{Error, Result};
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
    /// The runtime of the driver's thread, set before the first term. A term of a test has no driver.
    pub(crate) runtime: OnceLock<Handle>,
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
    /// No work may begin in the term any more: its last handle was dropped, or its caller has ended it.
    closed: bool,
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

    /// Whether new work may begin: the term is valid, and its work was not notified to stop.
    pub(crate) fn continues(&self) -> bool {
        self.is_valid() && !self.state().ended
    }

    /// Adds a handle, unless the term has ended. After a pause this may run before the driver, which has not ended the term
    /// yet. So this checks the clock too; otherwise work would start in a term that is over.
    pub(crate) fn enter(&self) -> bool {
        let mut state = self.state();
        if state.ended || state.closed || self.context.clock.now() >= self.deadline() {
            return false;
        }
        state.handles += 1;
        true
    }

    /// Lets no more handles be added, before the driver has processed the end of the term.
    pub(crate) fn close(&self) {
        self.state().closed = true;
    }

    /// How many handles exist.
    pub(crate) fn handles(&self) -> u32 {
        self.state().handles
    }

    /// Adds a handle next to an existing one.
    pub(crate) fn add_handle(&self) {
        self.state().handles += 1;
    }

    /// Removes a handle. No I/O: the last handle notifies the driver, which does the rest. Without a handle no work runs, so a
    /// term that has not ended ends now: it would only keep the lease from candidates that work.
    pub(crate) fn exit(&self) {
        let mut state = self.state();
        state.handles -= 1;
        if state.handles > 0 {
            return;
        }
        state.closed = true;
        let input = match state.ended {
            true => HandleInput::WorkEnded,
            false => HandleInput::Dropped(self.hold.token),
        };
        self.context.tell(self.machine, input);
    }

    /// How long the work has continued after its time was over. A refusal sets the deadline far into the past, so the time
    /// counts from the moment of the refusal.
    pub(crate) fn overrun(&self, now: Moment) -> Duration {
        let state = self.state();
        let over = self.deadline().max(state.ended_at);
        if state.handles == 0 { Duration::ZERO } else { now.since(over) }
    }

    /// Saves a checkpoint, until the deadline at the latest. If a caller sends a save before the last one was answered, they may
    /// arrive out of order: then the store refuses the older one.
    ///
    /// The call runs on the driver's runtime, so the caller needs none. It goes on if the caller drops this future; `in_flight`
    /// is dropped when it has ended.
    pub(crate) async fn save(
        &self,
        checkpoint: Checkpoint,
        in_flight: impl Send + 'static,
    ) -> Result<Saved> {
        let number = self.saves.fetch_add(1, Ordering::Relaxed) + 1;
        let (store, hold) = (self.context.store.clone(), self.hold.clone());
        let (clock, deadline) = (self.context.clock.clone(), self.deadline());
        let save = async move {
            let _in_flight = in_flight;
            tokio::select! {
                answer = store.save(&hold, number, &checkpoint) => answer,
                () = clock.sleep_until(deadline) => Err(Error::unavailable(format!(
                    "no answer to a save of '{}' before the deadline of its term", hold.name
                ))),
            }
        };
        let answer = match self.context.runtime.get() {
            Some(runtime) => runtime.spawn(save).await.unwrap_or_else(|_| {
                Err(Error::unavailable("the election has ended, and its driver with it"))
            }),
            None => save.await,
        };
        Ok(match answer? {
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
