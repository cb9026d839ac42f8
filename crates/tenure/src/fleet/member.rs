//! What the member's handles, its driver and its office all see, and where the driver reports to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::event::{FleetEvent, ShardWork};
use super::{Coverage, Member, Reason, Shard, ShardNumber, source::Shards};
use crate::clock::Moment;
use crate::driver::{Context, DriverEvents, IdMap, MachineId, RenewalStats, Term};
use crate::error::{Error, Kind, Result};
use crate::lease::{Answer, CandidateId, Hold, Name, StartupWait, Token};
use crate::machine::{EndReason, Phase, TermEnd, TermStart};

/// The place of the lease which the member holds on itself; shards are counted from one.
pub(super) const MEMBERSHIP: MachineId = 0;
/// Warnings that concern many shards alike are told this often.
const WARN_EVERY: Duration = Duration::from_secs(5);

/// What the office is told.
#[derive(Debug)]
pub(super) enum MemberInput {
    Seated,
    Unseated(Reason),
    /// The holder of the shard's lease, and whether it works on the shard: it is not in its start-up wait.
    Owner(ShardNumber, Option<String>, bool),
    Moved(ShardNumber, Phase),
    Answered(ShardNumber),
    Broken(ShardNumber),
    Leave,
    Over,
}

pub(super) struct MemberContext {
    pub(super) name: Name,
    pub(super) me: CandidateId,
    pub(super) context: Arc<Context>,
    notes: mpsc::UnboundedSender<MemberInput>,
    events: mpsc::UnboundedSender<FleetEvent>,
    /// Told of every new deadline, if anybody wants to know.
    pub(super) extensions: OnceLock<mpsc::UnboundedSender<(u64, Moment)>>,
    slots: Mutex<IdMap<ShardSlot>>,
    owned: RwLock<HashMap<Shard, Arc<Term>>>,
    terms: AtomicU64,
    warned: AtomicU64,
    sleeps_until: AtomicU64,
    renewals: Mutex<RenewalStats>,
    pub(super) view: Mutex<FleetView>,
    pub(super) healthy: AtomicBool,
    pub(super) over: watch::Sender<bool>,
    /// `None` before the first answer of the store; then whether the last was one.
    pub(super) reachable: watch::Sender<Option<Result<()>>>,
}

/// What is known of the whole fleet, as of a moment ago.
#[derive(Default)]
pub(super) struct FleetView {
    pub(super) members: Vec<Member>,
    pub(super) coverage: Coverage,
    pub(super) shards: Arc<Shards>,
    /// Why the source of shards cannot be read, while it cannot.
    pub(super) source_error: Option<Error>,
    /// Another living process is a member under the id of this one.
    pub(super) namesake: bool,
}

/// What belongs to one machine.
struct ShardSlot {
    /// `None` for the membership.
    shard: Option<Shard>,
    /// The office waits for an answer.
    expected: bool,
    /// Why the shard is being given away.
    reason: Option<Reason>,
    term: Option<(Arc<Term>, u64)>,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemberContext {
    pub(super) fn new(
        name: Name,
        me: CandidateId,
        context: Context,
        notes: mpsc::UnboundedSender<MemberInput>,
        events: mpsc::UnboundedSender<FleetEvent>,
    ) -> Self {
        MemberContext {
            name,
            me,
            context: Arc::new(context),
            notes,
            events,
            extensions: OnceLock::new(),
            slots: Mutex::default(),
            owned: RwLock::default(),
            terms: AtomicU64::new(0),
            warned: AtomicU64::new(0),
            sleeps_until: AtomicU64::new(u64::MAX),
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

    /// Nobody listening is fine.
    pub(super) fn report(&self, event: FleetEvent) {
        let _ = self.events.send(event);
    }

    pub(super) fn note(&self, note: MemberInput) {
        let _ = self.notes.send(note);
    }

    /// There is such a machine from now on.
    pub(super) fn add(&self, place: MachineId, shard: Option<Shard>) {
        let slot = ShardSlot { shard, expected: true, reason: None, term: None };
        self.slots().insert(place, slot);
    }

    /// The next answer about it is to be noted.
    pub(super) fn expect(&self, place: MachineId) {
        if let Some(slot) = self.slots().get_mut(&place) {
            slot.expected = true;
        }
    }

    /// Why it is about to be given away.
    pub(super) fn reason(&self, place: MachineId, reason: Reason) {
        if let Some(slot) = self.slots().get_mut(&place) {
            slot.reason = Some(reason);
        }
    }

    pub(super) fn is_owned(&self, shard: &str) -> bool {
        let owned = self.owned.read().unwrap_or_else(PoisonError::into_inner);
        owned.get(shard).is_some_and(|term| term.goes_on())
    }

    pub(super) fn owned(&self) -> Vec<(Shard, Token)> {
        let owned = self.owned.read().unwrap_or_else(PoisonError::into_inner);
        let valid = owned.iter().filter(|(_, term)| term.goes_on());
        let mut owned: Vec<_> =
            valid.map(|(shard, term)| (shard.clone(), term.hold.token)).collect();
        owned.sort_unstable();
        owned
    }

    pub(super) fn is_member(&self) -> bool {
        let slots = self.slots();
        let term = slots.get(&MEMBERSHIP).and_then(|slot| slot.term.as_ref());
        term.is_some_and(|(term, _)| term.goes_on())
    }

    pub(super) fn membership(&self) -> Option<(Token, Duration)> {
        let slots = self.slots();
        let (term, _) = slots.get(&MEMBERSHIP)?.term.as_ref()?;
        term.goes_on().then(|| (term.hold.token, term.valid_for()))
    }

    /// The term of the lease on this member, while it is held.
    pub(super) fn membership_term(&self) -> Option<Arc<Term>> {
        let slots = self.slots();
        let (term, _) = slots.get(&MEMBERSHIP)?.term.as_ref()?;
        term.goes_on().then(|| term.clone())
    }

    pub(super) fn renewals(&self) -> RenewalStats {
        locked(&self.renewals).clone()
    }

    /// How late the driver is, and how long the work that is worst has gone on after its time.
    pub(super) fn late_and_overrun(&self) -> (Duration, Duration) {
        let now = self.context.clock.now();
        let due = Moment::from_nanos(self.sleeps_until.load(Ordering::Acquire));
        let slots = self.slots();
        let terms = slots.values().filter_map(|slot| slot.term.as_ref());
        let overrun = terms.map(|(term, _)| term.overrun(now)).max().unwrap_or_default();
        (now.since(due), overrun)
    }

    fn disown(&self, shard: &Shard) {
        self.owned.write().unwrap_or_else(PoisonError::into_inner).remove(shard);
    }
}

/// What the machine's reason means for a shard, unless we know better.
fn reason(why: &EndReason) -> Reason {
    match why {
        EndReason::Shutdown => Reason::Shutdown,
        EndReason::Unhealthy => Reason::Unhealthy,
        EndReason::Drained => Reason::Drain,
        EndReason::Unreachable(_)
        | EndReason::StoreError(_)
        | EndReason::Paused(_)
        | EndReason::Refused(_) => Reason::Expired,
        _ => Reason::Rebalance,
    }
}

impl DriverEvents for MemberContext {
    fn lead(&self, place: MachineId, lead: TermStart) {
        let (token, deadline) = (lead.hold.token, lead.deadline);
        let checkpoint = lead.checkpoint.clone();
        let hold: Hold = lead.hold.clone();
        let term = Arc::new(Term::begin(place, lead, self.context.clone()));
        let number = self.terms.fetch_add(1, Ordering::Relaxed) + 1;
        let shard = {
            let mut slots = self.slots();
            let Some(slot) = slots.get_mut(&place) else { return };
            slot.term = Some((term.clone(), number));
            slot.reason = None;
            slot.shard.clone()
        };
        let Some(shard) = shard else {
            self.report(FleetEvent::Joined { hold, number, deadline });
            return self.note(MemberInput::Seated);
        };
        let Some(work) = ShardWork::begin(&term, number) else {
            // It was over before it began, and the driver is about to say so.
            return;
        };
        let mut owned = self.owned.write().unwrap_or_else(PoisonError::into_inner);
        owned.insert(shard.clone(), term);
        drop(owned);
        self.report(FleetEvent::Assigned { shard, token, checkpoint, work });
    }

    fn extend(&self, place: MachineId, deadline: Moment) {
        let slots = self.slots();
        let Some((term, number)) = slots.get(&place).and_then(|slot| slot.term.as_ref()) else {
            return;
        };
        term.extend(deadline);
        if let Some(extensions) = self.extensions.get() {
            let _ = extensions.send((*number, deadline));
        }
    }

    fn end(&self, place: MachineId, ending: TermEnd) -> bool {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(&place) else { return true };
        let Some((term, number)) = slot.term.clone() else { return true };
        let refused = ending.why.ends_at_once();
        let why = match reason(&ending.why) {
            Reason::Rebalance | Reason::Shutdown => slot.reason.unwrap_or(reason(&ending.why)),
            why => why,
        };
        slot.reason = Some(why);
        let shard = slot.shard.clone();
        drop(slots);
        let idle = term.end(ending.deadline);
        if let (true, Some(extensions)) = (refused, self.extensions.get()) {
            let _ = extensions.send((number, Moment::NEVER));
        }
        let Some(shard) = shard else {
            self.report(FleetEvent::Left { number, why });
            self.note(MemberInput::Unseated(why));
            return true;
        };
        self.disown(&shard);
        self.report(FleetEvent::Revoked { shard, token: term.hold.token, number, why });
        idle
    }

    fn starting(&self, place: MachineId, token: Token, wait: StartupWait) {
        let slots = self.slots();
        let shard = slots.get(&place).and_then(|slot| slot.shard.as_ref());
        tracing::debug!(?shard, %token, left = ?wait.left, "starting: {}", wait.reason);
        drop(slots);
        let StartupWait { left, reason } = wait;
        self.warn(place, &format!("starting in {left:?}: {reason}"));
    }

    fn holder_changed(&self, place: MachineId, holder: Option<String>, leads: bool) {
        if place != MEMBERSHIP {
            self.note(MemberInput::Owner(place, holder, leads));
        }
    }

    fn unreachable(&self, place: MachineId, error: Error) {
        if place != MEMBERSHIP && error.kind() != Kind::Unavailable {
            let slots = self.slots();
            let shard = slots.get(&place).and_then(|slot| slot.shard.as_ref());
            tracing::error!(shard = ?shard, %error, "nobody can own this shard");
            return self.note(MemberInput::Broken(place));
        }
        if place == MEMBERSHIP {
            self.reachable.send_replace(Some(Err(error.clone())));
            self.report(FleetEvent::StoreUnreachable(error));
        }
    }

    fn back(&self, place: MachineId) {
        if place == MEMBERSHIP {
            self.report(FleetEvent::StoreBack);
        }
    }

    fn released(&self, place: MachineId, token: Token) {
        // Told when the machine has come to rest.
        tracing::trace!(place, %token, "released");
    }

    fn same_id(&self, place: MachineId) {
        if place == MEMBERSHIP {
            locked(&self.view).namesake = true;
        }
    }

    fn warn(&self, _: MachineId, warning: &str) {
        let now = self.context.clock.now();
        let before = Moment::from_nanos(self.warned.load(Ordering::Relaxed));
        if now.since(before) >= WARN_EVERY {
            self.warned.store(now.as_nanos(), Ordering::Relaxed);
            tracing::warn!(member = %self.me, "{warning}");
        } else {
            tracing::debug!(member = %self.me, "{warning}");
        }
    }

    fn over(&self) {
        let left: Vec<ShardSlot> = self.slots().drain().map(|(_, slot)| slot).collect();
        for slot in left {
            let Some((term, number)) = slot.term else { continue };
            term.end(Moment::NEVER);
            if let Some(shard) = slot.shard {
                self.disown(&shard);
                let why = slot.reason.unwrap_or(Reason::Expired);
                self.report(FleetEvent::Revoked { shard, token: term.hold.token, number, why });
            }
        }
        self.note(MemberInput::Over);
        self.over.send_replace(true);
    }

    fn answered(&self, place: MachineId) {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(&place) else { return };
        if !std::mem::take(&mut slot.expected) && place != MEMBERSHIP {
            return;
        }
        drop(slots);
        if place == MEMBERSHIP {
            self.reachable
                .send_if_modified(|reachable| !matches!(reachable.replace(Ok(())), Some(Ok(()))));
        } else {
            self.note(MemberInput::Answered(place));
        }
    }

    fn moved(&self, place: MachineId, phase: Phase) {
        if matches!(phase, Phase::Waiting | Phase::Stopped) {
            let mut slots = self.slots();
            let ended = slots.get_mut(&place).and_then(|slot| {
                let (term, number) = slot.term.take()?;
                let why = slot.reason.take().unwrap_or(Reason::Rebalance);
                let shard = slot.shard.clone()?;
                Some(FleetEvent::Released { shard, token: term.hold.token, number, why })
            });
            if phase == Phase::Stopped {
                slots.remove(&place);
            }
            drop(slots);
            if let Some(event) = ended {
                self.report(event);
            }
        }
        if place != MEMBERSHIP {
            self.note(MemberInput::Moved(place, phase));
        }
    }

    fn renewal(&self, place: MachineId, took: Duration, answer: &Result<Answer>) {
        // All of a batch took as long: one of them is enough.
        if place == MEMBERSHIP || answer.is_err() {
            locked(&self.renewals).note(took, answer);
        }
    }

    fn fit(&self, place: MachineId, healthy: bool) {
        if place == MEMBERSHIP {
            self.healthy.store(healthy, Ordering::Relaxed);
        }
    }

    fn sleeps_until(&self, at: Option<Moment>) {
        self.sleeps_until.store(at.map_or(u64::MAX, Moment::as_nanos), Ordering::Release);
    }
}
