//! One term as those who work in it share it: its proof, its deadline, and whether any work is left.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::mpsc;

use super::{DriverCommand, HandleInput, MachineId};
use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::fork_check::ProcessId;
use crate::lease::{Answer, Checkpoint, Hold};
use crate::machine::TermStart;
use crate::store::Store;

use super::leadership::Saved;

/// What all the handles of one term share.
pub(crate) struct Term {
    pub(crate) hold: Hold,
    pub(crate) checkpoint: Option<Checkpoint>,
    place: MachineId,
    deadline: AtomicU64,
    life: Mutex<TermState>,
    /// How many saves there were: each has a number of its own.
    saves: AtomicU64,
    pub(crate) context: Arc<Context>,
}

/// What a term needs from whoever drives it.
pub(crate) struct Context {
    pub(crate) clock: Clock,
    /// The application's own handle: a checkpoint never gets in the way of a renewal.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) commands: mpsc::UnboundedSender<DriverCommand>,
    /// A forked child has no renewals: there nothing is held.
    pub(crate) process: ProcessId,
}

impl Context {
    /// Tells the driver; one that is gone has nothing to be told.
    pub(crate) fn tell(&self, place: MachineId, said: HandleInput) {
        let _ = self.commands.send(DriverCommand::Tell(place, said));
    }
}

#[derive(Default)]
struct TermState {
    ended: bool,
    ended_at: Moment,
    handles: u32,
}

impl Term {
    pub(crate) fn begin(place: MachineId, lead: TermStart, context: Arc<Context>) -> Self {
        Term {
            hold: lead.hold,
            checkpoint: lead.checkpoint,
            place,
            deadline: AtomicU64::new(lead.deadline.as_nanos()),
            life: Mutex::default(),
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

    /// The work is to end by then. Returns whether no handle is left: then it has ended.
    pub(crate) fn end(&self, deadline: Moment) -> bool {
        self.extend(deadline);
        let mut life = self.life();
        if !life.ended {
            life.ended_at = self.context.clock.now();
        }
        life.ended = true;
        life.handles == 0
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

    /// Whether it goes on: valid, and nobody has told its work to stop.
    pub(crate) fn goes_on(&self) -> bool {
        self.is_valid() && !self.life().ended
    }

    /// Counts one handle more, unless the term has ended. After a pause we may run before the driver, which has yet to say so:
    /// the clock is asked here too, or work would begin in a term that is over.
    pub(crate) fn enter(&self) -> bool {
        let mut life = self.life();
        if life.ended || self.context.clock.now() >= self.deadline() {
            return false;
        }
        life.handles += 1;
        true
    }

    /// Counts one handle more beside one that is there.
    pub(crate) fn enter_beside(&self) {
        self.life().handles += 1;
    }

    /// Counts one handle less. No I/O: the driver is told when the last one goes, and does the rest.
    pub(crate) fn exit(&self) {
        let mut life = self.life();
        life.handles -= 1;
        if life.handles == 0 && life.ended {
            self.context.tell(self.place, HandleInput::WorkEnded);
        }
    }

    /// How long the work has gone on after its time was over. A refusal sets the deadline far into the past, and is heard of
    /// only when it comes.
    pub(crate) fn overrun(&self, now: Moment) -> Duration {
        let life = self.life();
        let over = self.deadline().max(life.ended_at);
        if life.handles == 0 { Duration::ZERO } else { now.since(over) }
    }

    /// Whoever sends one before the last was answered may see them arrive in another order: then the older is refused.
    pub(crate) async fn save(&self, checkpoint: &Checkpoint) -> Result<Saved> {
        let number = self.saves.fetch_add(1, Ordering::Relaxed) + 1;
        let answer = self.context.store.save(&self.hold, number, checkpoint).await?;
        Ok(match answer {
            Answer::Held(()) => Saved::Kept,
            Answer::Taken(_) => Saved::Lost,
        })
    }

    pub(crate) fn tell(&self, said: HandleInput) {
        self.context.tell(self.place, said);
    }

    fn life(&self) -> MutexGuard<'_, TermState> {
        self.life.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
