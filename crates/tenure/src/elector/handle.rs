//! [`Election`]: what the application holds in its hand.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::{self, StreamExt};
use tokio::sync::{broadcast, mpsc, watch};

use super::builder::Builder;
use super::event::Event;
use super::leadership::{Leadership, Leading};
use super::pulse::Pulse;
use super::renewals::Renewals;
use super::term::Context;
use super::{Command, PlaceId, Said, Seat};
use crate::clock::{Clock, Moment};
use crate::election::{Ending, Lead, Phase, Why};
use crate::error::{Error, Kind, Result};
use crate::fork::Process;
use crate::lease::{Answer, CandidateId, Checkpoint, Lease, Name, StartupWait, Token, WaitReason};
use crate::store::{Grade, Store};

/// The target of log lines about what is also told as an [`Event`]: whoever shows those can leave these out.
const EVENT: &str = "tenure::event";

/// An election has one place.
pub(super) const ONLY: PlaceId = 0;

/// How many events a listener may be behind before it misses some.
const EVENT_BUFFER: usize = 256;

/// One candidate in the election of one name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let store = tenure::open("memory:").await?;
/// let election = tenure::Election::builder("election:example").start(store).await?;
/// let answer = election
///     .lead(async |leadership| {
///         // Only one candidate at a time is here.
///         format!("done in term {}", leadership.token())
///     })
///     .await;
/// assert!(answer.is_some_and(|text| text.starts_with("done")));
/// election.stop().await;
/// # Ok(()) }
/// ```
///
/// Dropping it without [`Election::stop`] leaves the lease to its TTL: nothing more is sent for it.
pub struct Election {
    shared: Arc<Shared>,
}

/// Where a candidate stands, at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// Of what.
    pub name: Name,
    /// Who.
    pub candidate_id: CandidateId,
    /// Whether it leads, computed when this was made.
    pub is_leader: bool,
    /// In the words of the election.
    pub state: Phase,
    /// Who leads, as far as we know.
    pub current_leader: Option<String>,
    /// The token of the term it leads.
    pub token: Option<Token>,
    /// This candidate's start-up wait, while its state is [`Phase::Starting`].
    pub starting: Option<StartupWait>,
    /// When the current term began, whoever leads it: Unix milliseconds, for people to read.
    pub since: Option<u64>,
    /// How long that is certain; zero unless it leads.
    pub valid_for: Duration,
    /// How often the leader changed while we looked.
    pub transitions: u64,
    /// Told not to campaign.
    pub drained: bool,
    /// Fit to lead, as far as a [health check](Builder::health) says.
    pub healthy: bool,
    /// The store's URL, without passwords.
    pub store: String,
    /// What the store promises, as far as it is known by now.
    pub store_grade: Grade,
    /// `None` before the first answer.
    pub store_reachable: Option<bool>,
    /// The last thing that went wrong.
    pub last_error: Option<Error>,
}

/// What the application's handles and the driver's thread both see.
pub(super) struct Shared {
    name: Name,
    candidate: CandidateId,
    context: Arc<Context>,
    /// Until when "am I leader" is answered with yes. The clock is compared with it at every question.
    leader_until: AtomicU64,
    /// When the driver has something to do again; the greatest number for never.
    sleeps_until: AtomicU64,
    state: Mutex<State>,
    term: watch::Sender<Option<Arc<Leading>>>,
    /// Changes whenever the machine or the store's reachability does.
    moved: watch::Sender<Phase>,
    events: broadcast::Sender<Event>,
}

struct State {
    leader: Option<String>,
    /// When the lease that was last observed expires, unless it is renewed.
    lease_expires: Option<Moment>,
    since: Option<u64>,
    transitions: u64,
    drained: bool,
    healthy: bool,
    renewals: Renewals,
    /// The term that is led, for listeners that come later.
    leading: Option<(Token, Option<Checkpoint>)>,
    /// The term in its start-up wait: when the wait ends, and why it waits.
    starting: Option<(Token, Moment, WaitReason)>,
    reachable: Option<bool>,
    last_error: Option<Error>,
}

impl State {
    /// The leader, as far as it is known at `now`. Of a store that does not answer it is not known any more when the lease
    /// that was last observed has expired: then nobody may be leading. Our own term knows its deadline by itself.
    fn leader(&self, me: &CandidateId, now: Moment) -> Option<String> {
        let expired = self.lease_expires.is_some_and(|at| at <= now);
        let unknown = expired && self.reachable == Some(false);
        self.leader.clone().filter(|leader| !unknown || leader == me.as_str())
    }

    /// The term in its start-up wait at `now`, and what is left of it.
    fn startup_wait(&self, now: Moment) -> Option<(Token, StartupWait)> {
        let (token, until, reason) = self.starting?;
        Some((token, StartupWait { left: until.since(now), reason }))
    }
}

impl Shared {
    pub(super) fn new(
        name: &Name,
        candidate: &CandidateId,
        clock: Clock,
        store: Arc<dyn Store>,
        commands: mpsc::UnboundedSender<Command>,
    ) -> Self {
        Shared {
            name: name.clone(),
            candidate: candidate.clone(),
            context: Arc::new(Context { clock, store, commands, process: Process::current() }),
            leader_until: AtomicU64::new(Moment::NEVER.as_nanos()),
            sleeps_until: AtomicU64::new(u64::MAX),
            state: Mutex::new(State {
                leader: None,
                lease_expires: None,
                since: None,
                transitions: 0,
                drained: false,
                healthy: true,
                renewals: Renewals::default(),
                leading: None,
                starting: None,
                reachable: None,
                last_error: None,
            }),
            term: watch::channel(None).0,
            moved: watch::channel(Phase::Waiting).0,
            events: broadcast::channel(EVENT_BUFFER).0,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn leader_until(&self, deadline: Moment) {
        self.leader_until.store(deadline.as_nanos(), Ordering::Release);
    }

    fn tell(&self, said: Said) {
        self.context.tell(ONLY, said);
    }

    /// Changes the state and tells of it in one step, so that a listener who comes in between sees one or the other.
    fn report(&self, change: impl FnOnce(&mut State) -> Event) {
        let mut state = self.state();
        let event = change(&mut state);
        // Nobody listening is fine.
        let _ = self.events.send(event);
    }

    /// What is true now, as events, and everything after it.
    fn listen(&self) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let state = self.state();
        let now = self.context.clock.now();
        let leader = state.leader(&self.candidate, now);
        let known = leader.map(|leader| Event::LeaderChanged { from: None, to: Some(leader) });
        let leading = state.leading.clone();
        let became = leading.map(|(token, checkpoint)| Event::BecameLeader { token, checkpoint });
        let down = state.last_error.clone().filter(|_| state.reachable == Some(false));
        let down = down.map(Event::StoreUnreachable);
        let starting = state.startup_wait(now);
        let starting = starting.map(|(token, wait)| Event::Starting { token, wait });
        let events = known.into_iter().chain(starting).chain(became).chain(down).collect();
        (events, self.events.subscribe())
    }

    fn current_term(&self) -> Option<Arc<Leading>> {
        self.term.borrow().clone()
    }
}

impl Seat for Shared {
    fn lead(&self, _: PlaceId, lead: Lead) {
        let (token, checkpoint) = (lead.hold.token, lead.checkpoint.clone());
        self.leader_until(lead.deadline);
        self.term.send_replace(Some(Leading::begin(lead, self.context.clone())));
        tracing::info!(target: EVENT, name = %self.name, candidate = %self.candidate, %token, "became leader");
        let now = self.context.clock.minting_micros() / 1_000;
        self.report(|state| {
            state.since = Some(now);
            state.leading = Some((token, checkpoint.clone()));
            Event::BecameLeader { token, checkpoint }
        });
    }

    fn starting(&self, _: PlaceId, token: Token, wait: StartupWait) {
        let StartupWait { left, reason } = wait;
        tracing::warn!(target: EVENT, name = %self.name, candidate = %self.candidate, %token, ?left, "starting: {reason}");
        let until = self.context.clock.now() + left;
        self.report(|state| {
            state.starting = Some((token, until, reason));
            Event::Starting { token, wait }
        });
    }

    fn extend(&self, _: PlaceId, deadline: Moment) {
        let Some(term) = self.current_term() else { return };
        term.extend(deadline);
        // Once the work was told to stop, "am I leader" stays no.
        if self.leader_until.load(Ordering::Acquire) != Moment::NEVER.as_nanos() {
            self.leader_until(deadline);
        }
    }

    fn end(&self, _: PlaceId, ending: Ending) -> bool {
        self.leader_until(Moment::NEVER);
        let Some(term) = self.current_term() else { return true };
        let (token, why) = (term.term.hold.token, ending.why.clone());
        let idle = term.end(ending);
        tracing::info!(target: EVENT, name = %self.name, candidate = %self.candidate, %token, ?why, "lost leadership");
        self.report(|state| {
            state.leading = None;
            Event::LostLeadership { token, why }
        });
        idle
    }

    fn holder_changed(&self, _: PlaceId, holder: Option<String>, leads: bool) {
        let leader = holder.filter(|_| leads);
        if leader == self.state().leader {
            return;
        }
        self.report(|state| {
            state.transitions += u64::from(leader.is_some());
            state.since = state.since.filter(|_| leader.is_some());
            let from = std::mem::replace(&mut state.leader, leader.clone());
            Event::LeaderChanged { from, to: leader }
        });
    }

    fn unreachable(&self, _: PlaceId, error: Error) {
        tracing::warn!(target: EVENT, name = %self.name, %error, "the store gives no usable answer");
        self.report(|state| {
            state.reachable = Some(false);
            state.last_error = Some(error.clone());
            Event::StoreUnreachable(error)
        });
    }

    fn back(&self, _: PlaceId) {
        tracing::info!(target: EVENT, name = %self.name, "the store answers again");
        self.report(|state| {
            state.reachable = Some(true);
            Event::StoreBack
        });
    }

    fn released(&self, _: PlaceId, token: Token) {
        self.report(|_| Event::Released { token });
    }

    fn warn(&self, _: PlaceId, warning: &str) {
        tracing::warn!(name = %self.name, candidate = %self.candidate, "{warning}");
    }

    fn stands(&self, _: PlaceId, phase: Phase, drained: bool) {
        {
            let mut state = self.state();
            state.drained = drained;
            state.starting = state.starting.filter(|_| phase == Phase::Starting);
        }
        self.moved.send_replace(phase);
    }

    fn answered(&self, _: PlaceId) {
        self.state().reachable = Some(true);
    }

    fn over(&self) {
        if let Some(term) = self.term.send_replace(None) {
            self.leader_until(Moment::NEVER);
            term.end(Ending { why: Why::Shutdown, deadline: Moment::NEVER });
        }
        self.moved.send_replace(Phase::Stopped);
    }

    fn saw(&self, _: PlaceId, lease: &Lease) {
        let mut state = self.state();
        state.since = lease.since.filter(|_| lease.leader().is_some());
        state.lease_expires = Some(self.context.clock.now() + lease.left);
    }

    fn renewal(&self, _: PlaceId, took: Duration, answer: &Result<Answer>) {
        self.state().renewals.note(took, answer);
    }

    fn fit(&self, _: PlaceId, healthy: bool) {
        self.state().healthy = healthy;
    }

    fn sleeps_until(&self, at: Option<Moment>) {
        self.sleeps_until.store(at.map_or(u64::MAX, Moment::as_nanos), Ordering::Release);
    }
}

impl Election {
    /// A candidate in the election of `name`: 1 to 200 bytes of `A–Z a–z 0–9 . _ : / -`.
    pub fn builder(name: &str) -> Builder {
        Builder::new(name)
    }

    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Election { shared }
    }

    /// Waits for the first answer of the store; with `patient` also for a store that is down.
    pub(super) async fn first_answer(&self, patient: bool) -> Result<()> {
        let mut moved = self.shared.moved.subscribe();
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
            if moved.changed().await.is_err() || *moved.borrow() == Phase::Stopped {
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

    /// What is elected.
    pub fn name(&self) -> &Name {
        &self.shared.name
    }

    /// This candidate.
    pub fn candidate_id(&self) -> &CandidateId {
        &self.shared.candidate
    }

    /// Whether this candidate leads, computed from the clock at this very moment.
    pub fn is_leader(&self) -> bool {
        let until = Moment::from_nanos(self.shared.leader_until.load(Ordering::Acquire));
        let context = &self.shared.context;
        context.clock.now() < until && context.process.is_current()
    }

    /// Who leads, as far as we know: when we last looked or were told.
    pub fn current_leader(&self) -> Option<String> {
        let shared = &self.shared;
        shared.state().leader(&shared.candidate, shared.context.clock.now())
    }

    /// Where this candidate stands.
    pub fn status(&self) -> Status {
        let shared = &self.shared;
        let until = Moment::from_nanos(shared.leader_until.load(Ordering::Acquire));
        let is_leader = self.is_leader();
        let valid_for =
            if is_leader { until.since(shared.context.clock.now()) } else { Duration::ZERO };
        let token = shared.current_term().filter(|_| is_leader).map(|term| term.term.hold.token);
        let state = shared.state();
        Status {
            name: shared.name.clone(),
            candidate_id: shared.candidate.clone(),
            is_leader,
            state: *shared.moved.borrow(),
            current_leader: state.leader(&shared.candidate, shared.context.clock.now()),
            starting: state.startup_wait(shared.context.clock.now()).map(|(_, wait)| wait),
            token,
            since: state.since,
            valid_for,
            transitions: state.transitions,
            drained: state.drained,
            healthy: state.healthy,
            store: shared.context.store.url(),
            store_grade: shared.context.store.limits().grade,
            store_reachable: state.reachable,
            last_error: state.last_error.clone(),
        }
    }

    /// How long renewals took, and how often they failed, since the start.
    pub fn renewals(&self) -> Renewals {
        self.shared.state().renewals.clone()
    }

    /// Whether this candidate does its part in time: for a probe that restarts what has got stuck.
    pub fn pulse(&self) -> Pulse {
        let shared = &self.shared;
        let now = shared.context.clock.now();
        let due = Moment::from_nanos(shared.sleeps_until.load(Ordering::Acquire));
        Pulse {
            late: now.since(due),
            overrun: shared.current_term().map(|term| term.term.overrun(now)).unwrap_or_default(),
            ended: *shared.moved.borrow() == Phase::Stopped,
        }
    }

    /// Waits until this candidate leads; `None` if the election was stopped first.
    pub async fn leadership(&self) -> Option<Leadership> {
        self.shared.tell(Said::Wanted(true));
        let mut terms = self.shared.term.subscribe();
        let mut moved = self.shared.moved.subscribe();
        loop {
            let term = terms.borrow_and_update().clone();
            if let Some(leadership) = term.and_then(|term| term.handle()) {
                return Some(leadership);
            }
            if *moved.borrow_and_update() == Phase::Stopped {
                return None;
            }
            tokio::select! {
                changed = terms.changed() => changed.ok()?,
                changed = moved.changed() => changed.ok()?,
            }
        }
    }

    /// Runs `work` while this candidate leads.
    ///
    /// When the work ends by itself, the lease is released and its value is returned; nobody here campaigns again until
    /// the next call. When leadership is lost the work is dropped, and begun anew in the next term. `None` if the
    /// election was stopped.
    ///
    /// # Cancellation
    /// Dropping this future drops the work, and then the lease is released.
    pub async fn lead<T>(&self, mut work: impl AsyncFnMut(Leadership) -> T) -> Option<T> {
        // Also on a panic and when this future is dropped: the work is gone then, so the lease goes too.
        let rest = RestOnDrop(self);
        loop {
            let leadership = self.leadership().await?;
            let ended = tokio::select! {
                biased;
                _ = leadership.lost() => None,
                value = work(leadership.clone()) => Some(value),
            };
            drop(leadership);
            if let Some(value) = ended {
                drop(rest);
                self.released().await;
                return Some(value);
            }
        }
    }

    /// Returns when nothing is held any more.
    async fn released(&self) {
        let mut moved = self.shared.moved.subscribe();
        let done = |phase: &Phase| matches!(phase, Phase::Waiting | Phase::Stopped);
        // The sender lives in `shared`.
        let _ = moved.wait_for(done).await;
    }

    /// What is true now and what happens from now on, as a stream. See [`Event`] for what a slow listener misses.
    pub fn events(&self) -> impl Stream<Item = Event> + Send + Unpin + 'static {
        let (now, later) = self.shared.listen();
        let later = stream::unfold(later, async |mut events| {
            loop {
                match events.recv().await {
                    Ok(event) => return Some((event, events)),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        });
        Box::pin(stream::iter(now).chain(later))
    }

    /// Calls `listener` for what is true now and for everything that happens from now on, on a thread of its own. A
    /// listener that panics is called again with the next event.
    pub fn on_event(&self, listener: impl Fn(Event) + Send + 'static) {
        let (now, mut later) = self.shared.listen();
        let call = move |event| {
            if catch_unwind(AssertUnwindSafe(|| listener(event))).is_err() {
                tracing::error!("an event listener panicked");
            }
        };
        let listen = move || {
            now.into_iter().for_each(&call);
            loop {
                match later.blocking_recv() {
                    Ok(event) => call(event),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("tenure-events".to_owned()).spawn(listen);
        if let Err(error) = thread {
            tracing::error!(%error, "no thread for an event listener: it will not be called");
        }
    }

    /// Stops leading, if it does, once the work has ended; others come first for half a second.
    pub fn resign(&self) {
        self.shared.tell(Said::Resign(None));
    }

    /// Stops leading and asks `next` to take over: a hint, no right.
    pub fn resign_to(&self, next: &CandidateId) {
        self.shared.tell(Said::Resign(Some(next.clone())));
    }

    /// Stops leading, if it does, and does not campaign until [`Election::undrain`].
    pub fn drain(&self) {
        self.shared.tell(Said::Drain);
    }

    /// Campaigns again.
    pub fn undrain(&self) {
        self.shared.tell(Said::Undrain);
    }

    /// Ends it: the work is told to stop, has stopped, and then the lease is released.
    ///
    /// Waits for the work: every [`Leadership`] has to be dropped.
    pub async fn stop(&self) {
        self.shared.tell(Said::Stop);
        let mut moved = self.shared.moved.subscribe();
        // The sender lives in `shared`.
        let _ = moved.wait_for(|phase| *phase == Phase::Stopped).await;
    }
}

/// Nobody here wants to lead any more.
struct RestOnDrop<'a>(&'a Election);

impl Drop for RestOnDrop<'_> {
    fn drop(&mut self) {
        self.0.shared.tell(Said::Wanted(false));
    }
}

impl Drop for Election {
    /// No I/O: the driver stops, and the lease is left to its TTL.
    fn drop(&mut self) {
        self.shared.leader_until(Moment::NEVER);
        let _ = self.shared.context.commands.send(Command::Abandon);
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
