//! The driver: runs machines over a store, on its own thread, its own runtime and its own connection, so that a busy
//! application cannot starve a renewal.
//!
//! It holds no rule of the election. It carries events to the [`Machine`]s and their actions to the store, many in one call
//! where they fall together, and everything else to the [`Seat`].

mod builder;
mod candidate_state;
mod event;
mod handle;
mod health_task;
mod id_map;
mod leadership;
mod pulse;
mod renewal_stats;
mod shared;
mod status;
mod term;
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
use crate::health::HealthResult;
use crate::lease::{
    Answer, CandidateId, Claim, ClaimedWait, Hold, Lease, Name, Nonce, Note, Release, StartupWait,
    Token,
};
use crate::machine::{
    Effect, Input as MachineEvent, Machine, OtherCandidates, Phase, Request, TermEnd, TermStart,
};
use crate::request::{self, ReceivedRequest};
use crate::store::{Change, Scope, Store};
use crate::timing::Timing;

pub use builder::Builder;
pub(crate) use builder::spawn;
pub use candidate_state::CandidateState;
pub use event::Event;
pub use handle::Election;
pub(crate) use health_task::HealthTask;
pub(crate) use id_map::IdMap;
pub use leadership::{Leadership, Saved};
pub use pulse::Pulse;
pub use renewal_stats::RenewalStats;
pub use status::Status;
pub(crate) use term::{Context, Term};
use timers::Timers;

/// Which machine of a driver is meant; never used for two.
pub(crate) type MachineId = u64;

/// How many items go into one call to the store.
const BATCH: usize = 1_000;
/// How many commands are carried out before the clock is looked at again.
const COMMANDS: usize = 1_000;

/// Who sits at the machines of a driver: is told what concerns the application. Called on the driver's thread, so it never
/// waits.
pub(crate) trait DriverEvents: Send + Sync {
    fn lead(&self, place: MachineId, lead: TermStart);
    /// The lease was granted in this term, and is not led before the wait is over.
    fn starting(&self, place: MachineId, token: Token, wait: StartupWait);
    fn extend(&self, place: MachineId, deadline: Moment);
    /// Returns whether there is no work that has to end first.
    fn end(&self, place: MachineId, ending: TermEnd) -> bool;
    /// Another candidate holds the lease, or none; and whether the holder leads.
    fn holder_changed(&self, place: MachineId, holder: Option<String>, leads: bool);
    fn unreachable(&self, place: MachineId, error: Error);
    /// The store answers again.
    fn back(&self, place: MachineId);
    /// The store has taken back the lease of this term.
    fn released(&self, place: MachineId, token: Token);
    /// A second living candidate with the same id holds the lease.
    fn same_id(&self, place: MachineId);
    fn warn(&self, place: MachineId, warning: &str);
    /// The driver has ended; nothing is renewed any more.
    fn over(&self);

    // What follows is for those who look on only: nothing depends on it.

    /// The store has given a definite answer.
    fn answered(&self, _place: MachineId) {}
    /// Where the machine stands now, after every step.
    fn stands(&self, _place: MachineId, _phase: Phase, _drained: bool) {}
    /// Where the machine stands now is another place than before.
    fn moved(&self, _place: MachineId, _phase: Phase) {}
    /// The store has shown this lease.
    fn saw(&self, _place: MachineId, _lease: &Lease) {}
    /// A renewal has come to this, after so long.
    fn renewal(&self, _place: MachineId, _took: Duration, _answer: &Result<Answer>) {}
    /// Whether the candidate is fit to lead has changed.
    fn fit(&self, _place: MachineId, _healthy: bool) {}
    /// The health check gave this result.
    fn checked(&self, _place: MachineId, _result: &HealthResult) {}
    /// All is done for now; the next machine has to be woken then.
    fn sleeps_until(&self, _at: Option<Moment>) {}
}

/// What the application says to a machine. Smaller than all that can happen to one: a hundred thousand may be under way.
#[derive(Debug)]
pub(crate) enum HandleInput {
    Wanted(bool),
    Resign(Option<CandidateId>),
    Drain,
    Undrain,
    /// The result of the health check; why it failed.
    Health(HealthResult),
    /// The note of its lease becomes this.
    Note(Note),
    Rivals(Arc<OtherCandidates>),
    WorkEnded,
    Stop,
}

impl From<HandleInput> for MachineEvent {
    fn from(said: HandleInput) -> MachineEvent {
        match said {
            HandleInput::Wanted(wanted) => MachineEvent::Wanted(wanted),
            HandleInput::Resign(next) => MachineEvent::Resign(next),
            HandleInput::Drain => MachineEvent::Asked(Request::Drain),
            HandleInput::Undrain => MachineEvent::Asked(Request::Undrain),
            HandleInput::Health(result) => MachineEvent::Health(result.is_ok()),
            HandleInput::Note(_) => MachineEvent::NoteChanged,
            HandleInput::Rivals(rivals) => MachineEvent::Rivals(rivals),
            HandleInput::WorkEnded => MachineEvent::WorkEnded,
            HandleInput::Stop => MachineEvent::Stop,
        }
    }
}

/// What the application tells the driver.
#[derive(Debug)]
pub(crate) enum DriverCommand {
    Tell(MachineId, HandleInput),
    /// One machine more.
    Add(MachineId, Box<MachineSlot>),
    /// No more are added: end when all have stopped.
    Close,
    /// Stop at once and leave the leases to their TTL.
    Abandon,
}

/// One machine and what belongs to it.
#[derive(Debug)]
pub(crate) struct MachineSlot {
    pub(crate) machine: Machine,
    pub(crate) note: Note,
    pub(crate) ends_with_process: bool,
    /// Whether something can be asked of it from outside.
    pub(crate) listens: bool,
    /// The last ask it has acted on: each is answered once.
    last_ask: Option<Token>,
    /// When it is to be woken, as the wheel knows it.
    due: Option<Moment>,
    phase: Phase,
}

impl MachineSlot {
    pub(crate) fn new(machine: Machine) -> Self {
        MachineSlot {
            phase: machine.phase(),
            machine,
            note: Note::default(),
            ends_with_process: false,
            listens: false,
            last_ask: None,
            due: None,
        }
    }

    fn claim(&self, nonce: Nonce, wait: ClaimedWait) -> Claim {
        let machine = &self.machine;
        Claim {
            name: machine.name().clone(),
            candidate: machine.candidate().clone(),
            nonce,
            ttl: machine.timing().ttl,
            note: self.note.clone(),
            ends_with_process: self.ends_with_process,
            wait,
        }
    }
}

/// What a call to the store came to.
enum StoreReply {
    /// The answers for machines, and when the question was sent.
    Machines(Moment, Vec<(MachineId, MachineEvent)>),
    Asks(Result<Vec<Result<Lease>>>),
    /// Whether the store keeps a drain of the candidate at this place; `None` if it did not answer.
    DrainRecord(MachineId, Option<bool>),
    Nothing,
}

/// What is due in this turn, to be sent together.
#[derive(Default)]
struct Batch {
    acquire: Vec<(MachineId, u64, Claim)>,
    renew: Vec<(MachineId, u64, Hold)>,
    release: Vec<(MachineId, u64, Release)>,
    observe: Vec<(MachineId, u64, Name)>,
    asks: bool,
    /// Asks that were done.
    answers: Vec<Release>,
}

pub(crate) struct Driver {
    store: Arc<dyn Store>,
    clock: Clock,
    seat: Arc<dyn DriverEvents>,
    ttl: Duration,
    try_for: Duration,
    places: IdMap<Box<MachineSlot>>,
    names: HashMap<Name, MachineId>,
    wheel: Timers,
    /// More places may be added.
    open: bool,
    commands: mpsc::UnboundedReceiver<DriverCommand>,
    calls: FuturesUnordered<LocalBoxFuture<'static, StoreReply>>,
    batch: Batch,
    actions: Vec<Effect>,
}

impl Driver {
    /// All places share one timing.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        seat: Arc<dyn DriverEvents>,
        timing: &Timing,
        commands: mpsc::UnboundedReceiver<DriverCommand>,
    ) -> Self {
        Driver {
            store,
            clock,
            seat,
            ttl: timing.ttl,
            try_for: timing.try_for(),
            places: IdMap::default(),
            names: HashMap::new(),
            wheel: Timers::default(),
            open: true,
            commands,
            calls: FuturesUnordered::new(),
            batch: Batch::default(),
            actions: Vec::new(),
        }
    }

    /// Runs until it was closed and every machine has stopped, or the application has gone away. What happens in `scope`
    /// concerns its machines.
    pub(crate) async fn run(mut self, scope: Scope) {
        // Listening before the first look: what changes in between is not missed.
        let mut watch = self.store.watch(&scope);
        loop {
            // Commands before anything else: whoever has dropped the election must see nothing more sent.
            if !self.obey() {
                break;
            }
            self.flush();
            if !self.open && self.places.is_empty() {
                break;
            }
            let wake_at = self.wheel.next();
            self.seat.sleeps_until(wake_at);
            let timer = sleep_until(&self.clock, wake_at);
            tokio::select! {
                // The clock first: nothing that comes in may hold up a renewal.
                biased;
                () = timer => {
                    if !self.obey() {
                        break;
                    }
                    self.woke();
                }
                Some(done) = self.calls.next() => self.done(done),
                command = self.commands.recv() => match command {
                    Some(command) => {
                        let now = self.clock.now();
                        if !self.carry_out(now, command) {
                            break;
                        }
                    }
                    None => break,
                },
                Some(change) = watch.next() => self.changed(&change),
            }
        }
        self.seat.over();
    }

    /// Carries out what the application has said; a bounded number, so that renewals have their turn. `false`: it is over.
    fn obey(&mut self) -> bool {
        let now = self.clock.now();
        for _ in 0..COMMANDS {
            match self.commands.try_recv() {
                Ok(command) => {
                    if !self.carry_out(now, command) {
                        return false;
                    }
                }
                Err(mpsc::error::TryRecvError::Disconnected) => return false,
                Err(mpsc::error::TryRecvError::Empty) => return true,
            }
        }
        true
    }

    fn carry_out(&mut self, now: Moment, command: DriverCommand) -> bool {
        match command {
            DriverCommand::Tell(place, said) => self.said(now, place, said),
            DriverCommand::Add(id, place) => {
                if place.listens {
                    let (name, candidate) = (place.machine.name(), place.machine.candidate());
                    self.read_drain_record(id, name.clone(), candidate.clone(), Duration::ZERO);
                }
                self.names.insert(place.machine.name().clone(), id);
                self.places.insert(id, place);
                self.step(now, id, MachineEvent::Woke);
            }
            DriverCommand::Close => self.open = false,
            DriverCommand::Abandon => return false,
        }
        true
    }

    fn said(&mut self, now: Moment, id: MachineId, said: HandleInput) {
        match &said {
            HandleInput::Note(note) => {
                let Some(place) = self.places.get_mut(&id) else { return };
                place.note = note.clone();
            }
            HandleInput::Health(result) => self.seat.checked(id, result),
            _ => {}
        }
        self.step(now, id, said.into());
    }

    fn woke(&mut self) {
        let now = self.clock.now();
        // Taken off first: one that is due again at once has its next turn after everybody else.
        let due: Vec<MachineId> = std::iter::from_fn(|| self.wheel.turn(now)).flatten().collect();
        for id in due {
            let Some(place) = self.places.get_mut(&id) else { continue };
            if place.due.is_some_and(|due| due <= now) {
                place.due = None;
                self.step(now, id, MachineEvent::Woke);
            }
        }
    }

    fn changed(&mut self, change: &Change) {
        let now = self.clock.now();
        match change {
            Change::Look => {
                self.batch.asks = true;
                let all: Vec<MachineId> = self.places.keys().copied().collect();
                for place in all {
                    self.step(now, place, MachineEvent::Changed(Change::Look));
                }
            }
            Change::Granted { name, .. } | Change::Freed { name, .. } => {
                if let Some(&place) = self.names.get(name) {
                    self.step(now, place, MachineEvent::Changed(change.clone()));
                } else if name.is_own() {
                    // Somebody asks something, or has been answered.
                    self.batch.asks = true;
                }
            }
        }
    }

    fn done(&mut self, done: StoreReply) {
        match done {
            StoreReply::Machines(sent, answers) => {
                let now = self.clock.now();
                for (place, event) in answers {
                    self.show(now, place, sent, &event);
                    self.step(now, place, event);
                }
            }
            StoreReply::Asks(Ok(leases)) => self.asked(leases),
            // Seen again with the next change, and the asker reports that nobody answered.
            StoreReply::Asks(Err(error)) => tracing::debug!(%error, "asks cannot be read"),
            StoreReply::DrainRecord(id, drained) => {
                let now = self.clock.now();
                if drained.is_none()
                    && let Some(place) = self.places.get_mut(&id)
                {
                    let (name, candidate) = (place.machine.name(), place.machine.candidate());
                    let (name, candidate) = (name.clone(), candidate.clone());
                    self.read_drain_record(id, name, candidate, self.try_for);
                }
                self.step(now, id, MachineEvent::DrainRecord(drained));
            }
            StoreReply::Nothing => {}
        }
    }

    /// Tells those who look on what the store has answered, also where that comes too late for the machine.
    fn show(&self, now: Moment, place: MachineId, sent: Moment, event: &MachineEvent) {
        let seat = &self.seat;
        match event {
            MachineEvent::Acquired(_, Ok(Answer::Taken(lease))) => seat.saw(place, lease),
            MachineEvent::Observed(_, Ok(Some(lease))) => seat.saw(place, lease),
            MachineEvent::Renewed(_, answer) => {
                seat.renewal(place, now.since(sent), answer);
                if let Ok(Answer::Taken(lease)) = answer {
                    seat.saw(place, lease);
                }
            }
            _ => {}
        }
    }

    fn asked(&mut self, leases: Vec<Result<Lease>>) {
        let now = self.clock.now();
        for lease in leases.into_iter().flatten() {
            let Some(name) = lease.name.asked_of() else { continue };
            let Some(&id) = self.names.get(&name) else { continue };
            let Some(place) = self.places.get_mut(&id) else { continue };
            let Some(asked) = request::read(&lease, place.machine.candidate()) else { continue };
            let ReceivedRequest { token, ask, answer } = asked;
            if place.last_ask < Some(token) {
                place.last_ask = Some(token);
                tracing::debug!(%name, ?ask, "asked");
                self.step(now, id, MachineEvent::Asked(ask));
                self.batch.answers.extend(answer);
            }
        }
    }

    /// One `now` serves a whole turn: those that were dealt with together stay together. Nothing rests on it being the
    /// latest: a deadline counts from it, and it is before the request is sent.
    fn step(&mut self, now: Moment, id: MachineId, event: MachineEvent) {
        let mut event = Some(event);
        let mut actions = std::mem::take(&mut self.actions);
        while let Some(next) = event.take() {
            let Some(place) = self.places.get_mut(&id) else { break };
            let definite = next.is_definite();
            if let MachineEvent::Health(healthy) = &next {
                self.seat.fit(id, *healthy);
            }
            place.machine.step(now, next, &mut actions);
            for action in actions.drain(..) {
                if Self::act(&*self.seat, &mut self.batch, id, place, action) {
                    event = Some(MachineEvent::WorkEnded);
                }
            }
            if definite {
                self.seat.answered(id);
            }
            let phase = place.machine.phase();
            self.seat.stands(id, phase, place.machine.is_drained());
            if std::mem::replace(&mut place.phase, phase) != phase {
                self.seat.moved(id, phase);
            }
            if phase == Phase::Stopped {
                self.names.remove(place.machine.name());
                self.places.remove(&id);
            } else if let Some(at) = place.machine.wake_at()
                && place.due != Some(at)
            {
                place.due = Some(at);
                self.wheel.set(at, id);
            }
        }
        self.actions = actions;
    }

    /// Returns whether a term ended that has no work.
    fn act(
        seat: &dyn DriverEvents,
        batch: &mut Batch,
        id: MachineId,
        place: &MachineSlot,
        action: Effect,
    ) -> bool {
        match action {
            Effect::Acquire(request, nonce, wait) => {
                batch.acquire.push((id, request, place.claim(nonce, wait)));
            }
            Effect::Renew(request, hold) => batch.renew.push((id, request, hold)),
            Effect::Release(request, release) => batch.release.push((id, request, release)),
            Effect::Observe(request) => {
                batch.observe.push((id, request, place.machine.name().clone()));
            }
            Effect::Starting(token, wait) => seat.starting(id, token, wait),
            Effect::Lead(lead) => seat.lead(id, *lead),
            Effect::Extend(deadline) => seat.extend(id, deadline),
            Effect::End(ending) => return seat.end(id, ending),
            Effect::HolderChanged(holder, leads) => seat.holder_changed(id, holder, leads),
            Effect::Unreachable(error) => seat.unreachable(id, error),
            Effect::Back => seat.back(id),
            Effect::Released(token) => seat.released(id, token),
            Effect::SameId => seat.same_id(id),
            Effect::Warn(warning) => seat.warn(id, &warning),
        }
        false
    }

    // ---- to the store ----

    /// Sends what has gathered: renewals first, and each verb in as few calls as may be.
    fn flush(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let ttl = self.ttl;
        self.call(batch.renew, MachineEvent::Renewed, async move |store, holds| {
            store.renew(&holds, ttl).await
        });
        self.call(batch.release, MachineEvent::Released, async |store, releases| {
            store.release(&releases).await
        });
        self.call(batch.acquire, MachineEvent::Acquired, async |store, claims| {
            store.acquire(&claims).await
        });
        self.call(batch.observe, MachineEvent::Observed, observe);
        if batch.asks {
            self.observe_asks();
        }
        if !batch.answers.is_empty() {
            self.answer(batch.answers);
        }
    }

    /// Carries out one verb for many items, and gives each its answer; the machines discard what comes too late.
    fn call<I: 'static, O: 'static>(
        &mut self,
        items: Vec<(MachineId, u64, I)>,
        event: fn(u64, Result<O>) -> MachineEvent,
        verb: impl AsyncFn(Arc<dyn Store>, Vec<I>) -> Result<Vec<Result<O>>> + Clone + 'static,
    ) {
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            let (store, clock, try_for) = (self.store.clone(), self.clock.clone(), self.try_for);
            let verb = verb.clone();
            let sent = clock.now();
            let (whose, items): (Vec<_>, Vec<_>) = items
                .by_ref()
                .take(BATCH)
                .map(|(place, request, item)| ((place, request), item))
                .unzip();
            let call = async move {
                let answers = timed(&clock, try_for, verb(store, items)).await;
                let answers: Vec<Result<O>> = match answers {
                    Ok(answers) => answers,
                    Err(error) => whose.iter().map(|_| Err(error.clone())).collect(),
                };
                let done = whose.into_iter().zip(answers);
                let done = done.map(|((place, request), answer)| (place, event(request, answer)));
                StoreReply::Machines(sent, done.collect())
            };
            self.calls.push(call.boxed_local());
        }
    }

    /// An answer that gets lost is seen by the asker as none.
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

    /// Reads, after a pause, whether the store keeps a drain of this candidate. A record that cannot be understood drains
    /// no candidate: it must not keep all of them from leading.
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

    fn observe_asks(&mut self) {
        let listening = self.places.values().filter(|place| place.listens);
        let names: Vec<Name> = listening.map(|place| place.machine.name().ask()).collect();
        if names.is_empty() {
            return;
        }
        let (store, clock, try_for) = (self.store.clone(), self.clock.clone(), self.try_for);
        let call = async move {
            let scope = Scope::Names(names);
            StoreReply::Asks(timed(&clock, try_for, store.observe(&scope)).await)
        };
        self.calls.push(call.boxed_local());
    }
}

/// What is known of each of these names; `None` where one was never used.
async fn observe(store: Arc<dyn Store>, names: Vec<Name>) -> Result<Vec<Result<Option<Lease>>>> {
    // Of one name also what cannot be read is an answer; of many only those that can be told apart.
    if let [name] = &names[..] {
        let mut seen = store.observe(&Scope::name(name)).await?;
        return Ok(vec![seen.pop().transpose()]);
    }
    let seen = store.observe(&Scope::Names(names.clone())).await?;
    let mut failed = None;
    let mut leases = HashMap::new();
    for lease in seen {
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

/// For ever where there is nothing to wake up for.
async fn sleep_until(clock: &Clock, at: Option<Moment>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The machine has given up by then; dropping the call lets the store replace a connection that hangs.
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
