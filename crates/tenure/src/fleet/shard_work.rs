//! [`ShardWork`]: the handle for the work on one shard, and [`MemberTerm`], the state that all handles of one term share.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use super::member::locked;
use super::{Reason, Shard};
use crate::clock::Moment;
use crate::driver::{Context, HandleInput, MachineId, Term};
use crate::election::Saved;
use crate::error::Result;
use crate::lease::{Checkpoint, Token};
use crate::machine::TermStart;

/// The right to work on one shard, in one term.
///
/// Clone it for every task that works on the shard: the work counts as running as long as one of the clones exists. When all
/// clones are dropped, the lease is released, also in a term that was neither revoked nor [released](ShardWork::release). So if the
/// work runs in another process, let no panic drop the last clone while that process runs.
///
/// ```
/// # async fn poll(shard: &tenure::fleet::Shard, row: u64, token: tenure::Token) -> u64 { row + 1 }
/// use tenure::fleet::ShardWork;
///
/// async fn work(work: ShardWork) -> tenure::Result<()> {
///     // Continue where the last owner stopped.
///     let saved = work.checkpoint().and_then(|saved| std::str::from_utf8(saved.as_bytes()).ok());
///     let mut row = saved.and_then(|row| row.parse().ok()).unwrap_or(0);
///     while !work.should_stop() {
///         row = poll(work.shard(), row, work.token()).await;
///         let _ = work.save(row.to_string()).await?;
///     }
///     Ok(())
/// }
/// ```
pub struct ShardWork {
    term: Arc<MemberTerm>,
    shard: Shard,
}

impl ShardWork {
    /// The shard to work on.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The token of the term: pass it along with every effect, so that the target can compare it.
    pub fn token(&self) -> Token {
        self.term.term.hold.token
    }

    /// The number of this term within this process. A number is never used for two terms.
    pub fn number(&self) -> u64 {
        self.term.number
    }

    /// For [`supervise`](crate::supervise).
    pub(crate) fn term(&self) -> &Term {
        &self.term.term
    }

    /// Whether this member certainly still owns the shard, computed from the clock now.
    ///
    /// It stays true after a revocation, for the time that the work has to stop. To decide whether to begin something new, use
    /// [`ShardWork::should_stop`].
    pub fn is_valid(&self) -> bool {
        self.term.term.is_valid()
    }

    /// How long this member certainly still owns the shard.
    pub fn valid_for(&self) -> Duration {
        self.term.term.valid_for()
    }

    /// Whether the work must stop: false while new work may begin.
    ///
    /// True as soon as the shard was revoked or released, and when the clock has reached the time to stop, computed now. So it is
    /// also true in a process that was paused, before any other part of it has noticed that.
    pub fn should_stop(&self) -> bool {
        self.term.should_stop()
    }

    /// Returns when the work must stop, with the reason. Returns at once if the work must stop already.
    ///
    /// # Cancellation
    /// Cancel safe: dropping this future loses nothing.
    pub async fn revoked(&self) -> Reason {
        self.term.revoked().await
    }

    /// The checkpoint that the previous owner saved.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.term.term.checkpoint.as_ref()
    }

    /// Saves up to 4 KiB for the next owner, written under the token of this term. Await one save before you start the next.
    ///
    /// # Errors
    /// Unavailable: the checkpoint may or may not have been saved; save again.
    pub async fn save(&self, checkpoint: impl AsRef<[u8]>) -> Result<Saved> {
        let checkpoint = Checkpoint::new(checkpoint)?;
        self.term.term.save(checkpoint, ()).await
    }

    /// Releases the shard: from now on the work [should stop](ShardWork::should_stop), and when all handles are dropped, this
    /// member releases the lease.
    ///
    /// The shard then has no owner, and the members plan it anew. A member for which it is planned claims it at once, this member
    /// after half a second.
    pub fn release(&self) {
        self.term.release_for(Reason::Released);
    }

    /// Releases the shard for this reason, unless it was revoked or released already.
    pub(super) fn release_for(&self, reason: Reason) {
        self.term.release_for(reason);
    }
}

impl Clone for ShardWork {
    fn clone(&self) -> Self {
        self.term.term.add_handle();
        ShardWork { term: self.term.clone(), shard: self.shard.clone() }
    }
}

impl Drop for ShardWork {
    /// No I/O: the last handle notifies the driver, which does the rest.
    fn drop(&mut self) {
        self.term.term.exit();
    }
}

impl fmt::Debug for ShardWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardWork")
            .field("shard", &self.shard)
            .field("token", &self.token())
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

/// One term of this member, of its membership lease or of a shard.
pub(super) struct MemberTerm {
    pub(super) term: Term,
    /// The number of the term within this process.
    pub(super) number: u64,
    /// How long before its deadline the work must stop, in nanoseconds. Small, because a member may own a hundred thousand
    /// shards.
    stop_within: u64,
    state: Mutex<HandleState>,
}

#[derive(Default)]
struct HandleState {
    /// Why the work must stop, once it must.
    revoked: Option<Reason>,
    delivery: HandleDelivery,
    /// Tasks that wait for the revocation.
    waiters: Option<Arc<Notify>>,
}

/// Where the first handle of a term is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum HandleDelivery {
    /// In the queue of events. The work has not started.
    #[default]
    Queued,
    /// The application has taken it.
    Taken,
    /// The term ended first, so no application gets it.
    Discarded,
}

impl MemberTerm {
    pub(super) fn begin(
        machine: MachineId,
        lead: TermStart,
        context: Arc<Context>,
        number: u64,
        stop_within: Duration,
    ) -> Arc<Self> {
        Arc::new(MemberTerm {
            term: Term::begin(machine, lead, context),
            number,
            stop_within: u64::try_from(stop_within.as_nanos()).unwrap_or(u64::MAX),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, HandleState> {
        locked(&self.state)
    }

    /// Takes the first handle from the queue of events; `None` if the term ended first.
    pub(super) fn take(self: &Arc<Self>, shard: &Shard) -> Option<ShardWork> {
        let mut state = self.state();
        if state.delivery != HandleDelivery::Queued {
            return None;
        }
        state.delivery = HandleDelivery::Taken;
        drop(state);
        Some(ShardWork { term: self.clone(), shard: shard.clone() })
    }

    /// Whether the application has taken a handle of this term.
    pub(super) fn was_taken(&self) -> bool {
        self.state().delivery == HandleDelivery::Taken
    }

    /// Whether the term continues: it is valid, and its work was not notified to stop.
    pub(super) fn continues(&self) -> bool {
        self.reason().is_none() && self.term.continues()
    }

    /// Why the work must stop; `None` while no reason is recorded.
    pub(super) fn reason(&self) -> Option<Reason> {
        self.state().revoked
    }

    fn should_stop(&self) -> bool {
        let (context, stop_within) = (&self.term.context, Duration::from_nanos(self.stop_within));
        let stop_at = self.term.deadline().before(stop_within);
        context.clock.now() >= stop_at || !context.process.is_current() || self.reason().is_some()
    }

    async fn revoked(&self) -> Reason {
        loop {
            let waiters = self.state().waiters.get_or_insert_default().clone();
            // Before the check, so that a revocation after the check wakes this task.
            let notified = waiters.notified();
            if let Some(reason) = self.reason() {
                return reason;
            }
            notified.await;
        }
    }

    /// Records the reason and notifies the work. Returns whether this is the first reason.
    fn revoke(&self, reason: Reason) -> bool {
        let mut state = self.state();
        if state.revoked.is_some() {
            return false;
        }
        state.revoked = Some(reason);
        let waiters = state.waiters.take();
        drop(state);
        if let Some(waiters) = waiters {
            waiters.notify_waiters();
        }
        true
    }

    fn release_for(&self, reason: Reason) {
        // The next term of this machine begins only after all handles of this one are dropped, so the input cannot reach it.
        if self.revoke(reason) {
            self.term.send_input(HandleInput::Resign(None));
        }
    }

    /// Ends the term: the work must stop by `deadline`. Returns whether no handle is left, that is, the work has ended.
    pub(super) fn end(&self, deadline: Moment, reason: Reason) -> bool {
        let idle = self.term.end(deadline);
        self.revoke(reason);
        let mut state = self.state();
        let unused = state.delivery == HandleDelivery::Queued && !idle;
        if unused {
            state.delivery = HandleDelivery::Discarded;
        }
        drop(state);
        if unused {
            // No work has started, so there is none to wait for. The driver learns this from its next input.
            self.term.exit();
        }
        idle
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::sync::mpsc;

    use super::*;
    use crate::clock::Clock;
    use crate::driver::DriverCommand;
    use crate::fork_check::ProcessId;
    use crate::lease::{CandidateId, Hold, Name, Nonce};

    const VALID_FOR: Duration = Duration::from_secs(10);
    const STOP_WITHIN: Duration = Duration::from_secs(2);

    /// A term without a driver, whose first handle is in the queue, and the commands to the driver.
    async fn term(clock: &Clock) -> (Arc<MemberTerm>, mpsc::UnboundedReceiver<DriverCommand>) {
        let store = crate::open("memory:").await.unwrap();
        let (commands, inbox) = mpsc::unbounded_channel();
        let process = ProcessId::current();
        let runtime = std::sync::OnceLock::new();
        let context = Arc::new(Context { clock: clock.clone(), store, commands, runtime, process });
        let hold = Hold {
            name: Name::new("fleet:lease:a").unwrap(),
            candidate: CandidateId::new("m").unwrap(),
            nonce: Nonce::random(),
            token: Token::new(1).unwrap(),
        };
        let lead = TermStart { hold, checkpoint: None, deadline: clock.now() + VALID_FOR };
        let term = MemberTerm::begin(1, lead, context, 1, STOP_WITHIN);
        assert!(term.term.enter());
        (term, inbox)
    }

    fn shard() -> Shard {
        Shard::new("a").unwrap()
    }

    #[tokio::test]
    async fn work_should_stop_before_its_deadline_even_if_nothing_has_notified_it() {
        let clock = Clock::manual();
        let (term, _inbox) = term(&clock).await;
        let work = term.take(&shard()).unwrap();
        assert!(!work.should_stop());
        clock.advance(VALID_FOR - STOP_WITHIN);
        assert!(work.should_stop() && work.is_valid());
        assert_eq!(work.revoked().now_or_never(), None);
        term.term.extend(clock.now() + VALID_FOR);
        assert!(!work.should_stop(), "it was renewed");
        clock.advance(VALID_FOR);
        assert!(work.should_stop() && !work.is_valid());
    }

    #[tokio::test]
    async fn the_first_reason_counts() {
        let (term, mut inbox) = term(&Clock::manual()).await;
        let work = term.take(&shard()).unwrap();
        let (other, waiting) = (work.clone(), work.clone());
        let waiting = tokio::spawn(async move { waiting.revoked().await });
        tokio::task::yield_now().await;
        work.release();
        other.release();
        assert_eq!(waiting.await.unwrap(), Reason::Released);
        assert!(!term.end(term.term.deadline(), Reason::Rebalance), "two handles are left");
        assert_eq!(other.revoked().await, Reason::Released);
        assert!(work.should_stop() && work.is_valid() && !term.continues());
        let mut commands = Vec::new();
        while let Ok(DriverCommand::Input(1, input)) = inbox.try_recv() {
            commands.push(format!("{input:?}"));
        }
        assert_eq!(commands, ["Resign(None)"]);
        drop((work, other));
        assert!(matches!(inbox.try_recv(), Ok(DriverCommand::Input(1, HandleInput::WorkEnded))));
    }

    #[tokio::test]
    async fn a_handle_that_was_never_taken_is_no_work_to_wait_for() {
        let (term, mut inbox) = term(&Clock::manual()).await;
        assert!(inbox.try_recv().is_err());
        term.end(term.term.deadline(), Reason::Rebalance);
        assert!(matches!(inbox.try_recv(), Ok(DriverCommand::Input(1, HandleInput::WorkEnded))));
        assert!(term.take(&shard()).is_none() && !term.was_taken());
    }
}
