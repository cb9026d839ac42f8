//! The state of one member, shared by its handles, its driver and its coordinator.
//!
//! [`MemberContext`] implements [`DriverEvents`]: the driver reports every change of a machine here. From there it goes to the
//! application as a [`FleetEvent`], to observers as a [`FleetNotice`](super::FleetNotice) and to the coordinator as a
//! [`MemberInput`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::event::{FleetEvent, MembershipTerm, QueuedEvent};
use super::notice::NoticeChannel;
use super::shard_work::MemberTerm;
use super::{Coverage, Member, Reason, Shard, ShardNumber, source::Shards};
use crate::clock::Moment;
use crate::driver::{Context, DriverEvents, IdMap, MachineId, RenewalStats};
use crate::error::{Error, Kind, Result};
use crate::lease::{Answer, CandidateId, Name, StartupWait, Token};
use crate::machine::{EndReason, Phase, TermEnd, TermStart};

/// The machine of the membership lease; the machines of shards are numbered from one.
pub(super) const MEMBERSHIP: MachineId = 0;
/// Minimum interval between warnings, since the same warning may concern many shards.
const WARNING_INTERVAL: Duration = Duration::from_secs(5);

/// An input of the coordinator, from the driver or from a handle.
#[derive(Debug)]
pub(super) enum MemberInput {
    MembershipAcquired,
    MembershipLost(Reason),
    /// The holder of the shard's lease, and whether it works on the shard: `false` while it is in its start-up wait.
    Owner(ShardNumber, Option<String>, bool),
    PhaseChanged(ShardNumber, Phase),
    /// The store has answered for the first time, or has answered a claim.
    Answered(ShardNumber),
    /// The lease of the shard cannot be read.
    Broken(ShardNumber),
    /// The application has called `leave`.
    Leave,
    /// The driver has ended.
    Over,
}

/// The shared state of one member.
pub(super) struct MemberContext {
    pub(super) name: Name,
    pub(super) me: CandidateId,
    pub(super) context: Arc<Context>,
    inputs: mpsc::UnboundedSender<MemberInput>,
    events: mpsc::UnboundedSender<QueuedEvent>,
    pub(super) notices: NoticeChannel,
    /// How long before its deadline the work on a shard must stop.
    stop_within: Duration,
    /// Receives every new deadline, if the application has subscribed.
    pub(super) extensions: OnceLock<mpsc::UnboundedSender<(u64, Moment)>>,
    slots: Mutex<IdMap<ShardSlot>>,
    owned: RwLock<HashMap<Shard, Arc<MemberTerm>>>,
    terms: AtomicU64,
    warned: AtomicU64,
    pub(super) sleeps_until: Arc<AtomicU64>,
    renewals: Mutex<RenewalStats>,
    pub(super) view: Mutex<FleetView>,
    pub(super) healthy: AtomicBool,
    pub(super) over: watch::Sender<bool>,
    /// `None` before the first answer of the store, then the result of the last request.
    pub(super) reachable: watch::Sender<Option<Result<()>>>,
}

/// The coordinator's last view of the whole fleet, for the handles.
#[derive(Default)]
pub(super) struct FleetView {
    pub(super) members: Vec<Member>,
    pub(super) coverage: Coverage,
    pub(super) shards: Arc<Shards>,
    /// The error of the source of shards, while it cannot be read.
    pub(super) source_error: Option<Error>,
    /// Another running process is a member with the same id.
    pub(super) namesake: bool,
}

/// The state that belongs to one machine.
struct ShardSlot {
    /// `None` for the membership lease.
    shard: Option<Shard>,
    /// The coordinator waits for an answer.
    expected: bool,
    /// Why the shard is being released.
    reason: Option<Reason>,
    term: Option<Arc<MemberTerm>>,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemberContext {
    pub(super) fn new(
        name: Name,
        me: CandidateId,
        context: Context,
        inputs: mpsc::UnboundedSender<MemberInput>,
        events: mpsc::UnboundedSender<QueuedEvent>,
        stop_within: Duration,
    ) -> Self {
        MemberContext {
            name,
            me,
            context: Arc::new(context),
            inputs,
            events,
            notices: NoticeChannel::default(),
            stop_within,
            extensions: OnceLock::new(),
            slots: Mutex::default(),
            owned: RwLock::default(),
            terms: AtomicU64::new(0),
            warned: AtomicU64::new(0),
            sleeps_until: Arc::new(AtomicU64::new(u64::MAX)),
            renewals: Mutex::default(),
            view: Mutex::default(),
            healthy: AtomicBool::new(true),
            over: watch::channel(false).0,
            reachable: watch::channel(None).0,
        }
    }

    fn slots(&self) -> MutexGuard<'_, IdMap<ShardSlot>> {
        locked(&self.slots)
    }

    /// Sends an event to the application, if it still receives events, and to the observers.
    pub(super) fn report(&self, event: impl Into<QueuedEvent>) {
        let event = event.into();
        self.notices.send(|| event.notice());
        let _ = self.events.send(event);
    }

    pub(super) fn notify(&self, input: MemberInput) {
        let _ = self.inputs.send(input);
    }

    /// Adds the state of a new machine.
    pub(super) fn add(&self, id: MachineId, shard: Option<Shard>) {
        let slot = ShardSlot { shard, expected: true, reason: None, term: None };
        self.slots().insert(id, slot);
    }

    /// Passes the next answer about this machine to the coordinator.
    pub(super) fn expect_answer(&self, id: MachineId) {
        if let Some(slot) = self.slots().get_mut(&id) {
            slot.expected = true;
        }
    }

    /// Records why the lease is about to be released.
    pub(super) fn set_reason(&self, id: MachineId, reason: Reason) {
        if let Some(slot) = self.slots().get_mut(&id) {
            slot.reason = Some(reason);
        }
    }

    pub(super) fn is_owned(&self, shard: &str) -> bool {
        let owned = self.owned.read().unwrap_or_else(PoisonError::into_inner);
        owned.get(shard).is_some_and(|term| term.continues())
    }

    pub(super) fn owned(&self) -> Vec<(Shard, Token)> {
        let owned = self.owned.read().unwrap_or_else(PoisonError::into_inner);
        let valid = owned.iter().filter(|(_, term)| term.continues());
        let mut owned: Vec<_> =
            valid.map(|(shard, term)| (shard.clone(), term.term.hold.token)).collect();
        owned.sort_unstable();
        owned
    }

    pub(super) fn is_member(&self) -> bool {
        let slots = self.slots();
        let term = slots.get(&MEMBERSHIP).and_then(|slot| slot.term.as_ref());
        term.is_some_and(|term| term.continues())
    }

    pub(super) fn membership(&self) -> Option<(Token, Duration)> {
        let term = self.membership_term()?;
        Some((term.term.hold.token, term.term.valid_for()))
    }

    /// The term of the membership lease, while this member holds it.
    pub(super) fn membership_term(&self) -> Option<Arc<MemberTerm>> {
        let slots = self.slots();
        let term = slots.get(&MEMBERSHIP)?.term.as_ref()?;
        term.continues().then(|| term.clone())
    }

    pub(super) fn renewals(&self) -> RenewalStats {
        locked(&self.renewals).clone()
    }

    /// How late the driver is, and the longest time that any work has overrun its deadline.
    pub(super) fn late_and_overrun(&self) -> (Duration, Duration) {
        let now = self.context.clock.now();
        let due = Moment::from_nanos(self.sleeps_until.load(Ordering::Acquire));
        let slots = self.slots();
        let terms = slots.values().filter_map(|slot| slot.term.as_ref());
        let overrun = terms.map(|term| term.term.overrun(now)).max().unwrap_or_default();
        (now.since(due), overrun)
    }

    /// The driver has ended. Nothing is renewed any more.
    pub(super) fn driver_ended(&self) {
        let left: Vec<ShardSlot> = self.slots().drain().map(|(_, slot)| slot).collect();
        for slot in left {
            let Some(term) = slot.term else { continue };
            let why = term.reason().or(slot.reason).unwrap_or(Reason::Expired);
            term.end(Moment::PAST, why);
            if let Some(shard) = slot.shard {
                self.disown(&shard);
                let (number, token) = (term.number, term.term.hold.token);
                let revoked = FleetEvent::Revoked { shard, token, number, why };
                self.report(QueuedEvent::Ended(term, revoked));
            }
        }
        self.notices.close();
        self.notify(MemberInput::Over);
        self.over.send_replace(true);
    }

    /// Returns when the fleet has ended.
    pub(super) fn has_ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut over = self.over.subscribe();
        async move {
            // An error means that the member was dropped.
            let _ = over.wait_for(|over| *over).await;
        }
    }

    fn disown(&self, shard: &Shard) {
        self.owned.write().unwrap_or_else(PoisonError::into_inner).remove(shard);
    }
}

/// Maps the machine's reason to that of a shard. For `Rebalance` and `Shutdown` the reason that the application or the
/// coordinator has recorded is more precise.
fn revoke_reason(reason: &EndReason) -> Reason {
    match reason {
        EndReason::Shutdown => Reason::Shutdown,
        EndReason::Unhealthy => Reason::Unhealthy,
        EndReason::Drained => Reason::Drain,
        EndReason::Unreachable(_)
        | EndReason::StoreError(_)
        | EndReason::Paused(_)
        | EndReason::Refused(_) => Reason::Expired,
        EndReason::Dropped => Reason::Dropped,
        EndReason::Resigned | EndReason::Asked => Reason::Rebalance,
    }
}

impl DriverEvents for MemberContext {
    fn lead(&self, id: MachineId, lead: TermStart) {
        let (token, deadline) = (lead.hold.token, lead.deadline);
        let number = self.terms.fetch_add(1, Ordering::Relaxed) + 1;
        let term = MemberTerm::begin(id, lead, self.context.clone(), number, self.stop_within);
        let shard = {
            let mut slots = self.slots();
            let Some(slot) = slots.get_mut(&id) else { return };
            slot.term = Some(term.clone());
            slot.reason = None;
            slot.shard.clone()
        };
        let Some(shard) = shard else {
            let term = MembershipTerm { hold: term.term.hold.clone(), deadline };
            self.report(FleetEvent::Joined { token, number, term });
            return self.notify(MemberInput::MembershipAcquired);
        };
        // The handle that the application takes from the queue.
        if !term.term.enter() {
            // The term is over already, and the driver is about to report its end.
            return;
        }
        let mut owned = self.owned.write().unwrap_or_else(PoisonError::into_inner);
        owned.insert(shard.clone(), term.clone());
        drop(owned);
        self.report(QueuedEvent::Assigned(shard, term));
    }

    fn extend(&self, id: MachineId, deadline: Moment) {
        let slots = self.slots();
        let Some(term) = slots.get(&id).and_then(|slot| slot.term.as_ref()) else {
            return;
        };
        term.term.extend(deadline);
        if let Some(extensions) = self.extensions.get() {
            let _ = extensions.send((term.number, deadline));
        }
    }

    fn end(&self, id: MachineId, ending: TermEnd) -> bool {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(&id) else { return true };
        let Some(term) = slot.term.clone() else { return true };
        let (number, token) = (term.number, term.term.hold.token);
        let refused = ending.reason.ends_at_once();
        let why = match revoke_reason(&ending.reason) {
            why @ (Reason::Rebalance | Reason::Shutdown) => {
                term.reason().or(slot.reason).unwrap_or(why)
            }
            why => why,
        };
        slot.reason = Some(why);
        let shard = slot.shard.clone();
        drop(slots);
        if let Some(shard) = &shard {
            self.disown(shard);
        }
        let idle = term.end(ending.deadline, why);
        if let (true, Some(extensions)) = (refused, self.extensions.get()) {
            let _ = extensions.send((number, Moment::PAST));
        }
        let Some(shard) = shard else {
            self.report(FleetEvent::Left { number, why });
            self.notify(MemberInput::MembershipLost(why));
            return true;
        };
        self.report(QueuedEvent::Ended(term, FleetEvent::Revoked { shard, token, number, why }));
        idle
    }

    fn starting(&self, id: MachineId, token: Token, wait: StartupWait) {
        let slots = self.slots();
        let shard = slots.get(&id).and_then(|slot| slot.shard.as_ref());
        tracing::debug!(?shard, %token, left = ?wait.left, "starting: {}", wait.reason);
        drop(slots);
        let StartupWait { left, reason } = wait;
        self.warn(id, &format!("starting in {left:?}: {reason}"));
    }

    fn holder_changed(&self, id: MachineId, holder: Option<String>, leads: bool) {
        if id != MEMBERSHIP {
            self.notify(MemberInput::Owner(id, holder, leads));
        }
    }

    fn unreachable(&self, id: MachineId, error: Error) {
        if id != MEMBERSHIP && error.kind() != Kind::Unavailable {
            let slots = self.slots();
            let shard = slots.get(&id).and_then(|slot| slot.shard.as_ref());
            tracing::error!(shard = ?shard, %error, "no member can own this shard");
            return self.notify(MemberInput::Broken(id));
        }
        if id == MEMBERSHIP {
            self.reachable.send_replace(Some(Err(error.clone())));
            self.report(FleetEvent::StoreUnreachable(error));
        }
    }

    fn store_back(&self, id: MachineId) {
        if id == MEMBERSHIP {
            self.report(FleetEvent::StoreBack);
        }
    }

    fn released(&self, id: MachineId, token: Token) {
        // `moved` reports the release, when the machine is waiting again or has stopped.
        tracing::trace!(place = id, %token, "released");
    }

    fn same_id(&self, id: MachineId) {
        if id == MEMBERSHIP {
            locked(&self.view).namesake = true;
        }
    }

    fn warn(&self, _: MachineId, warning: &str) {
        let now = self.context.clock.now();
        let before = Moment::from_nanos(self.warned.load(Ordering::Relaxed));
        if now.since(before) >= WARNING_INTERVAL {
            self.warned.store(now.as_nanos(), Ordering::Relaxed);
            tracing::warn!(member = %self.me, "{warning}");
        } else {
            tracing::debug!(member = %self.me, "{warning}");
        }
    }

    fn answered(&self, id: MachineId) {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(&id) else { return };
        if !std::mem::take(&mut slot.expected) && id != MEMBERSHIP {
            return;
        }
        drop(slots);
        if id == MEMBERSHIP {
            self.reachable
                .send_if_modified(|reachable| !matches!(reachable.replace(Ok(())), Some(Ok(()))));
        } else {
            self.notify(MemberInput::Answered(id));
        }
    }

    fn phase_changed(&self, id: MachineId, phase: Phase) {
        if matches!(phase, Phase::Waiting | Phase::Stopped) {
            let mut slots = self.slots();
            let ended = slots.get_mut(&id).and_then(|slot| {
                let term = slot.term.take()?;
                let why = slot.reason.take().unwrap_or(Reason::Rebalance);
                let shard = slot.shard.clone()?;
                let (number, token) = (term.number, term.term.hold.token);
                let released = FleetEvent::Released { shard, token, number, why };
                Some(QueuedEvent::Ended(term, released))
            });
            if phase == Phase::Stopped {
                slots.remove(&id);
            }
            drop(slots);
            if let Some(event) = ended {
                self.report(event);
            }
        }
        if id != MEMBERSHIP {
            self.notify(MemberInput::PhaseChanged(id, phase));
        }
    }

    fn renewal(&self, id: MachineId, took: Duration, answer: &Result<Answer>) {
        // All renewals of a batch take equally long: one is enough.
        if id == MEMBERSHIP || answer.is_err() {
            locked(&self.renewals).note(took, answer);
        }
    }

    fn health_changed(&self, id: MachineId, healthy: bool) {
        if id == MEMBERSHIP {
            self.healthy.store(healthy, Ordering::Relaxed);
        }
    }
}
