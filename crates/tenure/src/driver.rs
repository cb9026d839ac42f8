//! The driver: runs many machines over one store, on its own thread, runtime and connection, so that a busy application cannot
//! starve a renewal.
//!
//! The driver implements no rule of the election. It passes inputs to the [`Machine`]s, sends their requests to the store in
//! batches, and reports all other effects to its [`DriverEvents`].

mod command;
mod events;
mod health_task;
mod id_map;
mod renewal_stats;
mod term;
mod thread;
mod timers;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, LocalBoxFuture};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;

use crate::clock::{Clock, Moment};
use crate::error::{Error, Kind, Result};
use crate::fleet::overrides;
use crate::lease::{Answer, CandidateId, Claim, Hold, Lease, Name, Release};
use crate::machine::{Effect, Input as MachineInput, Phase};
use crate::request::{self, ReceivedRequest};
use crate::store::{Change, Scope, Store, StoreExt as _, wrong_count};
use crate::timing::Timing;

pub(crate) use command::{DriverCommand, HandleInput, MachineSlot};
pub(crate) use events::DriverEvents;
pub(crate) use health_task::{HealthTask, NOT_CHECKED};
pub(crate) use id_map::IdMap;
pub use renewal_stats::RenewalStats;
pub(crate) use term::{Context, Term};
pub(crate) use thread::spawn;
use timers::Timers;

/// The id of a machine of one driver. An id is never reused.
pub(crate) type MachineId = u64;

/// The maximum number of commands that the driver processes before it reads the clock again.
const MAX_COMMANDS_PER_TURN: usize = 1_000;

/// The result of a call to the store.
enum StoreReply {
    /// The answers for machines, and when the call was sent.
    Machines(Moment, Vec<(MachineId, MachineInput)>),
    Requests(Result<Vec<Result<Lease>>>),
    /// Whether the store has recorded a drain of this machine's candidate; `None` if the store did not answer.
    DrainRecord(MachineId, Option<bool>),
    Nothing,
}

/// The requests of this turn, which the driver sends together.
#[derive(Default)]
struct Batch {
    acquire: Vec<(MachineId, u64, Claim)>,
    renew: Vec<(MachineId, u64, Hold)>,
    release: Vec<(MachineId, u64, Release)>,
    observe: Vec<(MachineId, u64, Name)>,
    read_requests: bool,
    /// Requests from outside that were processed.
    answers: Vec<Release>,
}

pub(crate) struct Driver {
    store: Arc<dyn Store>,
    clock: Clock,
    events: Arc<dyn DriverEvents>,
    ttl: Duration,
    try_for: Duration,
    /// The maximum number of items in one call, from the limits of the store.
    max_batch: usize,
    slots: IdMap<Box<MachineSlot>>,
    names: HashMap<Name, MachineId>,
    timers: Timers,
    /// More machines may be added.
    open: bool,
    commands: mpsc::UnboundedReceiver<DriverCommand>,
    calls: FuturesUnordered<LocalBoxFuture<'static, StoreReply>>,
    batch: Batch,
    effects: Vec<Effect>,
}

impl Driver {
    /// Creates a driver. All of its machines share one timing.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        events: Arc<dyn DriverEvents>,
        timing: &Timing,
        commands: mpsc::UnboundedReceiver<DriverCommand>,
    ) -> Self {
        let max_batch = store.limits().max_batch.max(1);
        Driver {
            store,
            clock,
            events,
            ttl: timing.ttl,
            try_for: timing.try_for(),
            max_batch,
            slots: IdMap::default(),
            names: HashMap::new(),
            timers: Timers::default(),
            open: true,
            commands,
            calls: FuturesUnordered::new(),
            batch: Batch::default(),
            effects: Vec::new(),
        }
    }

    /// Runs until the driver was closed and every machine has stopped, or the application has dropped its handles. `scope`
    /// selects the changes that concern the driver's machines.
    pub(crate) async fn run(mut self, scope: Scope) {
        // Watch before the first observation, so that no change in between is missed.
        let mut watch = self.store.watch(&scope);
        loop {
            // Commands first: after the application has dropped the election, nothing more may be sent.
            if !self.process_commands() {
                break;
            }
            self.flush();
            if !self.open && self.slots.is_empty() {
                break;
            }
            let wake_at = self.timers.next();
            self.events.sleeps_until(wake_at);
            let timer = sleep_until(&self.clock, wake_at);
            tokio::select! {
                // The clock first: incoming events must not delay a renewal.
                biased;
                () = timer => {
                    if !self.process_commands() {
                        break;
                    }
                    self.woke();
                }
                Some(done) = self.calls.next() => self.done(done),
                command = self.commands.recv() => match command {
                    Some(command) => {
                        let now = self.clock.now();
                        if !self.process_command(now, command) {
                            break;
                        }
                    }
                    None => break,
                },
                Some(change) = watch.next() => self.changed(&change),
            }
        }
        self.events.driver_ended();
    }

    /// Processes queued commands: a bounded number, so that renewals are not delayed. Returns `false` when the driver must end.
    fn process_commands(&mut self) -> bool {
        let now = self.clock.now();
        for _ in 0..MAX_COMMANDS_PER_TURN {
            match self.commands.try_recv() {
                Ok(command) => {
                    if !self.process_command(now, command) {
                        return false;
                    }
                }
                Err(mpsc::error::TryRecvError::Disconnected) => return false,
                Err(mpsc::error::TryRecvError::Empty) => return true,
            }
        }
        true
    }

    fn process_command(&mut self, now: Moment, command: DriverCommand) -> bool {
        match command {
            DriverCommand::Input(id, input) => self.process_input(now, id, input),
            DriverCommand::Add(id, slot) => {
                if slot.accepts_requests {
                    let (name, candidate) = (slot.machine.name(), slot.machine.candidate());
                    self.read_drain_record(id, name.clone(), candidate.clone(), Duration::ZERO);
                }
                self.names.insert(slot.machine.name().clone(), id);
                self.slots.insert(id, slot);
                self.step(now, id, MachineInput::Woke);
            }
            DriverCommand::Close => self.open = false,
            DriverCommand::Abandon => return false,
        }
        true
    }

    fn process_input(&mut self, now: Moment, id: MachineId, input: HandleInput) {
        match &input {
            HandleInput::Note(note) => {
                let Some(slot) = self.slots.get_mut(&id) else { return };
                slot.note = note.clone();
            }
            HandleInput::Health(result) => self.events.checked(id, result),
            _ => {}
        }
        self.step(now, id, input.into());
    }

    fn woke(&mut self) {
        let now = self.clock.now();
        // Remove all due timers first: a machine that is due again at once runs after all others.
        let due: Vec<MachineId> =
            std::iter::from_fn(|| self.timers.take_due(now)).flatten().collect();
        for id in due {
            let Some(slot) = self.slots.get_mut(&id) else { continue };
            if slot.due.is_some_and(|due| due <= now) {
                slot.due = None;
                self.step(now, id, MachineInput::Woke);
            }
        }
    }

    fn changed(&mut self, change: &Change) {
        let now = self.clock.now();
        match change {
            Change::Look => {
                self.batch.read_requests = true;
                let all: Vec<MachineId> = self.slots.keys().copied().collect();
                for id in all {
                    self.step(now, id, MachineInput::Changed(Change::Look));
                }
            }
            Change::Granted { name, .. } | Change::Freed { name, .. } => {
                if let Some(&id) = self.names.get(name) {
                    self.step(now, id, MachineInput::Changed(change.clone()));
                } else if name.is_own() {
                    // A request has arrived or was answered.
                    self.batch.read_requests = true;
                }
            }
        }
    }

    fn done(&mut self, done: StoreReply) {
        match done {
            StoreReply::Machines(sent, answers) => {
                let now = self.clock.now();
                for (id, event) in answers {
                    self.report_answer(now, id, sent, &event);
                    self.step(now, id, event);
                }
            }
            StoreReply::Requests(Ok(leases)) => self.process_requests(leases),
            // The driver reads them again with the next change. The sender reports that it got no answer.
            StoreReply::Requests(Err(error)) => tracing::debug!(%error, "asks cannot be read"),
            StoreReply::DrainRecord(id, drained) => {
                let now = self.clock.now();
                if drained.is_none()
                    && let Some(slot) = self.slots.get_mut(&id)
                {
                    let (name, candidate) = (slot.machine.name(), slot.machine.candidate());
                    let (name, candidate) = (name.clone(), candidate.clone());
                    self.read_drain_record(id, name, candidate, self.try_for);
                }
                self.step(now, id, MachineInput::DrainRecord(drained));
            }
            StoreReply::Nothing => {}
        }
    }

    /// Reports the answer of the store to the callbacks, even if it is too late for the machine.
    fn report_answer(&self, now: Moment, id: MachineId, sent: Moment, event: &MachineInput) {
        let events = &self.events;
        match event {
            MachineInput::Acquired(_, Ok(Answer::Taken(lease))) => events.observed(id, lease),
            MachineInput::Observed(_, Ok(Some(lease))) => events.observed(id, lease),
            MachineInput::Renewed(_, answer) => {
                events.renewal(id, now.since(sent), answer);
                if let Ok(Answer::Taken(lease)) = answer {
                    events.observed(id, lease);
                }
            }
            _ => {}
        }
    }

    fn process_requests(&mut self, leases: Vec<Result<Lease>>) {
        let now = self.clock.now();
        for lease in leases.into_iter().flatten() {
            let Some(name) = lease.name.request_target() else { continue };
            let Some(&id) = self.names.get(&name) else { continue };
            let Some(slot) = self.slots.get_mut(&id) else { continue };
            let Some(received) = request::read(&lease, slot.machine.candidate()) else { continue };
            let ReceivedRequest { token, request, answer } = received;
            if slot.last_request < Some(token) {
                slot.last_request = Some(token);
                tracing::debug!(%name, ask = ?request, "asked");
                self.step(now, id, MachineInput::Requested(request));
                self.batch.answers.extend(answer);
            }
        }
    }

    /// Steps one machine. One `now` serves a whole turn, so that machines that ran together stay aligned. `now` need not be the
    /// latest time: a deadline counts from it, and it is before the request is sent.
    fn step(&mut self, now: Moment, id: MachineId, event: MachineInput) {
        let mut event = Some(event);
        let mut effects = std::mem::take(&mut self.effects);
        while let Some(next) = event.take() {
            let Some(slot) = self.slots.get_mut(&id) else { break };
            let definite = next.is_definite();
            if let MachineInput::Health(healthy) = &next {
                self.events.health_changed(id, *healthy);
            }
            slot.machine.step(now, next, &mut effects);
            for effect in effects.drain(..) {
                if Self::act(&*self.events, &mut self.batch, id, slot, effect) {
                    event = Some(MachineInput::WorkEnded);
                }
            }
            if definite {
                self.events.answered(id);
            }
            let phase = slot.machine.phase();
            self.events.stepped(id, phase, slot.machine.is_drained());
            if std::mem::replace(&mut slot.phase, phase) != phase {
                self.events.phase_changed(id, phase);
            }
            if phase == Phase::Stopped {
                self.names.remove(slot.machine.name());
                self.slots.remove(&id);
            } else if let Some(at) = slot.machine.wake_at()
                && slot.due != Some(at)
            {
                slot.due = Some(at);
                self.timers.set(at, id);
            }
        }
        self.effects = effects;
    }

    /// Carries out one effect. Returns whether a term ended that has no work.
    fn act(
        events: &dyn DriverEvents,
        batch: &mut Batch,
        id: MachineId,
        slot: &MachineSlot,
        effect: Effect,
    ) -> bool {
        match effect {
            Effect::Acquire(request, nonce, wait) => {
                batch.acquire.push((id, request, slot.claim(nonce, wait)));
            }
            Effect::Renew(request, hold) => batch.renew.push((id, request, hold)),
            Effect::Release(request, release) => batch.release.push((id, request, release)),
            Effect::Observe(request) => {
                batch.observe.push((id, request, slot.machine.name().clone()));
            }
            Effect::Starting(token, wait) => events.starting(id, token, wait),
            Effect::Lead(lead) => events.lead(id, *lead),
            Effect::Extend(deadline) => events.extend(id, deadline),
            Effect::End(ending) => return events.end(id, ending),
            Effect::HolderChanged(holder, leads) => events.holder_changed(id, holder, leads),
            Effect::Unreachable(error) => events.unreachable(id, error),
            Effect::Back => events.store_back(id),
            Effect::Released(token) => events.released(id, token),
            Effect::SameId => events.same_id(id),
            Effect::Warn(warning) => events.warn(id, &warning),
        }
        false
    }

    // ---- calls to the store ----

    /// Sends the batch: renewals first, and each operation in as few calls as possible.
    fn flush(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let ttl = self.ttl;
        self.call(batch.renew, MachineInput::Renewed, async move |store, holds| {
            store.renew(&holds, ttl).await
        });
        self.call(batch.release, MachineInput::Released, async |store, releases| {
            store.release(&releases).await
        });
        self.call(batch.acquire, MachineInput::Acquired, async |store, claims| {
            store.acquire(&claims).await
        });
        self.call(batch.observe, MachineInput::Observed, observe);
        if batch.read_requests {
            self.observe_requests();
        }
        if !batch.answers.is_empty() {
            self.answer(batch.answers);
        }
    }

    /// Calls one operation for many items, and passes each answer to its machine. The machines discard late answers.
    ///
    /// Each call has its own timeout and as many items as the store takes at once: a call that is stuck delays no other.
    fn call<I: 'static, O: 'static>(
        &mut self,
        items: Vec<(MachineId, u64, I)>,
        event: fn(u64, Result<O>) -> MachineInput,
        verb: impl AsyncFn(Arc<dyn Store>, Vec<I>) -> Result<Vec<Result<O>>> + Clone + 'static,
    ) {
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            let (store, clock, try_for) = (self.store.clone(), self.clock.clone(), self.try_for);
            let verb = verb.clone();
            let sent = clock.now();
            let (ids, items): (Vec<_>, Vec<_>) = items
                .by_ref()
                .take(self.max_batch)
                .map(|(id, request, item)| ((id, request), item))
                .unzip();
            let call = async move {
                let answers = timed(&clock, try_for, verb(store, items)).await;
                let answers = answers.and_then(|answers| match answers.len() {
                    count if count == ids.len() => Ok(answers),
                    count => Err(wrong_count(ids.len(), count)),
                });
                let answers: Vec<Result<O>> = match answers {
                    Ok(answers) => answers,
                    Err(error) => ids.iter().map(|_| Err(error.clone())).collect(),
                };
                let done = ids.into_iter().zip(answers);
                let done = done.map(|((id, request), answer)| (id, event(request, answer)));
                StoreReply::Machines(sent, done.collect())
            };
            self.calls.push(call.boxed_local());
        }
    }

    /// Releases requests that were processed. If the release fails, the sender reports that it got no answer.
    fn answer(&mut self, answers: Vec<Release>) {
        let (store, clock, try_for) = (self.store.clone(), self.clock.clone(), self.try_for);
        let call = async move {
            if let Err(error) = timed(&clock, try_for, store.release(&answers)).await {
                tracing::debug!(%error, "an ask cannot be answered");
            }
            StoreReply::Nothing
        };
        self.calls.push(call.boxed_local());
    }

    /// Reads, after `pause`, whether the store has recorded a drain of this candidate. A record that cannot be parsed drains no
    /// candidate: it must not keep all candidates from leading.
    fn read_drain_record(
        &mut self,
        id: MachineId,
        name: Name,
        candidate: CandidateId,
        pause: Duration,
    ) {
        let (store, clock, try_for) = (self.store.clone(), self.clock.clone(), self.try_for);
        let call = async move {
            if !pause.is_zero() {
                clock.sleep(pause).await;
            }
            let drained = match timed(&clock, try_for, overrides::read(&*store, &name)).await {
                Ok(overrides) => Some(overrides.drained.contains(&candidate)),
                Err(error) if error.kind() == Kind::Unavailable => None,
                Err(error) => {
                    tracing::warn!(
                        "drains of '{name}' cannot be read, so this candidate is not drained: {error}"
                    );
                    Some(false)
                }
            };
            StoreReply::DrainRecord(id, drained)
        };
        self.calls.push(call.boxed_local());
    }

    fn observe_requests(&mut self) {
        let accepting = self.slots.values().filter(|slot| slot.accepts_requests);
        let names: Vec<Name> = accepting.map(|slot| slot.machine.name().request_name()).collect();
        if names.is_empty() {
            return;
        }
        let (store, clock, try_for) = (self.store.clone(), self.clock.clone(), self.try_for);
        let call = async move {
            let scope = Scope::Names(names);
            StoreReply::Requests(timed(&clock, try_for, store.observe(&scope)).await)
        };
        self.calls.push(call.boxed_local());
    }
}

/// Observes these names. `None` for a name that was never used.
async fn observe(store: Arc<dyn Store>, names: Vec<Name>) -> Result<Vec<Result<Option<Lease>>>> {
    // For a single name, an unreadable record is its answer too. For many names, an error does not say which name it belongs
    // to.
    if let [name] = &names[..] {
        return Ok(vec![store.observe_one(name).await]);
    }
    let observed = store.observe(&Scope::Names(names.clone())).await?;
    let mut failed = None;
    let mut leases = HashMap::new();
    for lease in observed {
        match lease {
            Ok(lease) => drop(leases.insert(lease.name.clone(), lease)),
            Err(error) => failed = Some(error),
        }
    }
    let answer = |name: &Name| match (leases.remove(name), &failed) {
        (Some(lease), _) => Ok(Some(lease)),
        (None, None) => Ok(None),
        (None, Some(error)) => Err(error.clone()),
    };
    Ok(names.iter().map(answer).collect())
}

/// Waits forever without a timer.
async fn sleep_until(clock: &Clock, at: Option<Moment>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Limits a call to the time after which the machine ignores its answer. Dropping the call lets the store replace a connection
/// that hangs.
async fn timed<T>(
    clock: &Clock,
    limit: Duration,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        answer = call => answer,
        () = clock.sleep(limit) => {
            Err(Error::unavailable(format!("no answer from the store within {limit:?}")))
        }
    }
}
