//! The overrides of a fleet: which shards an operator has paused, and which members are drained. An election keeps the drains
//! of its candidates in the same way.
//!
//! Overrides outlive the operator's process and the members, so they are kept in the store: in the checkpoint of the lease
//! `tenure:control:FLEET`, as JSON. A caller that changes them holds that lease for a moment, so no concurrent change is lost.
//! The release notifies the members, which watch this lease. A record that cannot be read is an error, never "nothing is
//! paused".
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
//! use std::time::Duration;
//! use tenure::CandidateId;
//! use tenure::fleet::{Shard, fleet_name, overrides};
//!
//! let store = tenure::open("memory:").await?;
//! let (fleet, me) = (fleet_name("control:example")?, CandidateId::generate());
//! let shard = Shard::new("tenant 7")?;
//! let pause = |overrides: &mut overrides::Overrides| {
//!     overrides.paused.insert(shard.clone());
//! };
//! overrides::change(&*store, &fleet, &me, Duration::from_secs(10), pause).await?;
//! assert!(overrides::read(&*store, &fleet).await?.paused.contains("tenant 7"));
//! # Ok(()) }
//! ```

mod drained;

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use super::Shard;
use super::shard::{member_of, nodes_prefix};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::lease::{
    Answer, CandidateId, Checkpoint, Claim, ClaimedWait, Grant, Name, Nonce, OWN_PREFIX,
};
use crate::presence::present;
use crate::store::{Scope, Store, StoreExt as _};

pub use drained::Drained;

const VERSION: u64 = 1;
/// The TTL of the lease during a change, which is one read and one write. A caller that dies meanwhile blocks others for this
/// long.
const CHANGE_TTL: Duration = Duration::from_secs(5);
/// How often a waiting caller tries to acquire without a notification, because one may be lost.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The paused shards and drained members of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Paused shards, which no member may own.
    pub paused: BTreeSet<Shard>,
    /// Drained members, which may own no shard.
    pub drained: Drained,
}

/// The stored record. Unknown fields are refused, because the next change would lose them.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverridesRecord {
    v: u64,
    paused: Vec<String>,
    drained: Vec<String>,
}

/// The lease whose checkpoint holds the overrides, and which the members watch.
#[must_use]
pub fn name(fleet: &Name) -> Name {
    Name::own(format!("{OWN_PREFIX}control:{fleet}"))
}

/// Reads the overrides; empty if there never were any.
///
/// # Errors
/// [`Corrupt`](crate::Kind::Corrupt) if the record cannot be decoded: keep the overrides that were read before.
pub async fn read(store: &dyn Store, fleet: &Name) -> Result<Overrides> {
    let name = name(fleet);
    let lease = store.observe_one(&name).await?;
    decode(&name, lease.and_then(|lease| lease.checkpoint).as_ref())
}

/// Changes the overrides and returns the result. Waits up to `wait` while other callers change them.
///
/// `change` is called once, with the current overrides, unless an error comes first. If it changes nothing, nothing is written.
///
/// The record holds up to 4 KiB. When a change does not fit, the oldest drains of ids that are not members now are dropped
/// until it fits: most of them belong to processes that never return. The drain of a running member is never dropped.
///
/// # Errors
/// [`Unavailable`](crate::Kind::Unavailable) when other callers hold the lease for longer than `wait`, and when the store does
/// not answer: then the change may or may not have been made, and it is safe to repeat it. [`Invalid`](crate::Kind::Invalid)
/// when the record would be larger than a checkpoint may be.
pub async fn change(
    store: &dyn Store,
    fleet: &Name,
    requester: &CandidateId,
    wait: Duration,
    change: impl FnOnce(&mut Overrides) + Send,
) -> Result<Overrides> {
    let (clock, name) = (Clock::boot(), name(fleet));
    let (grant, deadline) = acquire(store, &clock, &name, requester, wait).await?;
    let changed = edit(store, fleet, &clock, &grant, deadline, change).await;
    // If the release fails, the lease expires by itself.
    let _ = store.release_one(grant.hold).await;
    changed
}

/// Acquires the lease; returns the grant and its expiry.
async fn acquire(
    store: &dyn Store,
    clock: &Clock,
    name: &Name,
    requester: &CandidateId,
    wait: Duration,
) -> Result<(Grant, Moment)> {
    let wait_until = clock.now() + wait;
    let limits = store.limits();
    let ttl = CHANGE_TTL.clamp(limits.min_ttl, limits.max_ttl);
    let mut changes = store.watch(&Scope::name(name));
    let mut claim = Claim::new(name.clone(), requester.clone(), Nonce::random(), ttl);
    claim.wait = ClaimedWait::Never;
    loop {
        let sent = clock.now();
        match store.acquire_one(&claim).await? {
            Answer::Held(grant) => return Ok((grant, sent + ttl)),
            Answer::Taken(_) if clock.now() >= wait_until => {
                return Err(Error::unavailable(format!(
                    "another process is changing '{name}' all the time, so nothing was changed: \
                     try again in a moment"
                )));
            }
            Answer::Taken(_) => {}
        }
        tokio::select! {
            _ = changes.next() => {}
            () = clock.sleep_until(wait_until.min(clock.now() + POLL_INTERVAL)) => {}
        }
    }
}

/// The ids that now hold a membership lease of the fleet of this name, or a presence lease of the election of this name.
async fn members(store: &dyn Store, name: &Name) -> Result<BTreeSet<CandidateId>> {
    let leases = store.observe(&Scope::Prefix(nodes_prefix(name))).await?;
    let held = leases.into_iter().flatten().filter(|lease| lease.holder.is_some());
    let mut ids: BTreeSet<_> = held.filter_map(|lease| member_of(name, &lease.name)).collect();
    ids.extend(present(store, name).await?.into_iter().map(|node| node.id));
    Ok(ids)
}

async fn edit(
    store: &dyn Store,
    fleet: &Name,
    clock: &Clock,
    grant: &Grant,
    deadline: Moment,
    change: impl FnOnce(&mut Overrides) + Send,
) -> Result<Overrides> {
    let name = &grant.hold.name;
    let before = decode(name, grant.checkpoint.as_ref())?;
    let mut after = before.clone();
    change(&mut after);
    if after == before {
        return Ok(after);
    }
    let checkpoint = match after.encode() {
        Ok(checkpoint) => checkpoint,
        Err(_) => {
            let members = members(store, fleet).await?;
            after.make_room(|id| members.contains(id) || !before.drained.contains(id))?
        }
    };
    let late = || {
        Error::unavailable(format!(
            "changing '{name}' took so long that another process may have done so, and nothing \
             was changed: try again"
        ))
    };
    if clock.now() >= deadline {
        return Err(late());
    }
    match store.save(&grant.hold, 1, &checkpoint).await? {
        Answer::Held(()) => Ok(after),
        Answer::Taken(_) => Err(late()),
    }
}

impl Overrides {
    /// Drops the oldest drains that `keep` does not name, as few as possible, so that the rest can be written.
    fn make_room(&mut self, keep: impl Fn(&CandidateId) -> bool) -> Result<Checkpoint> {
        loop {
            let error = match self.encode() {
                Ok(checkpoint) => return Ok(checkpoint),
                Err(error) => error,
            };
            let Some(oldest) = self.drained.iter().find(|id| !keep(id)).cloned() else {
                return Err(error);
            };
            self.drained.remove(&oldest);
        }
    }

    fn encode(&self) -> Result<Checkpoint> {
        let record = OverridesRecord {
            v: VERSION,
            paused: self.paused.iter().map(|shard| shard.as_str().to_owned()).collect(),
            drained: self.drained.iter().map(ToString::to_string).collect(),
        };
        let bytes = serde_json::to_vec(&record)
            .map_err(|error| Error::invalid("this cannot be written down").caused_by(error))?;
        Checkpoint::new(&bytes).map_err(|_| {
            Error::invalid(format!(
                "{} paused shards and {} drained members are more than is kept about a fleet (4 \
                 KiB), so nothing was changed: leave shards that are paused for long out of the \
                 source, or on Redis put them into the set FLEET:paused",
                self.paused.len(),
                self.drained.len()
            ))
        })
    }
}

fn decode(name: &Name, checkpoint: Option<&Checkpoint>) -> Result<Overrides> {
    let Some(checkpoint) = checkpoint else { return Ok(Overrides::default()) };
    let corrupt = |why: String| {
        Error::corrupt(format!(
            "what was said about the fleet, in the checkpoint of '{name}', cannot be read: {why}. \
             It is left as it is; 'tenure status {name}' shows who wrote it"
        ))
    };
    // The version is read first, so that a record of another version is not reported as garbage.
    let value: serde_json::Value = serde_json::from_slice(checkpoint.as_bytes())
        .map_err(|error| corrupt(format!("it is not JSON ({error})")))?;
    match value.get("v").and_then(serde_json::Value::as_u64) {
        Some(VERSION) => {}
        Some(other) => {
            return Err(corrupt(format!(
                "it is of version {other}, and this program knows only 1"
            )));
        }
        None => return Err(corrupt("it has no version".to_owned())),
    }
    let record: OverridesRecord =
        serde_json::from_value(value).map_err(|error| corrupt(error.to_string()))?;
    let wrong = |error: Error| corrupt(error.to_string());
    Ok(Overrides {
        paused: record
            .paused
            .iter()
            .map(|shard| Shard::new(shard))
            .collect::<Result<_>>()
            .map_err(wrong)?,
        drained: record
            .drained
            .iter()
            .map(|id| CandidateId::new(id))
            .collect::<Result<_>>()
            .map_err(wrong)?,
    })
}

#[cfg(test)]
mod tests;
