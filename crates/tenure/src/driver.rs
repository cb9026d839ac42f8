//! The driver: runs many machines over one store, on its own thread, runtime and connection, so that a busy application cannot
//! starve a renewal.
//!
//! The driver implements no rule of the election. It passes inputs to the [`Machine`](crate::machine::Machine)s, sends their
//! requests to the store in batches, and reports all other effects to the [`DriverEvents`] of the machine.
//!
//! The elections of a process that use one store share a driver ([`shared`]). A member of a fleet has its own.

mod calls;
mod command;
mod events;
mod health_task;
mod id_map;
mod renewal_stats;
pub(crate) mod shared;
mod term;
mod thread;
mod timers;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::stream::{BoxStream, FuturesUnordered, StreamExt, pending};
use tokio::sync::mpsc;

use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::lease::{Answer, Lease, Name};
use crate::machine::{Effect, Input as MachineInput, Phase};
use crate::request::{self, ReceivedRequest};
use crate::store::{Change, Scope, Store};

use calls::Batch;
pub(crate) use command::{DriverCommand, HandleInput, MachineSlot};
pub(crate) use events::DriverEvents;
pub(crate) use health_task::{HealthTask, NOT_CHECKED};
pub(crate) use id_map::IdMap;
pub use renewal_stats::RenewalStats;
use shared::SharedDriver;
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

pub(crate) struct Driver {
    store: Arc<dyn Store>,
    clock: Clock,
    /// The maximum number of items in one call, from the limits of the store.
    max_batch: usize,
    slots: IdMap<Box<MachineSlot>>,
    names: HashMap<Name, MachineId>,
    timers: Timers,
    /// When the driver has something to do again; `u64::MAX` for never.
    sleeps_until: Arc<AtomicU64>,
    watched: Watched,
    /// A machine was added since the driver began to watch.
    machine_added: bool,
    /// More machines may be added.
    open: bool,
    commands: mpsc::UnboundedReceiver<DriverCommand>,
    calls: FuturesUnordered<LocalBoxFuture<'static, StoreReply>>,
    /// The requests of this turn, one batch for each timing: a call has one TTL and one timeout.
    batches: Vec<Batch>,
    read_requests: bool,
    effects: Vec<Effect>,
}

/// Which changes the driver watches.
pub(crate) enum Watched {
    /// Those of a fleet, for all of its machines.
    Scope(Scope),
    /// Those that concern its machines. The registry of shared drivers knows when the last machine is gone.
    Machines(SharedDriver),
}

impl Driver {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        watched: Watched,
        sleeps_until: Arc<AtomicU64>,
        commands: mpsc::UnboundedReceiver<DriverCommand>,
    ) -> Self {
        let max_batch = store.limits().max_batch.max(1);
        Driver {
            store,
            clock,
            max_batch,
            slots: IdMap::default(),
            names: HashMap::new(),
            timers: Timers::default(),
            sleeps_until,
            watched,
            machine_added: false,
            open: true,
            commands,
            calls: FuturesUnordered::new(),
            batches: Vec::new(),
            read_requests: false,
            effects: Vec::new(),
        }
    }

    /// Runs until the driver was closed and every machine has stopped, or the application has dropped its handles.
    pub(crate) async fn run(mut self) {
        // Watch before the first observation, so that no change in between is missed.
        let mut watch: BoxStream<'static, Change> = match &self.watched {
            Watched::Scope(scope) => self.store.watch(scope),
            Watched::Machines(_) => pending().boxed(),
        };
        loop {
            // Commands first: after the application has dropped the election, nothing more may be sent.
            if !self.process_commands() {
                break;
            }
            if std::mem::take(&mut self.machine_added)
                && matches!(self.watched, Watched::Machines(_))
            {
                // A new watch reports `Change::Look` when it is active, which covers the changes since the last one.
                watch = self.store.watch(&Scope::Names(self.watched_names()));
            }
            self.flush();
            if !self.open && self.slots.is_empty() {
                break;
            }
            let wake_at = self.timers.next();
            let sleeps_until = wake_at.map_or(u64::MAX, Moment::as_nanos);
            self.sleeps_until.store(sleeps_until, Ordering::Release);
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
    }

    /// The names of the machines, and of the requests to them.
    fn watched_names(&self) -> Vec<Name> {
        let names = |slot: &MachineSlot| {
            let name = slot.machine.name();
            let request = slot.accepts_requests.then(|| name.request_name());
            std::iter::once(name.clone()).chain(request)
        };
        self.slots.values().flat_map(|slot| names(slot)).collect()
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
            DriverCommand::Add(id, slot) => self.add(now, id, slot),
            DriverCommand::Remove(id) => self.remove(id),
            DriverCommand::Close => self.open = false,
            DriverCommand::Abandon => return false,
        }
        true
    }

    fn add(&mut self, now: Moment, id: MachineId, mut slot: Box<MachineSlot>) {
        slot.group = self.group_of(slot.machine.timing());
        self.names.insert(slot.machine.name().clone(), id);
        let accepts_requests = slot.accepts_requests;
        self.slots.insert(id, slot);
        self.machine_added = true;
        if accepts_requests {
            self.read_drain_record(id, Duration::ZERO);
        }
        self.step(now, id, MachineInput::Woke);
    }

    /// The driver has nothing more to do for this machine. After the last machine of a shared driver, the driver ends.
    fn remove(&mut self, id: MachineId) {
        let Some(slot) = self.slots.remove(&id) else { return };
        self.names.remove(slot.machine.name());
        if let Watched::Machines(shared) = &self.watched
            && shared.leave(slot.machine.name())
        {
            self.open = false;
        }
        slot.events.ended(id);
    }

    fn process_input(&mut self, now: Moment, id: MachineId, input: HandleInput) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        match &input {
            HandleInput::Note(note) => slot.note = note.clone(),
            HandleInput::Health(result) => slot.events.checked(id, result),
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
                self.read_requests = true;
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
                    self.read_requests = true;
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
                if let (None, Some(slot)) = (drained, self.slots.get(&id)) {
                    self.read_drain_record(id, slot.machine.timing().try_for());
                }
                self.step(now, id, MachineInput::DrainRecord(drained));
            }
            StoreReply::Nothing => {}
        }
    }

    /// Reports the answer of the store to the callbacks, even if it is too late for the machine.
    fn report_answer(&self, now: Moment, id: MachineId, sent: Moment, event: &MachineInput) {
        let Some(slot) = self.slots.get(&id) else { return };
        let events = &slot.events;
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
                let group = slot.group;
                self.step(now, id, MachineInput::Requested(request));
                self.batches[group].answers.extend(answer);
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
                slot.events.health_changed(id, *healthy);
            }
            slot.machine.step(now, next, &mut effects);
            for effect in effects.drain(..) {
                if Self::act(&mut self.batches[slot.group], id, slot, effect) {
                    event = Some(MachineInput::WorkEnded);
                }
            }
            if definite {
                slot.events.answered(id);
            }
            let phase = slot.machine.phase();
            slot.events.stepped(id, phase, slot.machine.is_drained());
            if std::mem::replace(&mut slot.phase, phase) != phase {
                slot.events.phase_changed(id, phase);
            }
            if phase == Phase::Stopped {
                self.remove(id);
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
    fn act(batch: &mut Batch, id: MachineId, slot: &MachineSlot, effect: Effect) -> bool {
        let events = &*slot.events;
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
}

impl Drop for Driver {
    /// Also on a panic: a term without renewals must not seem alive.
    fn drop(&mut self) {
        for (id, slot) in self.slots.drain() {
            slot.events.ended(id);
        }
        if let Watched::Machines(shared) = &self.watched {
            shared.end();
        }
    }
}

/// Waits forever without a timer.
async fn sleep_until(clock: &Clock, at: Option<Moment>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}
