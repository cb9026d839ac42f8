//! A [`Store`] over any service that keeps documents and replaces them by compare-and-swap.
//!
//! A [`Backend`] makes the calls of one service: read documents, swap a document for another if nothing changed in between,
//! list names, subscribe to changes. [`CasStore`] adds everything else. For every operation it reads the document, judges
//! whether its term is live, applies the [rules of a lease](super::record), and swaps. If another caller was faster, it reads
//! again. The chapter [Write a store](crate::docs::stores) has a complete example.
//!
//! # Who judges expiry
//! [`Backend::EXPIRY`] says it, once for all leases of the service:
//! - [`Expiry::StoreClock`]: the service has a clock. It stores when a term ends and reports the remaining time.
//! - [`Expiry::ServerLease`]: the service ends a lease or session that is not kept alive, and all keys under it.
//! - [`Expiry::Observation`]: the service does neither. A challenger waits until the document has not changed for the term's
//!   TTL on the challenger's own clock.
//!
//! # Why two candidates never hold a lease
//! A challenger may read a document, be delayed, and swap it after the holder has renewed. That swap must fail. With a store
//! clock or observation it does, because **every renewal changes the version** that a swap compares, [`Backend::touch`]
//! included. With a server lease a keepalive changes no document, so a swap that replaces a holder also compares that the
//! holder's lease is gone ([`Condition::TermIsOver`]).
//!
//! # Sessions that many leases share
//! With a server lease, one session per candidate and TTL keeps all its documents alive. Two things follow:
//! - A grant does not extend the session, so its time counts from the session's last keepalive
//!   ([`Swapped::Done`], [`Grant::counts_from`]).
//! - A document can be left under a live session without a hold: its release was lost, or a claim arrived after its caller had
//!   given up. The session would keep it alive for ever. So the store remembers what is unconfirmed, and releases it until that
//!   is confirmed, with every round of renewals. A revoked term is judged by observation, because its session may live on.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::batches::in_batches;
use super::record::{
    FoundRecord, Operation, RecordWrite, Renewal, Revocation, RuleContext, Save, Step, lease,
};
use super::{Change, Limits, Report, Revoke, Scope, Store, wrong_count};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::lease::{Answer, Checkpoint, Claim, Grant, Hold, Lease, Name, Release, StoreTime};
use crate::observation::Observations;

mod backend;
mod judge;
mod unconfirmed;

pub use super::record::{Condition, TermTime};
pub use backend::{
    Backend, Document, Entry, Expiry, ForeignDocument, ForeignHolder, Reading, Swap, Swapped,
    Touched,
};
use judge::{Found, is_revoked, mark};
use unconfirmed::{Unconfirmed, UnconfirmedKey};

/// How often an operation reads again after another caller was faster. Each conflict means that another caller has written.
const MAX_CONFLICTS: u32 = 30;

/// The number of batches of renewals and observations that are sent at once.
const MAX_IN_FLIGHT: usize = 4;

/// The assumed maximum drift of the holder's clock against the clock of this process, where observation judges.
const DRIFT_PPM: u32 = 1_000;

/// A [`Store`] over a [`Backend`].
#[derive(Debug)]
pub struct CasStore<B: Backend>(Arc<CasStoreInner<B>>);

#[derive(Debug)]
struct CasStoreInner<B: Backend> {
    backend: B,
    clock: Clock,
    observations: Mutex<Observations>,
    /// What this store wrote last for each term that it holds, where observation judges: a renewal needs no read then. If
    /// another caller has written since, the swap conflicts.
    written: Mutex<HashMap<Name, Document<B::Version>>>,
    unconfirmed: Unconfirmed<B::Version>,
}

/// An answer, and the swap that makes it valid, if one is needed.
type Planned<T, V> = (T, Option<Swap<V>>);

/// An answer, and from when its TTL counts if that is before its request was sent.
type Timed<T> = (T, Option<Moment>);

impl<B: Backend> CasStore<B> {
    /// A store over `backend`. `clock` is the clock of this process.
    pub fn new(backend: B, clock: Clock) -> Self {
        CasStore(Arc::new(CasStoreInner {
            backend,
            clock,
            observations: Mutex::default(),
            written: Mutex::default(),
            unconfirmed: Unconfirmed::default(),
        }))
    }

    /// The calls of the service.
    pub fn backend(&self) -> &B {
        &self.0.backend
    }

    /// Releases what is unconfirmed and not among `held`, in its own task: no renewal waits for it.
    fn spawn_cleanup(&self, held: &[Hold]) {
        let leftover = self.0.unconfirmed.except(held);
        if leftover.is_empty() {
            return;
        }
        let inner = Arc::clone(&self.0);
        tokio::spawn(async move {
            log_unreleased(inner.release_unconfirmed(&leftover).await);
        });
    }
}

impl<B: Backend> CasStoreInner<B> {
    /// Runs every operation: read, judge, apply, swap; again for those that conflict. Returns the answers in order.
    async fn run<O: Operation>(&self, operations: &[O]) -> Result<Vec<Result<Timed<O::Answer>>>> {
        let mut answers: Vec<Option<Result<Timed<O::Answer>>>> =
            operations.iter().map(|_| None).collect();
        let mut conflicts = vec![0; operations.len()];
        loop {
            let round = next_round(operations, &answers, self.backend.limits().max_batch);
            if round.is_empty() {
                return Ok(answers.into_iter().flatten().collect());
            }
            let decided = match self.round(operations, &round).await {
                Ok(decided) => decided,
                // Nothing is known about any item.
                Err(error) if answers.iter().all(Option::is_none) => return Err(error),
                Err(error) => round.iter().map(|_| Some(Err(error.clone()))).collect(),
            };
            for (&at, decided) in round.iter().zip(decided) {
                conflicts[at] += u32::from(decided.is_none());
                answers[at] = match decided {
                    None if conflicts[at] > MAX_CONFLICTS => {
                        Some(Err(too_many_conflicts(operations[at].name())))
                    }
                    decided => decided,
                };
            }
        }
    }

    /// One attempt for each of these operations, which have different names. `None`: another caller was faster.
    async fn round<O: Operation>(
        &self,
        operations: &[O],
        round: &[usize],
    ) -> Result<Vec<Option<Result<Timed<O::Answer>>>>> {
        let names: Vec<Name> = round.iter().map(|&at| operations[at].name().clone()).collect();
        let Reading { store_time, entries } = self.read(&names).await?;
        // The clock is read after the documents: an earlier time would date a first observation before the document was
        // written.
        let (now, context) = (self.clock.now(), self.context(store_time));
        let mut decided = Vec::with_capacity(round.len());
        let (mut pending, mut swaps) = (Vec::new(), Vec::new());
        for (&at, entry) in round.iter().zip(entries) {
            let step = entry.and_then(|entry| self.apply(&operations[at], entry, now, &context));
            decided.push(match step {
                Err(error) => Some(Err(error)),
                Ok((answer, None)) => Some(Ok((answer, None))),
                Ok((answer, Some(swap))) => {
                    pending.push((decided.len(), answer));
                    swaps.push(swap);
                    None
                }
            });
        }
        if swaps.is_empty() {
            return Ok(decided);
        }
        let swapped = self.swap(&swaps).await;
        for ((at, answer), swapped) in pending.into_iter().zip(swapped) {
            decided[at] = match swapped {
                Err(error) => Some(Err(error)),
                Ok(Swapped::Conflict) => None,
                Ok(Swapped::Done { counts_from, .. }) => Some(Ok((answer, counts_from))),
            };
        }
        Ok(decided)
    }

    /// Reads documents; there must be one entry for each name.
    async fn read(&self, names: &[Name]) -> Result<Reading<B::Version>> {
        let Reading { store_time, entries } = self.backend.read(names).await?;
        Ok(Reading { store_time, entries: same_count(entries, names.len())? })
    }

    /// Writes documents, and records what follows from each result.
    async fn swap(&self, swaps: &[Swap<B::Version>]) -> Vec<Result<Swapped<B::Version>>> {
        if B::EXPIRY == Expiry::ServerLease {
            self.unconfirmed.claims(swaps);
        }
        let swapped = self.backend.swap(swaps).await;
        let swapped = match swapped.and_then(|swapped| same_count(swapped, swaps.len())) {
            Ok(swapped) => swapped,
            Err(error) => swaps.iter().map(|_| Err(error.clone())).collect(),
        };
        for (swap, swapped) in swaps.iter().zip(&swapped) {
            match swapped {
                Ok(Swapped::Done { version, .. }) => self.observe_write(swap, version),
                Ok(Swapped::Conflict) => {
                    self.written().remove(&swap.name);
                    self.unconfirmed.refused(swap);
                }
                // It may have arrived, and then the version is another one.
                Err(_) => drop(self.written().remove(&swap.name)),
            }
        }
        swapped
    }

    /// Applies an operation to what was read: the answer, and the swap that makes it valid.
    fn apply<O: Operation>(
        &self,
        operation: &O,
        entry: Option<Entry<B::Version>>,
        now: Moment,
        context: &RuleContext,
    ) -> Result<Planned<O::Answer, B::Version>> {
        let name = operation.name();
        let Found { record, standing, version } = match self.judge(name, entry, now, context) {
            Ok(found) => found,
            Err(lease) => return operation.excluded(*lease).map(|answer| (answer, None)),
        };
        let found = record.as_ref().map(|record| FoundRecord { record, standing });
        let Step { answer, write } = operation.apply(found, context)?;
        let swap = write.map(|RecordWrite { record: written, condition, time }| Swap {
            name: name.clone(),
            condition: match condition {
                // Observation has judged that the time of a revoked term has passed. Its session may live on.
                Condition::TermIsOver if record.as_ref().is_some_and(is_revoked) => Condition::None,
                condition => condition,
            },
            expected: version,
            record: written,
            time,
        });
        Ok((answer, swap))
    }

    /// The holder's own write counts as its first observation: an expired term is over for its holder too.
    fn observe_write(&self, swap: &Swap<B::Version>, version: &B::Version) {
        let mut observations = self.observations();
        match &swap.record.term {
            Some(term) if B::EXPIRY == Expiry::Observation => {
                let now = self.clock.now();
                observations.left(&swap.name, mark(version), term.ttl, DRIFT_PPM, now);
                let (record, version) = (swap.record.clone(), version.clone());
                let document = Document { record, version, left: Duration::ZERO };
                self.written().insert(swap.name.clone(), document);
            }
            _ => {
                observations.forget(&swap.name);
                self.written().remove(&swap.name);
            }
        }
    }

    fn written(&self) -> std::sync::MutexGuard<'_, HashMap<Name, Document<B::Version>>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn observations(&self) -> std::sync::MutexGuard<'_, Observations> {
        self.observations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The times at which an operation is applied. Without a clock of the service, the wall clock of this process mints tokens:
    /// it is only a lower bound. A wait that is recorded on it is bounded by its length, and the clocks of other machines do not
    /// matter.
    fn context(&self, store_time: Option<StoreTime>) -> RuleContext {
        let micros =
            store_time.map_or_else(|| self.clock.minting_micros(), |StoreTime(micros)| micros);
        RuleContext { store_time, wait_micros: micros, minting_micros: micros, floor: None }
    }

    /// Renews in one round trip what can be renewed so, and reads and swaps the rest.
    async fn renew_batch(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Answer>>> {
        let renewal = |hold: &Hold| Renewal { hold: hold.clone(), ttl };
        let touched = match B::EXPIRY {
            Expiry::Observation => Some(Ok(self.renew_written(holds, ttl).await)),
            Expiry::StoreClock | Expiry::ServerLease => self.backend.touch(holds, ttl).await,
        };
        let Some(touched) = touched else {
            let renewals: Vec<Renewal> = holds.iter().map(renewal).collect();
            return Ok(without_times(self.run(&renewals).await?));
        };
        let touched = same_count(touched?, holds.len())?;
        let is_unknown = |touched: &Result<Touched>| matches!(touched, Ok(Touched::Unknown));
        let unknown = holds.iter().zip(&touched).filter(|(_, touched)| is_unknown(touched));
        let unknown: Vec<Renewal> = unknown.map(|(hold, _)| renewal(hold)).collect();
        let rest = match unknown.is_empty() {
            true => Vec::new(),
            false => without_times(match self.run(&unknown).await {
                Ok(rest) => rest,
                Err(error) => unknown.iter().map(|_| Err(error.clone())).collect(),
            }),
        };
        let mut rest = rest.into_iter();
        let answer = |touched: Result<Touched>| match touched {
            Ok(Touched::Renewed) => Ok(Answer::Held(())),
            Ok(Touched::Unknown) => rest.next().unwrap_or_else(|| Err(wrong_count(1, 0))),
            Err(error) => Err(error),
        };
        Ok(touched.into_iter().map(answer).collect())
    }

    /// Renews without a read what this store wrote last. What is not found there, or conflicts, is read and judged.
    async fn renew_written(&self, holds: &[Hold], ttl: Duration) -> Vec<Result<Touched>> {
        let (now, context) = (self.clock.now(), self.context(None));
        let mut touched: Vec<Result<Touched>> =
            holds.iter().map(|_| Ok(Touched::Unknown)).collect();
        let (mut at, mut swaps) = (Vec::new(), Vec::new());
        let mut names = HashSet::new();
        for (index, hold) in holds.iter().enumerate() {
            let document = self.written().get(&hold.name).cloned();
            let Some(document) = document.filter(|_| names.insert(&hold.name)) else { continue };
            let renewal = Renewal { hold: hold.clone(), ttl };
            let entry = Some(Entry::Document(document));
            if let Ok((Answer::Held(()), Some(swap))) = self.apply(&renewal, entry, now, &context) {
                at.push(index);
                swaps.push(swap);
            }
        }
        if swaps.is_empty() {
            return touched;
        }
        for (index, swapped) in at.into_iter().zip(self.swap(&swaps).await) {
            touched[index] = swapped.map(|swapped| match swapped {
                Swapped::Done { .. } => Touched::Renewed,
                Swapped::Conflict => Touched::Unknown,
            });
        }
        touched
    }

    /// The leases of these names; `None` for a name that was never used.
    async fn observe_batch(&self, names: &[Name]) -> Result<Vec<Result<Option<Lease>>>> {
        let reading = self.read(names).await?;
        Ok(self.leases(names, reading))
    }

    fn leases(&self, names: &[Name], reading: Reading<B::Version>) -> Vec<Result<Option<Lease>>> {
        let (now, context) = (self.clock.now(), self.context(reading.store_time));
        let leases = names.iter().zip(reading.entries).map(|(name, entry)| {
            Ok(match self.judge(name, entry?, now, &context) {
                Err(foreign) => Some(*foreign),
                Ok(Found { record, standing, .. }) => record.map(|record| {
                    let found = FoundRecord { record: &record, standing };
                    lease(Some(found), name, &context)
                }),
            })
        });
        leases.collect()
    }

    /// Ends unconfirmed writes: releases what they left behind, and forgets those that can have no effect any more.
    async fn release_unconfirmed(&self, leftover: &[UnconfirmedKey]) -> Result<()> {
        let names: Vec<Name> = leftover.iter().map(|(name, _)| name.clone()).collect();
        let Reading { store_time, entries } = self.read(&names).await?;
        let (now, context) = (self.clock.now(), self.context(store_time));
        let (mut keys, mut swaps) = (Vec::new(), Vec::new());
        for ((name, nonce), entry) in leftover.iter().zip(entries) {
            // Checked after the read: a claim that was repeated before it holds the lease now, and one that is repeated after
            // it changes the version that the release compares.
            if !self.unconfirmed.is_abandoned(name, *nonce) {
                continue;
            }
            let document = match entry {
                Ok(Some(Entry::Document(document))) => Some(document),
                Ok(None) => None,
                // Not readable now, or not a lease: nothing is known about the write.
                Ok(Some(Entry::Foreign { .. } | Entry::ForeignDocument(_))) | Err(_) => continue,
            };
            let own = document.clone().and_then(|document| {
                let term =
                    document.record.term.as_ref().filter(|term| term.nonce == Some(*nonce))?;
                let (name, candidate) = (name.clone(), term.candidate.clone());
                Some(Hold { name, candidate, nonce: *nonce, token: document.record.token })
            });
            let Some(hold) = own else {
                let version = document.as_ref().map(|document| &document.version);
                self.unconfirmed.forget_unless_pending(name, *nonce, version);
                continue;
            };
            let entry = document.map(Entry::Document);
            if let (true, Some(swap)) = self.apply(&Release::from(hold), entry, now, &context)? {
                keys.push((name, *nonce));
                swaps.push(swap);
            }
        }
        if swaps.is_empty() {
            return Ok(());
        }
        for ((name, nonce), swapped) in keys.into_iter().zip(self.swap(&swaps).await) {
            if let Swapped::Done { .. } = swapped? {
                self.unconfirmed.forget(name, nonce);
            }
        }
        Ok(())
    }
}

#[async_trait]
impl<B: Backend> Store for CasStore<B> {
    fn limits(&self) -> Limits {
        self.0.backend.limits()
    }

    fn url(&self) -> String {
        self.0.backend.url()
    }

    fn detached(&self) -> Arc<dyn Store> {
        Arc::new(CasStore::new(self.0.backend.detached(), self.0.clock.clone()))
    }

    async fn acquire(&self, claims: &[Claim]) -> Result<Vec<Result<Answer<Grant>>>> {
        // An earlier campaign of this process may have left the name under its session.
        let leftover = self.0.unconfirmed.other_campaigns(claims);
        if !leftover.is_empty() {
            // If it cannot be released now, its name is Taken, and the other claims are not affected.
            log_unreleased(self.0.release_unconfirmed(&leftover).await);
        }
        let in_flight =
            (B::EXPIRY == Expiry::ServerLease).then(|| self.0.unconfirmed.in_flight(claims));
        let answers = self.0.run(claims).await?;
        let answers = answers.into_iter().zip(claims).map(|(answer, claim)| {
            answer.map(|(answer, counts_from)| match answer {
                Answer::Held(grant) => {
                    self.0.unconfirmed.forget(&claim.name, claim.nonce);
                    Answer::Held(Grant { counts_from, ..grant })
                }
                Answer::Taken(lease) => Answer::Taken(lease),
            })
        });
        let answers = answers.collect();
        drop(in_flight);
        Ok(answers)
    }

    async fn renew(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Answer>>> {
        let inner = &*self.0;
        let max_batch = inner.backend.limits().max_batch;
        let renew = |holds| inner.renew_batch(holds, ttl);
        let answers = in_batches(holds, max_batch, MAX_IN_FLIGHT, renew).await;
        self.spawn_cleanup(holds);
        answers
    }

    async fn release(&self, releases: &[Release]) -> Result<Vec<Result<()>>> {
        if B::EXPIRY == Expiry::ServerLease {
            self.0.unconfirmed.releases(releases);
        }
        let answers = self.0.run(releases).await?;
        let answers = answers.into_iter().zip(releases).map(|(answer, release)| {
            // The lease is released, or it is not the caller's.
            answer.map(|_| self.0.unconfirmed.forget(&release.hold.name, release.hold.nonce))
        });
        Ok(answers.collect())
    }

    async fn save(&self, hold: &Hold, number: u64, checkpoint: &Checkpoint) -> Result<Answer> {
        let (hold, checkpoint) = (hold.clone(), checkpoint.clone());
        only(self.0.run(&[Save { hold, number, checkpoint }]).await?)
    }

    async fn revoke(&self, name: &Name, when: Revoke) -> Result<Lease> {
        only(self.0.run(&[Revocation { name: name.clone(), when }]).await?)
    }

    async fn observe(&self, scope: &Scope) -> Result<Vec<Result<Lease>>> {
        let inner = &*self.0;
        let mut names = match scope {
            Scope::Names(names) => names.clone(),
            Scope::Prefix(prefix) => match inner.backend.read_prefix(prefix).await {
                None => inner.backend.list(prefix).await?,
                Some(found) => {
                    let (names, Reading { store_time, entries }) = found?;
                    let reading =
                        Reading { store_time, entries: same_count(entries, names.len())? };
                    let leases = inner.leases(&names, reading);
                    return Ok(leases.into_iter().filter_map(Result::transpose).collect());
                }
            },
        };
        names.sort_unstable();
        names.dedup();
        let max_batch = inner.backend.limits().max_batch;
        let observe = |names| inner.observe_batch(names);
        let leases = in_batches(&names, max_batch, MAX_IN_FLIGHT, observe).await?;
        Ok(leases.into_iter().filter_map(Result::transpose).collect())
    }

    fn watch(&self, scope: &Scope) -> BoxStream<'static, Change> {
        self.0.backend.changes(scope)
    }

    async fn examine(&self) -> Result<Report> {
        self.0.backend.examine().await
    }
}

/// The operations to try next, as many as the service takes at once: of each name the first that has no answer. A second one of the same name must see what the first
/// one wrote.
fn next_round<O: Operation, T>(
    operations: &[O],
    answers: &[Option<T>],
    max_batch: usize,
) -> Vec<usize> {
    let mut names = HashSet::new();
    let open = (0..operations.len()).filter(|&at| answers[at].is_none());
    open.filter(|&at| names.insert(operations[at].name())).take(max_batch).collect()
}

fn log_unreleased(released: Result<()>) {
    if let Err(error) = released {
        tracing::debug!(%error, "an unconfirmed lease is not released yet");
    }
}

fn without_times<T>(answers: Vec<Result<Timed<T>>>) -> Vec<Result<T>> {
    answers.into_iter().map(|answer| answer.map(|(answer, _)| answer)).collect()
}

fn only<T>(mut answers: Vec<Result<Timed<T>>>) -> Result<T> {
    answers.pop().map_or_else(|| Err(wrong_count(1, 0)), |answer| answer.map(|(answer, _)| answer))
}

/// A backend that returns too few or too many answers has answered nothing.
fn same_count<T>(answers: Vec<T>, expected: usize) -> Result<Vec<T>> {
    let count = answers.len();
    if count == expected { Ok(answers) } else { Err(wrong_count(expected, count)) }
}

fn too_many_conflicts(name: &Name) -> Error {
    Error::unavailable(format!(
        "'{name}' was changed by others {MAX_CONFLICTS} times while this call tried to change it: try again"
    ))
}
