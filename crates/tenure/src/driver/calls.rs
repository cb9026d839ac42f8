//! The calls of a driver to its store: the requests of one turn in as few calls as possible, each with its own timeout.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use tracing::Instrument as _;

use super::{Driver, MachineId, StoreReply};
use crate::clock::Clock;
use crate::error::{Error, Kind, Result};
use crate::fleet::overrides;
use crate::lease::{Claim, Hold, Lease, Name, Release};
use crate::machine::Input as MachineInput;
use crate::store::{Scope, Store, StoreExt as _, wrong_count};
use crate::timing::Timing;
use crate::trace;

/// The requests of one turn of machines with the same timing, which the driver sends together.
#[derive(Default)]
pub(super) struct Batch {
    ttl: Duration,
    try_for: Duration,
    pub(super) acquire: Vec<(MachineId, u64, Claim)>,
    pub(super) renew: Vec<(MachineId, u64, Hold)>,
    pub(super) release: Vec<(MachineId, u64, Release)>,
    pub(super) observe: Vec<(MachineId, u64, Name)>,
    /// Requests from outside that were processed.
    pub(super) answers: Vec<Release>,
}

impl Driver {
    /// The batch of machines with this timing.
    pub(super) fn group_of(&mut self, timing: &Timing) -> usize {
        let (ttl, try_for) = (timing.ttl, timing.try_for());
        let known =
            self.batches.iter().position(|batch| (batch.ttl, batch.try_for) == (ttl, try_for));
        known.unwrap_or_else(|| {
            self.batches.push(Batch { ttl, try_for, ..Batch::default() });
            self.batches.len() - 1
        })
    }

    /// Sends the batches: renewals first, and each operation in as few calls as possible.
    pub(super) fn flush(&mut self) {
        for group in 0..self.batches.len() {
            let batch = &mut self.batches[group];
            let (ttl, try_for) = (batch.ttl, batch.try_for);
            let batch = std::mem::replace(batch, Batch { ttl, try_for, ..Batch::default() });
            self.call(try_for, batch.renew, MachineInput::Renewed, async move |store, holds| {
                store.renew(&holds, ttl).instrument(trace::renewal_span(holds.len())).await
            });
            self.call(try_for, batch.release, MachineInput::Released, async |store, releases| {
                store.release(&releases).await
            });
            self.call(try_for, batch.acquire, MachineInput::Acquired, async |store, claims| {
                store.acquire(&claims).await
            });
            self.call(try_for, batch.observe, MachineInput::Observed, observe);
            if !batch.answers.is_empty() {
                self.answer(try_for, batch.answers);
            }
        }
        if std::mem::take(&mut self.read_requests) {
            self.observe_requests();
        }
    }

    /// Calls one operation for many items, and passes each answer to its machine. The machines discard late answers.
    ///
    /// Each call has its own timeout and as many items as the store takes at once: a call that is stuck delays no other.
    fn call<I: 'static, O: 'static>(
        &mut self,
        try_for: Duration,
        items: Vec<(MachineId, u64, I)>,
        event: fn(u64, Result<O>) -> MachineInput,
        verb: impl AsyncFn(Arc<dyn Store>, Vec<I>) -> Result<Vec<Result<O>>> + Clone + 'static,
    ) {
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            let (store, clock) = (self.store.clone(), self.clock.clone());
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
    fn answer(&mut self, try_for: Duration, answers: Vec<Release>) {
        let (store, clock) = (self.store.clone(), self.clock.clone());
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
    pub(super) fn read_drain_record(&mut self, id: MachineId, pause: Duration) {
        let Some(slot) = self.slots.get(&id) else { return };
        let (name, candidate) = (slot.machine.name().clone(), slot.machine.candidate().clone());
        let try_for = slot.machine.timing().try_for();
        let (store, clock) = (self.store.clone(), self.clock.clone());
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
        let accepting = || self.slots.values().filter(|slot| slot.accepts_requests);
        let names: Vec<Name> = accepting().map(|slot| slot.machine.name().request_name()).collect();
        let Some(try_for) = accepting().map(|slot| slot.machine.timing().try_for()).max() else {
            return;
        };
        let (store, clock) = (self.store.clone(), self.clock.clone());
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
