//! [`Leadership`]: the handle of one term, for the work that runs in it.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tracing::Span;

use crate::clock::Moment;
use crate::driver::{Context, HandleInput, MachineId, Term};
use crate::error::Result;
use crate::lease::{Checkpoint, Token};
use crate::machine::{EndReason, TermEnd, TermStart};

/// The handle of one term of this candidate, for the work that may run in it.
///
/// Clone it for every task that works in the term. While any clone exists, the work counts as running: after the term has
/// ended, the lease is released and the next campaign starts only when all clones are dropped.
///
/// When the last clone is dropped, by a return, a cancellation or a panic, no work runs in the term any more. Then the term ends:
/// the lease is released, [`Event::LostLeadership`](crate::Event::LostLeadership) reports [`EndReason::Dropped`], and this
/// candidate campaigns again after the pause of a candidate that resigned. An application that never takes a handle, and only
/// calls [`Election::is_leader`](crate::Election::is_leader), keeps its term.
///
/// ```
/// # async fn example(leadership: tenure::Leadership) -> tenure::Result<()> {
/// while !leadership.should_stop() {
///     // … one step of the work, with leadership.token() in every write …
///     let _ = leadership.save("step 1 done").await?;
/// }
/// # Ok(()) }
/// ```
pub struct Leadership {
    leading: Arc<Leading>,
}

/// Whether a checkpoint was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a checkpoint that was not kept means that another candidate leads"]
pub enum Saved {
    /// The checkpoint was saved: the successor will find it.
    Kept,
    /// The term is over, so nothing was written.
    Lost,
}

/// The state that all handles of one leadership share.
pub(crate) struct Leading {
    pub(crate) term: Term,
    /// Changes with the deadline, for tasks that forward it. The deadline itself is read without a lock.
    extended: watch::Sender<()>,
    lost: watch::Sender<Option<EndReason>>,
    /// The same for threads that wait without a runtime.
    ended: Mutex<bool>,
    has_ended: Condvar,
    /// Held while a save is in flight, so that saves arrive in order.
    saves: Arc<tokio::sync::Mutex<()>>,
    /// The span of the term, for the lines that the work logs.
    pub(super) span: Span,
}

impl Leading {
    pub(crate) fn begin(
        machine: MachineId,
        lead: TermStart,
        context: Arc<Context>,
        span: Span,
    ) -> Arc<Self> {
        Arc::new(Leading {
            term: Term::begin(machine, lead, context),
            extended: watch::channel(()).0,
            lost: watch::channel(None).0,
            ended: Mutex::new(false),
            has_ended: Condvar::new(),
            saves: Arc::default(),
            span,
        })
    }

    pub(crate) fn extend(&self, deadline: Moment) {
        self.term.extend(deadline);
        self.extended.send_replace(());
    }

    /// Returns whether no handle is left: then the work has ended.
    pub(crate) fn end(&self, ending: TermEnd) -> bool {
        let idle = self.term.end(ending.deadline);
        self.extended.send_replace(());
        self.lost.send_if_modified(|lost| {
            let first = lost.is_none();
            lost.get_or_insert(ending.reason);
            first
        });
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.has_ended.notify_all();
        idle
    }

    fn reason(&self) -> Option<EndReason> {
        self.lost.borrow().clone()
    }

    async fn lost(&self) -> EndReason {
        let mut lost = self.lost.subscribe();
        match lost.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(EndReason::Shutdown),
            // The sender is part of the term, which the caller keeps alive.
            Err(_) => EndReason::Shutdown,
        }
    }

    fn lost_timeout(&self, timeout: Duration) -> Option<EndReason> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.has_ended.wait_timeout_while(ended, timeout, |ended| !*ended);
        drop(waited);
        self.reason()
    }

    /// A handle, unless the term has ended.
    pub(crate) fn handle(self: &Arc<Self>) -> Option<Leadership> {
        self.term.enter().then(|| Leadership { leading: self.clone() })
    }
}

impl Leadership {
    /// The number of the term. Pass it with every external effect, so that the target can compare it.
    pub fn token(&self) -> Token {
        self.leading.term.hold.token
    }

    pub(super) fn leading(&self) -> &Arc<Leading> {
        &self.leading
    }

    /// For [`supervise`](crate::supervise).
    pub(crate) fn term(&self) -> &Term {
        &self.leading.term
    }

    /// For [`supervise`](crate::supervise): a channel that changes with the deadline.
    pub(crate) fn subscribe_to_extensions(&self) -> watch::Receiver<()> {
        self.leading.extended.subscribe()
    }

    /// Whether this candidate certainly still holds the term, computed now: there is no flag that a paused thread could leave
    /// set.
    ///
    /// It stays true after [`Leadership::lost`] returns, for the time that the work has to stop.
    pub fn is_valid(&self) -> bool {
        self.leading.term.is_valid()
    }

    /// How long this candidate certainly still holds the term.
    pub fn valid_for(&self) -> Duration {
        self.leading.term.valid_for()
    }

    /// Whether the work should stop, computed now. False while new work may begin.
    ///
    /// It turns true when [`Leadership::lost`] returns, and at the deadline in any case. After it has turned true,
    /// [`Leadership::is_valid`] says whether the work may still finish what it began.
    pub fn should_stop(&self) -> bool {
        !self.leading.term.continues()
    }

    /// Why the term ended; `None` while it goes on. The driver's thread sets it: use [`Leadership::should_stop`] before an
    /// effect, which reads the clock.
    pub fn ended(&self) -> Option<EndReason> {
        self.leading.reason()
    }

    /// Returns when the work must stop, with the reason: before the deadline, or at once when the store refuses a renewal.
    ///
    /// # Cancellation
    /// Cancel safe: a later call returns the same reason.
    pub async fn lost(&self) -> EndReason {
        self.leading.lost().await
    }

    /// Blocks this thread until the work must stop, for at most `timeout`. Returns the reason, or `None` if the term goes on.
    /// For work on a thread of its own.
    pub fn lost_timeout(&self, timeout: Duration) -> Option<EndReason> {
        self.leading.lost_timeout(timeout)
    }

    /// A signal of the end of this term that does not count as work: it may outlive the work.
    pub fn signal(&self) -> StopSignal {
        StopSignal { leading: self.leading.clone() }
    }

    /// The checkpoint that the previous leader saved.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.leading.term.checkpoint.as_ref()
    }

    /// Saves up to 4 KiB for the successor, under the token of this term.
    ///
    /// Saves of one term are sent in sequence, each after the answer to the previous one. The caller needs no tokio runtime.
    ///
    /// # Errors
    /// Unavailable: the checkpoint may or may not have been saved; save again. Comes at the deadline of the term at the latest.
    ///
    /// # Cancellation
    /// A save that was sent goes on when this future is dropped, and the next save waits for it.
    pub async fn save(&self, checkpoint: impl AsRef<[u8]>) -> Result<Saved> {
        let checkpoint = Checkpoint::new(checkpoint)?;
        let one_after_the_other = self.leading.saves.clone().lock_owned().await;
        self.leading.term.save(checkpoint, one_after_the_other).await
    }

    /// Ends the term: the work is notified to stop, and once it has stopped, the lease is released.
    pub fn resign(&self) {
        // A driver that has ended has ended the term already.
        self.leading.term.send_input(HandleInput::Resign(None));
    }
}

/// The end of a term, for code that does not work in it: a status page, a log, another thread.
///
/// Unlike a [`Leadership`] it does not keep the term: the lease is released when the handles are dropped, no matter how many
/// signals exist.
#[derive(Clone)]
pub struct StopSignal {
    leading: Arc<Leading>,
}

impl StopSignal {
    /// As [`Leadership::should_stop`].
    pub fn should_stop(&self) -> bool {
        !self.leading.term.continues()
    }

    /// As [`Leadership::ended`].
    pub fn ended(&self) -> Option<EndReason> {
        self.leading.reason()
    }

    /// As [`Leadership::lost`].
    pub async fn lost(&self) -> EndReason {
        self.leading.lost().await
    }

    /// As [`Leadership::lost_timeout`].
    pub fn lost_timeout(&self, timeout: Duration) -> Option<EndReason> {
        self.leading.lost_timeout(timeout)
    }
}

impl fmt::Debug for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StopSignal").field("ended", &self.ended()).finish_non_exhaustive()
    }
}

impl Clone for Leadership {
    fn clone(&self) -> Self {
        self.leading.term.add_handle();
        Leadership { leading: self.leading.clone() }
    }
}

impl Drop for Leadership {
    /// No I/O: the last handle notifies the driver, which does the rest.
    fn drop(&mut self) {
        self.leading.term.exit();
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("name", &self.leading.term.hold.name)
            .field("token", &self.token())
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::fork_check::ProcessId;
    use crate::lease::{CandidateId, Hold, Name, Nonce};
    use std::sync::OnceLock;
    use tokio::sync::mpsc;

    async fn term(clock: &Clock, length: Duration) -> Arc<Leading> {
        let store = crate::open("memory:").await.unwrap();
        let (commands, _inbox) = mpsc::unbounded_channel();
        let process = ProcessId::current();
        let runtime = OnceLock::new();
        let context = Arc::new(Context { clock: clock.clone(), store, commands, runtime, process });
        let hold = Hold {
            name: Name::new("a").unwrap(),
            candidate: CandidateId::new("b").unwrap(),
            nonce: Nonce::random(),
            token: Token::new(1).unwrap(),
        };
        let deadline = clock.now() + length;
        Leading::begin(0, TermStart { hold, checkpoint: None, deadline }, context, Span::none())
    }

    #[tokio::test]
    async fn an_expired_term_gives_no_handle_even_before_it_was_ended() {
        let clock = Clock::manual();
        let deadline = clock.now() + Duration::from_secs(1);
        let term = term(&clock, Duration::from_secs(1)).await;
        let _work = term.handle().unwrap();
        clock.advance(Duration::from_secs(1));
        assert!(term.handle().is_none());
        term.extend(deadline + Duration::from_secs(1));
        assert!(term.handle().is_some(), "renewed after all");
    }

    #[tokio::test]
    async fn work_that_continues_after_its_deadline_is_reported() {
        let clock = Clock::manual();
        let term = term(&clock, Duration::from_secs(1)).await;
        clock.advance(Duration::from_secs(2));
        assert_eq!(term.term.overrun(clock.now()), Duration::ZERO, "no work runs");
        term.extend(clock.now() + Duration::from_secs(1));
        let work = term.handle().unwrap();
        clock.advance(Duration::from_secs(3));
        assert_eq!(term.term.overrun(clock.now()), Duration::from_secs(2));
        term.end(TermEnd { reason: EndReason::Refused(None), deadline: Moment::PAST });
        assert_eq!(term.term.overrun(clock.now()), Duration::ZERO, "it was notified just now");
        clock.advance(Duration::from_secs(1));
        assert_eq!(term.term.overrun(clock.now()), Duration::from_secs(1));
        drop(work);
        assert_eq!(term.term.overrun(clock.now()), Duration::ZERO);
    }
}
