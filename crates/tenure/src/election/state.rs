//! [`ElectionState`]: the state that the application's handles share with the driver's thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{broadcast, watch};

use super::candidate_state::CandidateState;
use super::event::Event;
use super::leadership::Leading;
use crate::clock::{Clock, Moment};
use crate::driver::shared::DriverLink;
use crate::driver::{Context, DriverCommand, DriverEvents, HandleInput, MachineId, RenewalStats};
use crate::error::{Error, Result};
use crate::fork_check::ProcessId;
use crate::health::HealthResult;
use crate::lease::{
    Answer, CandidateId, Checkpoint, Lease, Name, OWN_PREFIX, StartupWait, Token, WaitReason,
};
use crate::machine::{EndReason, Phase, TermEnd, TermStart};
use crate::metrics::MetricsReporter;
use crate::trace::{self, EVENT_TARGET};

/// How many events a subscriber may lag behind before it misses some.
const EVENT_BUFFER: usize = 256;

/// The state that the application's handles share with the driver's thread.
pub(super) struct ElectionState {
    pub(super) name: Name,
    pub(super) candidate: CandidateId,
    pub(super) priority: i32,
    /// The id of this election's machine in its driver.
    machine: MachineId,
    pub(super) context: Arc<Context>,
    /// Until when `is_leader` returns true. It compares the clock with this at every call.
    pub(super) leader_until: AtomicU64,
    /// When the driver has something to do again; `u64::MAX` for never.
    pub(super) sleeps_until: Arc<AtomicU64>,
    state: Mutex<ElectionView>,
    /// The current term, until its lease is released.
    pub(super) term: watch::Sender<Option<Arc<Leading>>>,
    /// How many callers want this candidate to lead.
    pub(super) wants: Mutex<Wants>,
    /// Held by the call of `lead` whose work may run.
    pub(super) lead_turn: tokio::sync::Mutex<()>,
    /// Changes with the phase of the machine and with the reachability of the store.
    pub(super) phases: watch::Sender<Phase>,
    /// Changes only when the state changes.
    pub(super) candidate_state: watch::Sender<CandidateState>,
    /// Called without the lock of `state`: the application's metrics may ask for the status.
    pub(super) metrics: Arc<MetricsReporter>,
    /// `None` after the last event: then the subscriptions end.
    events: Mutex<Option<broadcast::Sender<Event>>>,
}

/// How many callers want this candidate to lead. The candidate stops to campaign when a call of `lead` ends that was the last.
#[derive(Debug, Default)]
pub(super) struct Wants {
    /// Calls of `lead` that have not returned.
    pub(super) leads: u32,
    /// Calls of `leadership` that wait.
    pub(super) waiters: u32,
}

pub(super) struct ElectionView {
    pub(super) leader: Option<String>,
    /// When the lease that was last observed expires, unless it is renewed.
    lease_expires: Option<Moment>,
    pub(super) since: Option<u64>,
    pub(super) transitions: u64,
    pub(super) drained: bool,
    /// The reason why the health check fails.
    pub(super) unhealthy: Option<Arc<str>>,
    pub(super) renewals: RenewalStats,
    /// The current term of this candidate, for later subscribers.
    leading: Option<(Token, Option<Checkpoint>)>,
    /// The term in its start-up wait: its token, when the wait ends, and the reason.
    starting: Option<(Token, Moment, WaitReason)>,
    pub(super) reachable: Option<bool>,
    pub(super) last_error: Option<Error>,
}

impl ElectionView {
    /// The leader, as far as it is known at `now`. If the store does not answer and the last observed lease has expired, the
    /// leader is unknown: possibly no candidate leads. This candidate's own term has its own deadline.
    pub(super) fn leader(&self, me: &CandidateId, now: Moment) -> Option<String> {
        let expired = self.lease_expires.is_some_and(|at| at <= now);
        let unknown = expired && self.reachable == Some(false);
        self.leader.clone().filter(|leader| !unknown || leader == me.as_str())
    }

    /// The term in its start-up wait at `now`, and the remaining wait.
    pub(super) fn startup_wait(&self, now: Moment) -> Option<(Token, StartupWait)> {
        let (token, until, reason) = self.starting?;
        Some((token, StartupWait { left: until.since(now), reason }))
    }
}

impl ElectionState {
    pub(super) fn new(
        name: &Name,
        candidate: &CandidateId,
        clock: Clock,
        (link, machine): (DriverLink, MachineId),
        priority: i32,
        unhealthy: Option<&str>,
        metrics: MetricsReporter,
    ) -> Self {
        let DriverLink { commands, runtime, store, sleeps_until } = link;
        let process = ProcessId::current();
        let runtime = OnceLock::from(runtime);
        ElectionState {
            name: name.clone(),
            candidate: candidate.clone(),
            priority,
            machine,
            context: Arc::new(Context { clock, store, commands, runtime, process }),
            leader_until: AtomicU64::new(Moment::PAST.as_nanos()),
            sleeps_until,
            state: Mutex::new(ElectionView {
                leader: None,
                lease_expires: None,
                since: None,
                transitions: 0,
                drained: false,
                unhealthy: unhealthy.map(Arc::from),
                renewals: RenewalStats::default(),
                leading: None,
                starting: None,
                reachable: None,
                last_error: None,
            }),
            term: watch::channel(None).0,
            wants: Mutex::default(),
            lead_turn: tokio::sync::Mutex::new(()),
            phases: watch::channel(Phase::Waiting).0,
            candidate_state: watch::channel(CandidateState::new(Phase::Waiting, false, unhealthy))
                .0,
            metrics: Arc::new(metrics),
            events: Mutex::new(Some(broadcast::channel(EVENT_BUFFER).0)),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ElectionView> {
        locked(&self.state)
    }

    pub(super) fn set_leader_until(&self, deadline: Moment) {
        self.leader_until.store(deadline.as_nanos(), Ordering::Release);
    }

    pub(super) fn send_input(&self, input: HandleInput) {
        self.context.tell(self.machine, input);
    }

    /// Changes the state and sends the event in one step, so that a new subscriber gets either the state before or the state
    /// after.
    fn report(&self, change: impl FnOnce(&mut ElectionView) -> Event) {
        let mut state = self.state();
        let event = change(&mut state);
        if let Some(events) = &*locked(&self.events) {
            // No subscriber is fine.
            let _ = events.send(event);
        }
    }

    /// Ends the current term, and reports that. Returns whether no handle is left.
    fn end_term(&self, term: &Leading, ending: TermEnd) -> bool {
        let (token, why) = (term.term.hold.token, ending.reason.clone());
        let idle = term.end(ending);
        trace::term_ended(&term.span, &why);
        tracing::info!(
            target: EVENT_TARGET, name = %self.name, candidate = %self.candidate, %token, reason = %why, detail = ?why,
            "lost leadership"
        );
        self.report(|state| {
            state.leading = None;
            Event::LostLeadership { token, why: why.clone() }
        });
        self.metrics.report(|metrics, name| metrics.lost_leadership(name, token, &why));
        idle
    }

    fn report_reachable(&self, known: Option<bool>, reachable: bool) {
        if known != Some(reachable) {
            self.metrics.report(|metrics, name| metrics.store_reachable(name, reachable));
        }
    }

    /// Leaves the lease to its TTL: the driver sends nothing more for this election.
    pub(super) fn abandon(&self) {
        self.set_leader_until(Moment::PAST);
        let _ = self.context.commands.send(DriverCommand::Remove(self.machine));
    }

    /// Returns the current state as events, and a subscription to all later events; `None` if there will be no more.
    pub(super) fn subscribe(&self) -> (Vec<Event>, Option<broadcast::Receiver<Event>>) {
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
        (events, locked(&self.events).as_ref().map(broadcast::Sender::subscribe))
    }

    /// Returns when the election has stopped.
    pub(super) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut phases = self.phases.subscribe();
        async move {
            // An error means that the election was dropped.
            let _ = phases.wait_for(|phase| *phase == Phase::Stopped).await;
        }
    }

    pub(super) fn current_term(&self) -> Option<Arc<Leading>> {
        self.term.borrow().clone()
    }
}

impl DriverEvents for ElectionState {
    fn lead(&self, _: MachineId, lead: TermStart) {
        let (token, checkpoint) = (lead.hold.token, lead.checkpoint.clone());
        self.set_leader_until(lead.deadline);
        let span = trace::term_span(&self.name, &self.candidate, token);
        let leading = Leading::begin(self.machine, lead, self.context.clone(), span);
        self.term.send_replace(Some(leading));
        tracing::info!(target: EVENT_TARGET, name = %self.name, candidate = %self.candidate, %token, "became leader");
        let now = self.context.clock.minting_micros() / 1_000;
        self.report(|state| {
            state.since = Some(now);
            state.leading = Some((token, checkpoint.clone()));
            Event::BecameLeader { token, checkpoint }
        });
        self.metrics.report(|metrics, name| metrics.became_leader(name, token));
    }

    fn starting(&self, _: MachineId, token: Token, wait: StartupWait) {
        let StartupWait { left, reason } = wait;
        tracing::warn!(target: EVENT_TARGET, name = %self.name, candidate = %self.candidate, %token, ?left, "starting: {reason}");
        let until = self.context.clock.now() + left;
        self.report(|state| {
            state.starting = Some((token, until, reason));
            Event::Starting { token, wait }
        });
        self.metrics.report(|metrics, name| metrics.starting(name, &wait));
    }

    fn extend(&self, _: MachineId, deadline: Moment) {
        let Some(term) = self.current_term() else { return };
        term.extend(deadline);
        // Once the work was notified to stop, `is_leader` stays false.
        if self.leader_until.load(Ordering::Acquire) != Moment::PAST.as_nanos() {
            self.set_leader_until(deadline);
        }
    }

    fn end(&self, _: MachineId, ending: TermEnd) -> bool {
        self.set_leader_until(Moment::PAST);
        let Some(term) = self.current_term() else { return true };
        self.end_term(&term, ending)
    }

    fn holder_changed(&self, _: MachineId, holder: Option<String>, leads: bool) {
        let leader = holder.filter(|_| leads);
        if leader == self.state().leader {
            return;
        }
        let to = leader.clone();
        self.report(|state| {
            state.transitions += u64::from(to.is_some());
            state.since = state.since.filter(|_| to.is_some());
            let from = std::mem::replace(&mut state.leader, to.clone());
            Event::LeaderChanged { from, to }
        });
        self.metrics.report(|metrics, name| metrics.leader_changed(name, leader.as_deref()));
    }

    fn unreachable(&self, _: MachineId, error: Error) {
        tracing::warn!(target: EVENT_TARGET, name = %self.name, %error, "the store gives no usable answer");
        let mut known = None;
        self.report(|state| {
            known = state.reachable.replace(false);
            state.last_error = Some(error.clone());
            Event::StoreUnreachable(error)
        });
        self.report_reachable(known, false);
    }

    fn store_back(&self, _: MachineId) {
        tracing::info!(target: EVENT_TARGET, name = %self.name, "the store answers again");
        let mut known = None;
        self.report(|state| {
            known = state.reachable.replace(true);
            Event::StoreBack
        });
        self.report_reachable(known, true);
    }

    fn released(&self, _: MachineId, token: Token) {
        self.report(|_| Event::Released { token });
    }

    fn same_id(&self, _: MachineId) {
        // The presence of a candidate has the same id: one warning is enough.
        if !self.name.as_str().starts_with(OWN_PREFIX) {
            tracing::warn!(
                name = %self.name, candidate = %self.candidate,
                "a second candidate with the id '{}' is running and holds '{}': give each candidate its own id",
                self.candidate, self.name
            );
        }
    }

    fn warn(&self, _: MachineId, warning: &str) {
        tracing::warn!(name = %self.name, candidate = %self.candidate, "{warning}");
    }

    fn stepped(&self, _: MachineId, phase: Phase, drained: bool) {
        {
            let mut state = self.state();
            state.drained = drained;
            state.starting = state.starting.filter(|_| phase == Phase::Starting);
            let now = CandidateState::new(phase, drained, state.unhealthy.as_deref());
            self.candidate_state.send_if_modified(|known| {
                let changed = *known != now;
                *known = now;
                changed
            });
        }
        if matches!(phase, Phase::Waiting | Phase::Stopped) {
            // The lease of the last term is released, or left to its TTL.
            self.term.send_if_modified(|term| term.take().is_some());
        }
        self.phases.send_replace(phase);
    }

    fn answered(&self, _: MachineId) {
        let known = self.state().reachable.replace(true);
        self.report_reachable(known, true);
    }

    fn ended(&self, _: MachineId) {
        if let Some(term) = self.term.send_replace(None) {
            self.set_leader_until(Moment::PAST);
            let ending = TermEnd { reason: EndReason::Shutdown, deadline: Moment::PAST };
            let is_open = self.state().leading.is_some();
            let _ = if is_open { self.end_term(&term, ending) } else { term.end(ending) };
        }
        self.candidate_state.send_replace(CandidateState::Stopping);
        self.phases.send_replace(Phase::Stopped);
        locked(&self.events).take();
    }

    fn observed(&self, _: MachineId, lease: &Lease) {
        let mut state = self.state();
        state.since = lease.since.filter(|_| lease.leader().is_some());
        state.lease_expires = Some(self.context.clock.now() + lease.left);
    }

    fn renewal(&self, _: MachineId, took: Duration, answer: &Result<Answer>) {
        self.state().renewals.note(took, answer);
        self.metrics.renewal(took, answer);
        trace::renewal_ended(&self.name, took, answer);
    }

    fn checked(&self, _: MachineId, result: &HealthResult) {
        self.state().unhealthy = result.clone().err();
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
