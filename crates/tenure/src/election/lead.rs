//! How work runs under an election: [`Election::leadership`], [`Election::lead`] and its variants.

use std::panic::resume_unwind;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use super::Election;
use super::leadership::{Leadership, Leading};
use super::state::{ElectionState, locked};
use crate::driver::HandleInput;
use crate::machine::Phase;

impl Election {
    /// Waits until this candidate leads; `None` if the election was stopped first.
    ///
    /// Several tasks may wait: each gets a handle of the same term.
    ///
    /// # Cancellation
    /// Cancel safe. The candidate keeps campaigning; [`Election::withdraw`] ends that.
    pub async fn leadership(&self) -> Option<Leadership> {
        let _waiter = Waiter::new(&self.shared);
        self.shared.send_input(HandleInput::Wanted(true));
        self.next_leadership().await
    }

    async fn next_leadership(&self) -> Option<Leadership> {
        let mut terms = self.shared.term.subscribe();
        let mut phases = self.shared.phases.subscribe();
        loop {
            let term = terms.borrow_and_update().clone();
            if let Some(leadership) = term.and_then(|term| term.handle()) {
                return Some(leadership);
            }
            if *phases.borrow_and_update() == Phase::Stopped {
                return None;
            }
            tokio::select! {
                changed = terms.changed() => changed.ok()?,
                changed = phases.changed() => changed.ok()?,
            }
        }
    }

    /// Runs `work` while this candidate leads.
    ///
    /// When the work ends by itself, the lease is released and the value of the work is returned; this candidate does not
    /// campaign again until the next call. When leadership is lost, the work is dropped, and started again in the next term; a
    /// value that it returns after the time to stop is dropped too. `None` if the election was stopped.
    ///
    /// The work is a closure that returns a future: `|leadership| async move { … }`. The future is `Send`, so the call may be
    /// spawned; [`Election::spawn_lead`] does that.
    ///
    /// One call runs its work at a time. A second call on the same election waits until the first has returned, and logs a
    /// warning.
    ///
    /// # Cancellation
    /// Dropping this future drops the work, and then the lease is released. If another caller waits for leadership, this
    /// candidate campaigns again.
    ///
    /// # Panics
    /// If the work panics. The lease is released.
    #[allow(clippy::manual_async_fn, reason = "the signature promises that the future is Send")]
    pub fn lead<'a, T, F, Fut>(&'a self, mut work: F) -> impl Future<Output = Option<T>> + Send + 'a
    where
        F: FnMut(Leadership) -> Fut + Send + 'a,
        Fut: Future<Output = T> + Send + 'a,
        T: Send + 'a,
    {
        async move {
            let mut call = LeadCall::new(&self.shared);
            let _turn = call.turn().await;
            loop {
                let leadership = self.next_leadership().await?;
                call.term = Some(leadership.leading().clone());
                let span = leadership.leading().span.clone();
                let running = span.in_scope(|| work(leadership.clone())).instrument(span);
                let ended = tokio::select! {
                    biased;
                    _ = leadership.lost() => None,
                    value = running => Some(value),
                };
                // Work that returns after the time to stop may have noticed it before the driver, for example after a freeze.
                if let Some(value) = ended.filter(|_| !leadership.should_stop()) {
                    // Before the handle is dropped, so that the reason is that the work has ended.
                    call.end();
                    drop(leadership);
                    call.released().await;
                    return Some(value);
                }
                call.term = None;
            }
        }
    }

    /// [`Election::lead`] in a task of its own.
    ///
    /// # Cancellation
    /// Aborting the task drops the work, and then the lease is released. Dropping the `JoinHandle` leaves the task running.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> tenure::Result<()> {
    /// use std::sync::Arc;
    ///
    /// let store = tenure::open("memory:").await?;
    /// let election = Arc::new(tenure::Election::builder("spawned").start(store).await?);
    /// let leading = election.spawn_lead(|leadership| async move { leadership.token() });
    /// assert!(leading.await.expect("the work does not panic").is_some());
    /// # Ok(()) }
    /// ```
    pub fn spawn_lead<T, F, Fut>(self: &Arc<Self>, work: F) -> JoinHandle<Option<T>>
    where
        F: FnMut(Leadership) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let election = self.clone();
        tokio::spawn(async move { election.lead(work).await })
    }

    /// [`Election::lead`] for synchronous work, which runs on a thread of its own.
    ///
    /// A thread cannot be ended from outside, so the work has to ask [`Leadership::should_stop`] and return: no candidate on this
    /// election leads again before it has. A value that the work returns after its term has ended is dropped, and
    /// the work is called again in the next term.
    ///
    /// # Cancellation
    /// Dropping this future notifies the work to stop. The lease is released when the work has returned.
    ///
    /// # Panics
    /// If the work panics, or the thread cannot be started. The lease is released.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> tenure::Result<()> {
    /// let store = tenure::open("memory:").await?;
    /// let election = tenure::Election::builder("blocking").start(store).await?;
    /// let steps = election.lead_blocking(|leadership| {
    ///     let mut steps = 0;
    ///     while !leadership.should_stop() && steps < 3 {
    ///         steps += 1; // … one step of the work, with leadership.token() in every write …
    ///     }
    ///     steps
    /// });
    /// assert_eq!(steps.await, Some(3));
    /// # Ok(()) }
    /// ```
    pub async fn lead_blocking<T, F>(&self, mut work: F) -> Option<T>
    where
        F: FnMut(Leadership) -> T + Send + 'static,
        T: Send + 'static,
    {
        let mut call = LeadCall::new(&self.shared);
        let _turn = call.turn().await;
        loop {
            let leadership = self.next_leadership().await?;
            call.term = Some(leadership.leading().clone());
            let (sender, returned) = oneshot::channel();
            let run = move || {
                let value = leadership.leading().span.in_scope(|| work(leadership.clone()));
                // The caller takes over the handle, so that the term does not end before it says why.
                let _ = sender.send((work, value, leadership));
            };
            let thread = std::thread::Builder::new().name("tenure-lead".to_owned()).spawn(run);
            let thread = thread.unwrap_or_else(|error| panic!("cannot start a thread: {error}"));
            let Ok((again, value, leadership)) = returned.await else {
                // The sender is dropped only by a panic, so the thread is about to end.
                match thread.join() {
                    Err(panic) => resume_unwind(panic),
                    Ok(()) => return None,
                }
            };
            work = again;
            if !leadership.should_stop() {
                call.end();
                drop(leadership);
                call.released().await;
                return Some(value);
            }
            call.term = None;
        }
    }
}

/// A call of `leadership` that waits.
struct Waiter<'a>(&'a ElectionState);

impl<'a> Waiter<'a> {
    fn new(shared: &'a ElectionState) -> Self {
        locked(&shared.wants).waiters += 1;
        Waiter(shared)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        locked(&self.0.wants).waiters -= 1;
    }
}

/// A call of `lead`, until it returns, panics or is dropped.
struct LeadCall<'a> {
    shared: &'a ElectionState,
    /// The term in which the work of this call runs.
    term: Option<Arc<Leading>>,
    has_ended: bool,
}

impl<'a> LeadCall<'a> {
    fn new(shared: &'a ElectionState) -> Self {
        locked(&shared.wants).leads += 1;
        LeadCall { shared, term: None, has_ended: false }
    }

    /// Waits until no other call runs its work.
    async fn turn(&self) -> tokio::sync::MutexGuard<'a, ()> {
        let turn = match self.shared.lead_turn.try_lock() {
            Ok(turn) => turn,
            Err(_) => {
                tracing::warn!(
                    name = %self.shared.name, candidate = %self.shared.candidate,
                    "lead was called while another call of lead has not returned: its work waits"
                );
                self.shared.lead_turn.lock().await
            }
        };
        self.shared.send_input(HandleInput::Wanted(true));
        turn
    }

    /// The work of this call has ended, or will not run. Ends its term, and the campaign unless another caller wants to lead.
    fn end(&mut self) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        if let Some(term) = &self.term {
            // The next call must not run its work in this term, beside a thread or a task that has not stopped yet.
            term.term.close();
        }
        let wanted = {
            let mut wants = locked(&self.shared.wants);
            wants.leads -= 1;
            wants.leads + wants.waiters > 0
        };
        if !wanted {
            self.shared.send_input(HandleInput::Wanted(false));
        } else if self.term.is_some() {
            self.shared.send_input(HandleInput::Resign(None));
        }
    }

    /// Returns when the lease of this call's term is released, or left to its TTL.
    async fn released(&self) {
        let mut terms = self.shared.term.subscribe();
        let is_over = |current: &Option<Arc<Leading>>| match (current, &self.term) {
            (Some(current), Some(own)) => !Arc::ptr_eq(current, own),
            _ => true,
        };
        // The sender lives in `shared`.
        let _ = terms.wait_for(is_over).await;
    }
}

impl Drop for LeadCall<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
