//! The public API of one election: [`Election`], its [`ElectionBuilder`], [`Leadership`], [`Status`] and [`Event`].

mod builder;
mod candidate_state;
#[cfg(feature = "serde")]
mod config;
mod event;
mod lead;
mod leadership;
mod state;
mod status;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::{self, StreamExt};
use tokio::sync::broadcast;

use crate::clock::Moment;
use crate::driver::{HandleInput, RenewalStats};
use crate::error::{Error, Kind, Result};
use crate::lease::{CandidateId, Name, Note};
use crate::machine::{OtherCandidates, Phase};
use crate::presence::Node;
use state::ElectionState;

pub use builder::ElectionBuilder;
pub use candidate_state::CandidateState;
#[cfg(feature = "serde")]
pub use config::ElectionConfig;
pub use event::Event;
#[cfg(feature = "testing")]
pub(crate) use leadership::Leading;
pub use leadership::{Leadership, Saved, StopSignal};
pub use status::{Pulse, Status};

/// One candidate in the election of one name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let store = tenure::open("memory:").await?;
/// let election = tenure::Election::builder("election:example").start(store).await?;
/// let answer = election
///     .lead(|leadership| async move {
///         // Only one candidate at a time is here.
///         format!("done in term {}", leadership.token())
///     })
///     .await;
/// assert!(answer.is_some_and(|text| text.starts_with("done")));
/// election.stop().await;
/// # Ok(()) }
/// ```
///
/// Dropping it without [`Election::stop`] leaves the lease to its TTL: the driver sends nothing more for it.
pub struct Election {
    shared: Arc<ElectionState>,
}

impl Election {
    /// Builds a candidate in the election of `name`: 1 to 200 bytes of `A–Z a–z 0–9 . _ : / -`.
    pub fn builder(name: &str) -> ElectionBuilder {
        ElectionBuilder::new(name)
    }

    fn new(shared: Arc<ElectionState>) -> Self {
        Election { shared }
    }

    /// Waits for the first answer of the store; with `patient` also for a store that is down.
    pub(super) async fn first_answer(&self, patient: bool) -> Result<()> {
        let mut phases = self.shared.phases.subscribe();
        loop {
            {
                let state = self.shared.state();
                match (&state.last_error, state.reachable) {
                    (_, Some(true)) => return Ok(()),
                    (Some(error), Some(false)) if !patient || error.kind() != Kind::Unavailable => {
                        return Err(error.clone());
                    }
                    _ => {}
                }
            }
            if phases.changed().await.is_err() || *phases.borrow() == Phase::Stopped {
                return Err(Error::unavailable("the election has ended before it began"));
            }
        }
    }

    /// Returns when the store has answered for the first time. Waits for a store that is down.
    ///
    /// # Errors
    /// Denied, Corrupt: the store answered, and an operator must act.
    pub async fn answered(&self) -> Result<()> {
        self.first_answer(true).await
    }

    /// The name of the election.
    pub fn name(&self) -> &Name {
        &self.shared.name
    }

    /// The id of this candidate.
    pub fn candidate_id(&self) -> &CandidateId {
        &self.shared.candidate
    }

    /// Whether this candidate leads, computed from the clock at this call.
    pub fn is_leader(&self) -> bool {
        let until = Moment::from_nanos(self.shared.leader_until.load(Ordering::Acquire));
        let context = &self.shared.context;
        context.clock.now() < until && context.process.is_current()
    }

    /// The id of the leader, as far as this candidate knows from its last observation or notification.
    pub fn current_leader(&self) -> Option<String> {
        let shared = &self.shared;
        shared.state().leader(&shared.candidate, shared.context.clock.now())
    }

    /// The status of this candidate.
    pub fn status(&self) -> Status {
        let shared = &self.shared;
        let until = Moment::from_nanos(shared.leader_until.load(Ordering::Acquire));
        let is_leader = self.is_leader();
        let valid_for =
            if is_leader { until.since(shared.context.clock.now()) } else { Duration::ZERO };
        let term = shared.current_term().filter(|_| is_leader);
        let state = shared.state();
        Status {
            name: shared.name.clone(),
            candidate_id: shared.candidate.clone(),
            is_leader,
            state: shared.candidate_state.borrow().clone(),
            current_leader: state.leader(&shared.candidate, shared.context.clock.now()),
            starting: state.startup_wait(shared.context.clock.now()).map(|(_, wait)| wait),
            token: term.as_ref().map(|term| term.term.hold.token),
            handles: term.map_or(0, |term| term.term.handles()),
            since: state.since,
            valid_for,
            transitions: state.transitions,
            drained: state.drained,
            healthy: state.unhealthy.is_none(),
            priority: shared.priority,
            store: shared.context.store.url(),
            store_grade: shared.context.store.limits().grade,
            store_reachable: state.reachable,
            last_error: state.last_error.clone(),
        }
    }

    /// Returns the state of this candidate as soon as it differs from `known`.
    pub async fn state_changed(&self, known: &CandidateState) -> CandidateState {
        let mut states = self.shared.candidate_state.subscribe();
        let changed = states.wait_for(|state| state != known).await.map(|state| state.clone());
        match changed {
            Ok(state) => state,
            // The sender lives in `shared`.
            Err(_) => std::future::pending().await,
        }
    }

    /// Sets the candidates that are present, as [`present`](crate::presence::present) returned them last. The
    /// [priority](ElectionBuilder::priority) of this candidate counts among those that campaign.
    pub fn set_candidates(&self, candidates: &[Node]) {
        let campaign = candidates.iter().filter(|node| {
            node.id != self.shared.candidate
                && node.state.as_ref().is_some_and(CandidateState::campaigns)
        });
        let others = campaign.map(|node| (node.id.clone(), node.priority)).collect();
        let rivals = OtherCandidates { own: self.shared.priority, others };
        self.shared.send_input(HandleInput::Rivals(Arc::new(rivals)));
    }

    /// Replaces the note of the lease. Only for a lease that grants no right.
    pub(crate) fn set_note(&self, note: Note) {
        self.shared.send_input(HandleInput::Note(note));
    }

    /// Durations and errors of the renewals since the start.
    pub fn renewals(&self) -> RenewalStats {
        self.shared.state().renewals.clone()
    }

    /// Whether this candidate does its part in time: for a liveness probe that restarts a stuck process.
    pub fn pulse(&self) -> Pulse {
        let shared = &self.shared;
        let now = shared.context.clock.now();
        let due = Moment::from_nanos(shared.sleeps_until.load(Ordering::Acquire));
        let term = shared.current_term();
        Pulse {
            late: now.since(due),
            overrun: term.as_ref().map(|term| term.term.overrun(now)).unwrap_or_default(),
            idle: self.is_leader() && term.is_some_and(|term| term.term.handles() == 0),
            ended: *shared.phases.borrow() == Phase::Stopped,
        }
    }

    /// The current state and all later events, as a stream. It ends after the last event, when the election has stopped. See
    /// [`Event`] for what a slow subscriber misses.
    pub fn events(&self) -> impl Stream<Item = Event> + Send + Unpin + 'static {
        let (now, later) = self.shared.subscribe();
        let metrics = self.shared.metrics.clone();
        let later = stream::unfold((later, metrics), async |(events, metrics)| {
            let mut events = events?;
            loop {
                match events.recv().await {
                    Ok(event) => return Some((event, (Some(events), metrics))),
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        metrics.report(|metrics, name| metrics.events_dropped(name, missed));
                    }
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        });
        Box::pin(stream::iter(now).chain(later))
    }

    /// Calls `listener` for the current state and for every later event, on a separate thread. A listener that panics is called
    /// again with the next event.
    pub fn on_event(&self, listener: impl Fn(Event) + Send + 'static) {
        let (now, later) = self.shared.subscribe();
        let metrics = self.shared.metrics.clone();
        let call = move |event| {
            if catch_unwind(AssertUnwindSafe(|| listener(event))).is_err() {
                tracing::error!("an event listener panicked");
            }
        };
        let listen = move || {
            now.into_iter().for_each(&call);
            let Some(mut later) = later else { return };
            loop {
                match later.blocking_recv() {
                    Ok(event) => call(event),
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        metrics.report(|metrics, name| metrics.events_dropped(name, missed));
                    }
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("tenure-events".to_owned()).spawn(listen);
        if let Err(error) = thread {
            tracing::error!(%error, "no thread for an event listener: it will not be called");
        }
    }

    /// Stops leading, if this candidate leads, once the work has ended. The other candidates may claim first for half a second.
    pub fn resign(&self) {
        self.shared.send_input(HandleInput::Resign(None));
    }

    /// Stops leading and names `next` as the successor: a hint, no right.
    pub fn resign_to(&self, next: &CandidateId) {
        self.shared.send_input(HandleInput::Resign(Some(next.clone())));
    }

    /// Stops leading, if this candidate leads, and does not campaign until [`Election::leadership`] or [`Election::lead`] is
    /// called again.
    pub fn withdraw(&self) {
        self.shared.send_input(HandleInput::Wanted(false));
    }

    /// Stops leading, if this candidate leads, and does not campaign until [`Election::undrain`].
    pub fn drain(&self) {
        self.shared.send_input(HandleInput::Drain);
    }

    /// Campaigns again.
    pub fn undrain(&self) {
        self.shared.send_input(HandleInput::Undrain);
    }

    /// Stops the election: the work is notified to stop, and once it has stopped, the lease is released.
    ///
    /// The election stops even if the returned future is dropped. The future waits for the work: every [`Leadership`] has to be
    /// dropped.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + 'static {
        self.shared.send_input(HandleInput::Stop);
        self.shared.stopped()
    }
}

impl Drop for Election {
    /// No I/O: the driver stops, and the lease is left to its TTL.
    fn drop(&mut self) {
        self.shared.abandon();
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("name", &self.shared.name)
            .field("candidate", &self.shared.candidate)
            .field("is_leader", &self.is_leader())
            .finish_non_exhaustive()
    }
}
