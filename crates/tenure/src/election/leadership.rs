//! [`Leadership`]: the handle of one term, for the work that runs in it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::ONLY_MACHINE;
use crate::clock::Moment;
use crate::driver::{Context, HandleInput, Term};
use crate::error::Result;
use crate::lease::{Checkpoint, Token};
use crate::machine::{EndReason, TermEnd, TermStart};

/// The handle of one term of this candidate, for the work that may run in it.
///
/// Clone it for every task that works in the term. While any clone exists, the work counts as running: after the term has
/// ended, the lease is released and the next campaign starts only when all clones are dropped.
///
/// ```
/// # async fn example(leadership: tenure::Leadership) -> tenure::Result<()> {
/// while leadership.is_valid() {
///     // … one step of the work, with leadership.token() in every write …
///     leadership.save("step 1 done").await?;
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
pub(super) struct Leading {
    pub(super) term: Term,
    /// Changes with the deadline, for tasks that forward it. The deadline itself is read without a lock.
    extended: watch::Sender<()>,
    lost: watch::Sender<Option<EndReason>>,
    /// Held while a save is in flight, so that saves arrive in order.
    saves: tokio::sync::Mutex<()>,
}

impl Leading {
    pub(super) fn begin(lead: TermStart, context: Arc<Context>) -> Arc<Self> {
        Arc::new(Leading {
            term: Term::begin(ONLY_MACHINE, lead, context),
            extended: watch::channel(()).0,
            lost: watch::channel(None).0,
            saves: tokio::sync::Mutex::new(()),
        })
    }

    pub(super) fn extend(&self, deadline: Moment) {
        self.term.extend(deadline);
        self.extended.send_replace(());
    }

    /// Returns whether no handle is left: then the work has ended.
    pub(super) fn end(&self, ending: TermEnd) -> bool {
        let idle = self.term.end(ending.deadline);
        self.extended.send_replace(());
        self.lost.send_if_modified(|lost| {
            let first = lost.is_none();
            lost.get_or_insert(ending.reason);
            first
        });
        idle
    }

    /// A handle, unless the term has ended.
    pub(super) fn handle(self: &Arc<Self>) -> Option<Leadership> {
        self.term.enter().then(|| Leadership { leading: self.clone() })
    }
}

impl Leadership {
    /// The number of the term. Pass it with every external effect, so that the target can compare it.
    pub fn token(&self) -> Token {
        self.leading.term.hold.token
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

    /// Returns when the work must stop, with the reason: before the deadline, or at once when the store refuses a renewal.
    pub async fn lost(&self) -> EndReason {
        let mut lost = self.leading.lost.subscribe();
        match lost.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(EndReason::Shutdown),
            // The sender is part of the term, which this handle keeps alive.
            Err(_) => EndReason::Shutdown,
        }
    }

    /// The checkpoint that the previous leader saved.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.leading.term.checkpoint.as_ref()
    }

    /// Saves up to 4 KiB for the successor, under the token of this term.
    ///
    /// Saves of one term are sent in sequence, each after the answer to the previous one.
    ///
    /// # Errors
    /// Unavailable: the checkpoint may or may not have been saved; save again.
    pub async fn save(&self, checkpoint: impl AsRef<[u8]>) -> Result<Saved> {
        let checkpoint = Checkpoint::new(checkpoint)?;
        let _one_after_the_other = self.leading.saves.lock().await;
        self.leading.term.save(&checkpoint).await
    }

    /// Ends the term: the work is notified to stop, and once it has stopped, the lease is released.
    pub fn resign(&self) {
        // A driver that has ended has ended the term already.
        self.leading.term.send_input(HandleInput::Resign(None));
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
    use tokio::sync::mpsc;

    async fn term(clock: &Clock, length: Duration) -> Arc<Leading> {
        let store = crate::open("memory:").await.unwrap();
        let (commands, _inbox) = mpsc::unbounded_channel();
        let process = ProcessId::current();
        let context = Arc::new(Context { clock: clock.clone(), store, commands, process });
        let hold = Hold {
            name: Name::new("a").unwrap(),
            candidate: CandidateId::new("b").unwrap(),
            nonce: Nonce::random(),
            token: Token::new(1).unwrap(),
        };
        let deadline = clock.now() + length;
        Leading::begin(TermStart { hold, checkpoint: None, deadline }, context)
    }

    #[tokio::test]
    async fn an_expired_term_gives_no_handle_even_before_it_was_ended() {
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
