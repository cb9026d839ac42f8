//! [`Leadership`]: one term, as the work sees it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::Command;
use super::handle::ONLY;
use crate::clock::{Clock, Moment};
use crate::election::{Ending, Event as MachineEvent, Lead, Why};
use crate::error::Result;
use crate::fork::Process;
use crate::lease::{Answer, Checkpoint, Hold, Token};
use crate::store::Store;

/// One term of this candidate, handed to the work that may run in it.
///
/// Clone it for every task that works in the term. As long as one of the clones is there, the work counts as running:
/// after the term has ended the lease is released, and the next campaign begins, only when all of them are dropped.
///
/// ```
/// # async fn example(leadership: tenure::Leadership) -> tenure::Result<()> {
/// while leadership.is_valid() {
///     // … one step of the work, with leadership.token() in whatever it writes …
///     leadership.save("step 1 done").await?;
/// }
/// # Ok(()) }
/// ```
pub struct Leadership {
    term: Arc<Term>,
}

/// Whether a checkpoint was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a checkpoint that was not kept means that somebody else leads"]
pub enum Saved {
    /// The successor will find it.
    Kept,
    /// The term is over, so nothing was written.
    Lost,
}

/// What all the handles of one term share.
pub(super) struct Term {
    pub(super) hold: Hold,
    checkpoint: Option<Checkpoint>,
    deadline: AtomicU64,
    /// Changes with the deadline, for whoever hands it on; the deadline itself is read without a lock.
    extended: watch::Sender<()>,
    life: Mutex<Life>,
    lost: watch::Sender<Option<Why>>,
    /// The number of the last save; held while one is under way, so that they arrive in order.
    saves: tokio::sync::Mutex<u64>,
    context: Context,
}

/// What a term needs from its election.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) clock: Clock,
    /// The application's own handle: a checkpoint never gets in the way of a renewal.
    pub(super) store: Arc<dyn Store>,
    pub(super) commands: mpsc::UnboundedSender<Command>,
    /// A forked child has no renewals: there nothing is held.
    pub(super) process: Process,
}

#[derive(Default)]
struct Life {
    ended: bool,
    ended_at: Moment,
    handles: usize,
}

impl Term {
    pub(super) fn begin(lead: Lead, context: Context) -> Arc<Self> {
        Arc::new(Term {
            hold: lead.hold,
            checkpoint: lead.checkpoint,
            deadline: AtomicU64::new(lead.deadline.as_nanos()),
            extended: watch::channel(()).0,
            life: Mutex::default(),
            lost: watch::channel(None).0,
            saves: tokio::sync::Mutex::new(0),
            context,
        })
    }

    pub(super) fn extend(&self, deadline: Moment) {
        self.deadline.store(deadline.as_nanos(), Ordering::Release);
        self.extended.send_replace(());
    }

    /// Returns whether no handle is left: then the work has ended.
    pub(super) fn end(&self, ending: Ending) -> bool {
        self.extend(ending.deadline);
        let mut life = self.life();
        if !life.ended {
            life.ended_at = self.context.clock.now();
        }
        life.ended = true;
        self.lost.send_if_modified(|lost| {
            let first = lost.is_none();
            lost.get_or_insert(ending.why);
            first
        });
        life.handles == 0
    }

    /// A handle, unless the term has ended. After a pause we may run before the driver, which has yet to say so: the clock
    /// is asked here too, or work would begin in a term that is over.
    pub(super) fn handle(self: &Arc<Self>) -> Option<Leadership> {
        let mut life = self.life();
        let deadline = Moment::from_nanos(self.deadline.load(Ordering::Acquire));
        if life.ended || self.context.clock.now() >= deadline {
            return None;
        }
        life.handles += 1;
        Some(Leadership { term: self.clone() })
    }

    /// How long the work has gone on after its time was over. A refusal sets the deadline far into the past, and is heard of
    /// only when it comes.
    pub(super) fn overrun(&self, now: Moment) -> Duration {
        let life = self.life();
        let deadline = Moment::from_nanos(self.deadline.load(Ordering::Acquire));
        let over = deadline.max(life.ended_at);
        if life.handles == 0 { Duration::ZERO } else { now.since(over) }
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Leadership {
    /// The number of the term. Whatever has an effect outside should carry it and be compared there.
    pub fn token(&self) -> Token {
        self.term.hold.token
    }

    /// The proof of this term: what a store compares before it changes anything. For a process that watches over this one
    /// and gives the lease back when it has died; whoever works needs the [token](Leadership::token) only.
    pub fn hold(&self) -> &Hold {
        &self.term.hold
    }

    /// When this candidate stops believing, if nothing extends it.
    pub fn deadline(&self) -> Moment {
        Moment::from_nanos(self.term.deadline.load(Ordering::Acquire))
    }

    /// Returns when the deadline is another one than `known`: later after a renewal, [`Moment::NEVER`] when the store has
    /// refused us. For work in another process, which has to be told.
    pub async fn extended(&self, known: Moment) -> Moment {
        let mut extended = self.term.extended.subscribe();
        loop {
            extended.mark_unchanged();
            let deadline = self.deadline();
            if deadline != known {
                return deadline;
            }
            if extended.changed().await.is_err() {
                // The sender is part of the term, which this handle keeps alive.
                return deadline;
            }
        }
    }

    /// Whether the term is certainly still ours, computed now: there is no flag a paused thread could leave standing.
    ///
    /// It stays true for the time the work has to stop, after [`Leadership::lost`] has come.
    pub fn is_valid(&self) -> bool {
        let context = &self.term.context;
        context.clock.now() < self.deadline() && context.process.is_current()
    }

    /// How long the term is certainly still ours.
    pub fn valid_for(&self) -> Duration {
        if !self.is_valid() {
            return Duration::ZERO;
        }
        self.deadline().since(self.term.context.clock.now())
    }

    /// Returns when the work has to stop, with the reason: before the deadline, at once when the store refuses us.
    pub async fn lost(&self) -> Why {
        let mut lost = self.term.lost.subscribe();
        match lost.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(Why::Shutdown),
            // The sender is part of the term, which this handle keeps alive.
            Err(_) => Why::Shutdown,
        }
    }

    /// What the leader before left.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.term.checkpoint.as_ref()
    }

    /// Leaves up to 4 KiB for the successor, written under the token of this term.
    ///
    /// Saves of one term are sent one after the other, each when the one before has been answered.
    ///
    /// # Errors
    /// Unavailable: it may or may not have been kept; save again.
    pub async fn save(&self, checkpoint: impl AsRef<[u8]>) -> Result<Saved> {
        let checkpoint = Checkpoint::new(checkpoint)?;
        let mut last = self.term.saves.lock().await;
        *last += 1;
        let answer = self.term.context.store.save(&self.term.hold, *last, &checkpoint).await?;
        Ok(match answer {
            Answer::Held(()) => Saved::Kept,
            Answer::Taken(_) => Saved::Lost,
        })
    }

    /// Gives up the term: the work is told to stop, and when it has, the lease is released.
    pub fn resign(&self) {
        let resign = MachineEvent::Resign(None);
        // A driver that is gone has ended the term already.
        let _ = self.term.context.commands.send(Command::Tell(ONLY, resign));
    }
}

impl Clone for Leadership {
    fn clone(&self) -> Self {
        self.term.life().handles += 1;
        Leadership { term: self.term.clone() }
    }
}

impl Drop for Leadership {
    /// No I/O: the driver is told when the last one goes, and does the rest.
    fn drop(&mut self) {
        let mut life = self.term.life();
        life.handles -= 1;
        if life.handles == 0 && life.ended {
            let ended = Command::Tell(ONLY, MachineEvent::WorkEnded);
            let _ = self.term.context.commands.send(ended);
        }
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("name", &self.term.hold.name)
            .field("token", &self.token())
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{CandidateId, Name, Nonce};

    async fn term(clock: &Clock, length: Duration) -> Arc<Term> {
        let store = crate::open("memory:").await.unwrap();
        let (commands, _inbox) = mpsc::unbounded_channel();
        let process = Process::current();
        let context = Context { clock: clock.clone(), store, commands, process };
        let hold = Hold {
            name: Name::new("a").unwrap(),
            candidate: CandidateId::new("b").unwrap(),
            nonce: Nonce::random(),
            token: Token::new(1).unwrap(),
        };
        let deadline = clock.now() + length;
        Term::begin(Lead { hold, checkpoint: None, deadline }, context)
    }

    #[tokio::test]
    async fn a_term_whose_time_is_over_is_handed_to_nobody_although_nobody_has_ended_it() {
        let clock = Clock::manual();
        let deadline = clock.now() + Duration::from_secs(1);
        let term = term(&clock, Duration::from_secs(1)).await;
        assert!(term.handle().is_some());
        clock.advance(Duration::from_secs(1));
        assert!(term.handle().is_none());
        term.extend(deadline + Duration::from_secs(1));
        assert!(term.handle().is_some(), "renewed after all");
    }

    #[tokio::test]
    async fn work_that_goes_on_after_its_time_is_noticed() {
        let clock = Clock::manual();
        let term = term(&clock, Duration::from_secs(1)).await;
        clock.advance(Duration::from_secs(2));
        assert_eq!(term.overrun(clock.now()), Duration::ZERO, "nobody works");
        term.extend(clock.now() + Duration::from_secs(1));
        let work = term.handle().unwrap();
        clock.advance(Duration::from_secs(3));
        assert_eq!(term.overrun(clock.now()), Duration::from_secs(2));
        term.end(Ending { why: Why::Refused(None), deadline: Moment::NEVER });
        assert_eq!(term.overrun(clock.now()), Duration::ZERO, "it has heard of it just now");
        clock.advance(Duration::from_secs(1));
        assert_eq!(term.overrun(clock.now()), Duration::from_secs(1));
        drop(work);
        assert_eq!(term.overrun(clock.now()), Duration::ZERO);
    }
}
