//! The driver: runs machines over a store, on its own thread, its own runtime and its own connection, so that a busy
//! application cannot starve a renewal.
//!
//! It holds no rule of the election. It carries events to the [`Machine`]s and their actions to the store, many in one call
//! where they fall together, and everything else to the [`Seat`] of the machine.

mod builder;
mod event;
mod handle;
mod leadership;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, LocalBoxFuture};
use futures_util::stream::{BoxStream, FuturesUnordered, StreamExt};
use tokio::sync::mpsc;

use crate::ask::{self, Asked};
use crate::clock::{Clock, Moment};
use crate::election::{Action, Ending, Event as MachineEvent, Lead, Machine, Phase};
use crate::error::{Error, Result};
use crate::lease::{Claim, Hold, Lease, Name, Release, Token};
use crate::store::{Change, Scope, Store};

pub use builder::Builder;
pub use event::Event;
pub use handle::{Election, Status};
pub use leadership::{Leadership, Saved};

/// Who sits at a machine: is told what concerns the application. Called on the driver's thread, so it never waits.
pub(crate) trait Seat: Send + Sync {
    fn lead(&self, lead: Lead);
    fn extend(&self, deadline: Moment);
    /// Returns whether there is no work that has to end first.
    fn end(&self, ending: Ending) -> bool;
    fn leader_changed(&self, leader: Option<String>);
    fn unreachable(&self, error: Error);
    /// The store answers again.
    fn back(&self);
    /// The store has given a definite answer.
    fn answered(&self);
    /// The store has taken back the lease of this term.
    fn released(&self, token: Token);
    fn warn(&self, warning: &str);
    /// Where the machine stands now.
    fn stands(&self, phase: Phase, drained: bool);
    /// The driver has ended; nothing is renewed any more.
    fn over(&self);
}

/// What the application tells the driver.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Few are under way at a time.
pub(crate) enum Command {
    Tell(usize, MachineEvent),
    /// Stop at once and leave the leases to their TTL.
    Abandon,
}

/// One machine and what belongs to it.
pub(crate) struct Place {
    pub(crate) machine: Machine,
    /// What it claims; only the nonce is the machine's.
    pub(crate) claim: Claim,
    pub(crate) seat: Arc<dyn Seat>,
    /// The last ask it has acted on: each is answered once.
    pub(crate) last_ask: Option<Token>,
}

/// What a call to the store came to.
#[allow(clippy::large_enum_variant)] // Nearly all are the large one.
enum Done {
    Machine(usize, MachineEvent),
    Asks(Result<Vec<Result<Lease>>>),
}

/// What is due in this turn, to be sent together.
#[derive(Default)]
struct Batch {
    acquire: Vec<(usize, u64, Claim)>,
    renew: Vec<(usize, u64, Hold)>,
    release: Vec<(usize, u64, Release)>,
    observe: Vec<(usize, u64, Name)>,
    asks: bool,
    /// Asks that were done.
    answers: Vec<Release>,
}

pub(crate) struct Driver {
    store: Arc<dyn Store>,
    clock: Clock,
    ttl: Duration,
    try_for: Duration,
    places: Vec<Place>,
    commands: mpsc::UnboundedReceiver<Command>,
    calls: FuturesUnordered<LocalBoxFuture<'static, Vec<Done>>>,
    batch: Batch,
}

impl Driver {
    /// All places share one timing.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        places: Vec<Place>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        let timing = places.first().map(|place| place.machine.timing().clone());
        Driver {
            store,
            clock,
            ttl: timing.as_ref().map_or(Duration::ZERO, |timing| timing.ttl),
            try_for: timing.as_ref().map_or(Duration::ZERO, |timing| timing.try_for()),
            places,
            commands,
            calls: FuturesUnordered::new(),
            batch: Batch::default(),
        }
    }

    /// Runs until every machine has stopped, or the application has gone away.
    pub(crate) async fn run(mut self) {
        // Listening before the first look: what changes in between is not missed.
        let mut watch = self.watch();
        loop {
            // Commands before anything else: whoever has dropped the election must see nothing more sent.
            if !self.obey() {
                break;
            }
            self.flush();
            if self.places.iter().all(|place| place.machine.phase() == Phase::Stopped) {
                break;
            }
            let timer = sleep_until(&self.clock, self.wake_at());
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
                    Some(Command::Tell(place, event)) => self.step(place, event),
                    Some(Command::Abandon) | None => break,
                },
                Some(change) = watch.next() => self.changed(&change),
            }
        }
        for place in &self.places {
            place.seat.over();
        }
    }

    /// Carries out what the application has said; a bounded number, so that renewals have their turn. `false`: it is over.
    fn obey(&mut self) -> bool {
        for _ in 0..64 {
            match self.commands.try_recv() {
                Ok(Command::Tell(place, event)) => self.step(place, event),
                Ok(Command::Abandon) | Err(mpsc::error::TryRecvError::Disconnected) => {
                    return false;
                }
                Err(mpsc::error::TryRecvError::Empty) => return true,
            }
        }
        true
    }

    fn watch(&self) -> BoxStream<'static, Change> {
        let names = self.places.iter().flat_map(|place| {
            let name = &place.claim.name;
            // Of a lease of our own nobody asks anything.
            let ask = (!name.is_own()).then(|| name.ask());
            [Some(name.clone()), ask].into_iter().flatten()
        });
        self.store.watch(&Scope::Names(names.collect()))
    }

    fn wake_at(&self) -> Option<Moment> {
        self.places.iter().filter_map(|place| place.machine.wake_at()).min()
    }

    fn woke(&mut self) {
        let now = self.clock.now();
        for place in 0..self.places.len() {
            if self.places[place].machine.wake_at().is_some_and(|at| at <= now) {
                self.step(place, MachineEvent::Woke);
            }
        }
    }

    fn changed(&mut self, change: &Change) {
        let name = match change {
            Change::Look => None,
            Change::Granted { name, .. } | Change::Freed { name, .. } => Some(name),
        };
        for place in 0..self.places.len() {
            let own = &self.places[place].claim.name;
            match name {
                Some(name) if name == own => {
                    self.step(place, MachineEvent::Changed(change.clone()));
                }
                Some(name) if *name == own.ask() => self.batch.asks = true,
                Some(_) => {}
                None => {
                    self.batch.asks = true;
                    self.step(place, MachineEvent::Changed(Change::Look));
                }
            }
        }
    }

    fn done(&mut self, done: Vec<Done>) {
        for done in done {
            match done {
                Done::Machine(place, event) => self.step(place, event),
                Done::Asks(Ok(leases)) => self.asked(leases),
                // Seen again with the next change, and the asker reports that nobody answered.
                Done::Asks(Err(error)) => tracing::debug!(%error, "asks cannot be read"),
            }
        }
    }

    fn asked(&mut self, leases: Vec<Result<Lease>>) {
        for lease in leases.into_iter().flatten() {
            for place in 0..self.places.len() {
                let this = &mut self.places[place];
                if lease.name != this.claim.name.ask() {
                    continue;
                }
                let Some(asked) = ask::read(&lease, &this.claim.candidate) else { continue };
                let Asked { token, ask, answer } = asked;
                if this.last_ask < Some(token) {
                    this.last_ask = Some(token);
                    tracing::debug!(name = %this.claim.name, ?ask, "asked");
                    self.step(place, MachineEvent::Asked(ask));
                    self.batch.answers.extend(answer);
                }
            }
        }
    }

    fn step(&mut self, place: usize, event: MachineEvent) {
        let mut event = Some(event);
        while let Some(next) = event.take() {
            let mut actions = Vec::new();
            let this = &mut self.places[place];
            let definite = next.is_definite();
            this.machine.step(self.clock.now(), next, &mut actions);
            for action in actions {
                if self.act(place, action) {
                    event = Some(MachineEvent::WorkEnded);
                }
            }
            let this = &self.places[place];
            if definite {
                this.seat.answered();
            }
            this.seat.stands(this.machine.phase(), this.machine.is_drained());
        }
    }

    /// Returns whether a term ended that has no work.
    fn act(&mut self, place: usize, action: Action) -> bool {
        let this = &self.places[place];
        match action {
            Action::Acquire(request, nonce) => {
                let claim = Claim { nonce, ..this.claim.clone() };
                self.batch.acquire.push((place, request, claim));
            }
            Action::Renew(request, hold) => self.batch.renew.push((place, request, hold)),
            Action::Release(request, release) => {
                self.batch.release.push((place, request, release));
            }
            Action::Observe(request) => {
                self.batch.observe.push((place, request, this.claim.name.clone()));
            }
            Action::Lead(lead) => this.seat.lead(*lead),
            Action::Extend(deadline) => this.seat.extend(deadline),
            Action::End(ending) => return this.seat.end(ending),
            Action::LeaderChanged(leader) => this.seat.leader_changed(leader),
            Action::Unreachable(error) => this.seat.unreachable(error),
            Action::Back => this.seat.back(),
            Action::Released(token) => this.seat.released(token),
            Action::Warn(warning) => this.seat.warn(&warning),
        }
        false
    }

    // ---- to the store ----

    /// Sends what has gathered: one call for each verb.
    fn flush(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if !batch.acquire.is_empty() {
            self.call(batch.acquire, MachineEvent::Acquired, async |store, claims| {
                store.acquire(&claims).await
            });
        }
        if !batch.renew.is_empty() {
            let ttl = self.ttl;
            self.call(batch.renew, MachineEvent::Renewed, async move |store, holds| {
                store.renew(&holds, ttl).await
            });
        }
        if !batch.release.is_empty() {
            self.call(batch.release, MachineEvent::Released, async |store, releases| {
                store.release(&releases).await
            });
        }
        for (place, request, name) in batch.observe {
            self.observe(place, request, name);
        }
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
        items: Vec<(usize, u64, I)>,
        event: fn(u64, Result<O>) -> MachineEvent,
        verb: impl AsyncFnOnce(Arc<dyn Store>, Vec<I>) -> Result<Vec<Result<O>>> + 'static,
    ) {
        let (store, clock, try_for) = (self.store.clone(), self.clock.clone(), self.try_for);
        let call = async move {
            let (whose, items): (Vec<_>, Vec<_>) =
                items.into_iter().map(|(place, request, item)| ((place, request), item)).unzip();
            let answers = timed(&clock, try_for, verb(store, items)).await;
            let answers: Vec<Result<O>> = match answers {
                Ok(answers) => answers,
                Err(error) => whose.iter().map(|_| Err(error.clone())).collect(),
            };
            let done = whose.into_iter().zip(answers);
            done.map(|((place, request), answer)| Done::Machine(place, event(request, answer)))
                .collect()
        };
        self.calls.push(call.boxed_local());
    }

    fn observe(&mut self, place: usize, request: u64, name: Name) {
        let (store, clock, try_for) = (self.store.clone(), self.clock.clone(), self.try_for);
        let call = async move {
            let seen = timed(&clock, try_for, store.observe(&Scope::name(&name))).await;
            let lease = seen.and_then(|mut leases| leases.pop().transpose());
            vec![Done::Machine(place, MachineEvent::Observed(request, lease))]
        };
        self.calls.push(call.boxed_local());
    }

    /// An answer that gets lost is seen by the asker as none.
    fn answer(&mut self, answers: Vec<Release>) {
        let (store, clock, try_for) = (self.store.clone(), self.clock.clone(), self.try_for);
        let call = async move {
            if let Err(error) = timed(&clock, try_for, store.release(&answers)).await {
                tracing::debug!(%error, "an ask cannot be answered");
            }
            Vec::new()
        };
        self.calls.push(call.boxed_local());
    }

    fn observe_asks(&mut self) {
        let names = self.places.iter().map(|place| &place.claim.name);
        let names: Vec<Name> = names.filter(|name| !name.is_own()).map(Name::ask).collect();
        if names.is_empty() {
            return;
        }
        let (store, clock, try_for) = (self.store.clone(), self.clock.clone(), self.try_for);
        let call = async move {
            let scope = Scope::Names(names);
            vec![Done::Asks(timed(&clock, try_for, store.observe(&scope)).await)]
        };
        self.calls.push(call.boxed_local());
    }
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
