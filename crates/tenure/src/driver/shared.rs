//! [`Shared`]: what the application's handles and the driver's thread both see.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, watch};

use super::candidate_state::CandidateState;
use super::event::Event;
use super::handle::ONLY;
use super::leadership::Leading;
use super::renewal_stats::RenewalStats;
use super::term::Context;
use super::{DriverCommand, DriverEvents, HandleInput, MachineId};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::fork_check::ProcessId;
use crate::health::HealthResult;
use crate::lease::{
    Answer, CandidateId, Checkpoint, Lease, Name, OWN_PREFIX, StartupWait, Token, WaitReason,
};
use crate::machine::{EndReason, Phase, TermEnd, TermStart};
use crate::store::Store;

/// The target of log lines about what is also told as an [`Event`]: whoever shows those can leave these out.
const EVENT: &str = "tenure::event";

/// How many events a listener may be behind before it misses some.
const EVENT_BUFFER: usize = 256;

/// What the application's handles and the driver's thread both see.
pub(super) struct ElectionState {
    pub(super) name: Name,
    pub(super) candidate: CandidateId,
    pub(super) priority: i32,
    pub(super) context: Arc<Context>,
    /// Until when "am I leader" is answered with yes. The clock is compared with it at every question.
    pub(super) leader_until: AtomicU64,
    /// When the driver has something to do again; the greatest number for never.
    pub(super) sleeps_until: AtomicU64,
    state: Mutex<ElectionView>,
    pub(super) term: watch::Sender<Option<Arc<Leading>>>,
    /// Changes whenever the machine or the store's reachability does.
    pub(super) moved: watch::Sender<Phase>,
    /// Changes only when the state does.
    pub(super) candidate_state: watch::Sender<CandidateState>,
    events: broadcast::Sender<Event>,
}

pub(super) struct ElectionView {
    pub(super) leader: Option<String>,
    /// When the lease that was last observed expires, unless it is renewed.
    lease_expires: Option<Moment>,
    pub(super) since: Option<u64>,
    pub(super) transitions: u64,
    pub(super) drained: bool,
    /// Why the health check fails.
    pub(super) unhealthy: Option<Arc<str>>,
    pub(super) renewals: RenewalStats,
    /// The term that is led, for listeners that come later.
    leading: Option<(Token, Option<Checkpoint>)>,
    /// The term in its start-up wait: when the wait ends, and why it waits.
    starting: Option<(Token, Moment, WaitReason)>,
    pub(super) reachable: Option<bool>,
    pub(super) last_error: Option<Error>,
}

impl ElectionView {
    /// The leader, as far as it is known at `now`. Of a store that does not answer it is not known any more when the lease
    /// that was last observed has expired: then nobody may be leading. Our own term knows its deadline by itself.
    pub(super) fn leader(&self, me: &CandidateId, now: Moment) -> Option<String> {
        let expired = self.lease_expires.is_some_and(|at| at <= now);
        let unknown = expired && self.reachable == Some(false);
        self.leader.clone().filter(|leader| !unknown || leader == me.as_str())
    }

    /// The term in its start-up wait at `now`, and what is left of it.
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
        store: Arc<dyn Store>,
        commands: mpsc::UnboundedSender<DriverCommand>,
        priority: i32,
        unhealthy: Option<&str>,
    ) -> Self {
        ElectionState {
            name: name.clone(),
            candidate: candidate.clone(),
            priority,
            context: Arc::new(Context { clock, store, commands, process: ProcessId::current() }),
            leader_until: AtomicU64::new(Moment::NEVER.as_nanos()),
            sleeps_until: AtomicU64::new(u64::MAX),
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
            moved: watch::channel(Phase::Waiting).0,
            candidate_state: watch::channel(CandidateState::new(Phase::Waiting, false, unhealthy))
                .0,
            events: broadcast::channel(EVENT_BUFFER).0,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ElectionView> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn leader_until(&self, deadline: Moment) {
        self.leader_until.store(deadline.as_nanos(), Ordering::Release);
    }

    pub(super) fn tell(&self, said: HandleInput) {
        self.context.tell(ONLY, said);
    }

    /// Changes the state and tells of it in one step, so that a listener who comes in between sees one or the other.
    fn report(&self, change: impl FnOnce(&mut ElectionView) -> Event) {
        let mut state = self.state();
        let event = change(&mut state);
        // Nobody listening is fine.
        let _ = self.events.send(event);
    }

    /// What is true now, as events, and everything after it.
    pub(super) fn listen(&self) -> (Vec<Event>, broadcast::Receiver<Event>) {
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

    pub(super) fn current_term(&self) -> Option<Arc<Leading>> {
        self.term.borrow().clone()
    }
}

impl DriverEvents for ElectionState {
    fn lead(&self, _: MachineId, lead: TermStart) {
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

    fn starting(&self, _: MachineId, token: Token, wait: StartupWait) {
        let StartupWait { left, reason } = wait;
        tracing::warn!(target: EVENT, name = %self.name, candidate = %self.candidate, %token, ?left, "starting: {reason}");
        let until = self.context.clock.now() + left;
        self.report(|state| {
            state.starting = Some((token, until, reason));
            Event::Starting { token, wait }
        });
    }

    fn extend(&self, _: MachineId, deadline: Moment) {
        let Some(term) = self.current_term() else { return };
        term.extend(deadline);
        // Once the work was told to stop, "am I leader" stays no.
        if self.leader_until.load(Ordering::Acquire) != Moment::NEVER.as_nanos() {
            self.leader_until(deadline);
        }
    }

    fn end(&self, _: MachineId, ending: TermEnd) -> bool {
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

    fn holder_changed(&self, _: MachineId, holder: Option<String>, leads: bool) {
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

    fn unreachable(&self, _: MachineId, error: Error) {
        tracing::warn!(target: EVENT, name = %self.name, %error, "the store gives no usable answer");
        self.report(|state| {
            state.reachable = Some(false);
            state.last_error = Some(error.clone());
            Event::StoreUnreachable(error)
        });
    }

    fn back(&self, _: MachineId) {
        tracing::info!(target: EVENT, name = %self.name, "the store answers again");
        self.report(|state| {
            state.reachable = Some(true);
            Event::StoreBack
        });
    }

    fn released(&self, _: MachineId, token: Token) {
        self.report(|_| Event::Released { token });
    }

    fn same_id(&self, _: MachineId) {
        // The presence of a candidate has its id too: one warning is enough.
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

    fn stands(&self, _: MachineId, phase: Phase, drained: bool) {
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
        self.moved.send_replace(phase);
    }

    fn answered(&self, _: MachineId) {
        self.state().reachable = Some(true);
    }

    fn over(&self) {
        if let Some(term) = self.term.send_replace(None) {
            self.leader_until(Moment::NEVER);
            term.end(TermEnd { why: EndReason::Shutdown, deadline: Moment::NEVER });
        }
        self.candidate_state.send_replace(CandidateState::Stopping);
        self.moved.send_replace(Phase::Stopped);
    }

    fn saw(&self, _: MachineId, lease: &Lease) {
        let mut state = self.state();
        state.since = lease.since.filter(|_| lease.leader().is_some());
        state.lease_expires = Some(self.context.clock.now() + lease.left);
    }

    fn renewal(&self, _: MachineId, took: Duration, answer: &Result<Answer>) {
        self.state().renewals.note(took, answer);
    }

    fn checked(&self, _: MachineId, result: &HealthResult) {
        self.state().unhealthy = result.clone().err();
    }

    fn sleeps_until(&self, at: Option<Moment>) {
        self.sleeps_until.store(at.map_or(u64::MAX, Moment::as_nanos), Ordering::Release);
    }
}
