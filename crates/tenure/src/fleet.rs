//! The fleet: many leases, dealt out fairly over however many members are running.
//!
//! A fleet has **members**, processes that come and go, and **shards**, pieces of work that come and go too. Every shard has
//! exactly one owner at any time, every member about as many as the others, and nobody configures who does what.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
//! use tenure::fleet::{Event, Fleet, source};
//!
//! let store = tenure::open("memory:").await?;
//! let fleet = Fleet::builder("poll")
//!     .member("api-1")
//!     .shards(source::list(["tenant-1", "tenant-2"]))
//!     .join(store)
//!     .await?;
//! let mut running = std::collections::HashMap::new();
//! while running.len() < 2 {
//!     match fleet.next().await {
//!         Some(Event::Assigned { shard, work, .. }) => {
//!             // Begin to work on it, with work.token() in whatever has an effect.
//!             running.insert(shard, work);
//!         }
//!         Some(Event::Revoked { shard, .. }) => {
//!             // End that work; then drop it, and the shard goes to its next owner.
//!             running.remove(&shard);
//!         }
//!         _ => {}
//!     }
//! }
//! assert!(fleet.is_owned("tenant-1"));
//! running.clear();
//! fleet.leave().await;
//! # Ok(()) }
//! ```
//!
//! - **Only the lease gives the right.** Each shard is a lease, `FLEET:lease:SHARD`, with a token and a deadline like any other.
//!   Who *should* own what is [planned](crate::placement) by each member for itself; who *may* is decided by the store.
//! - **Stop, then release.** A shard that moves is first taken from its owner ([`Event::Revoked`]), whose work has ended when
//!   every [`Work`] of it is dropped. Then it is released, naming who comes next, who is woken and takes it.
//! - **Fail closed.** A member that cannot renew stops all its work before its deadlines.
//! - **Members** hold a lease on themselves, `FLEET:node:MEMBER`, as soon as they have read their list of shards, and announce a
//!   digest of that list in its checkpoint: a shard is planned for members that list it. A second one with the same id claims nothing while the first is
//!   there.
//! - **Two threads**: renewals have one of their own, as in every election; another one reads the source and plans.

mod builder;
mod coordinator;
mod event;
mod list_digest;
mod member;
pub mod overrides;
pub mod planner;
mod removed_shards;
mod shard;
mod snapshot;
pub mod source;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::sync::{Mutex, mpsc};

pub use builder::Builder;
pub use event::{FleetEvent, ShardWork};
pub use list_digest::ListDigest;
pub use planner::{Coverage, Reason, ShardNumber};
pub use shard::{Shard, fleet_name, leases_prefix, member_of, node, nodes_prefix};
pub use snapshot::{OwnedShard, Snapshot, survey};

use crate::clock::Moment;
use crate::driver::{DriverCommand, Pulse, RenewalStats};
use crate::error::{Error, Kind, Result};
use crate::lease::{CandidateId, Name, Token};
use crate::placement;
use member::{MemberContext, MemberInput, locked};

/// One member of a fleet.
///
/// Dropping it without [`Fleet::leave`] leaves its leases to their TTL: nothing more is sent for them.
pub struct Fleet {
    shared: Arc<MemberContext>,
    events: Mutex<mpsc::UnboundedReceiver<FleetEvent>>,
}

/// One that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who.
    pub id: CandidateId,
    /// What it says of itself: its URL.
    pub note: String,
    /// Somebody has said that it should own nothing.
    pub drained: bool,
    /// What it has announced about its list of shards.
    pub list: ListDigest,
}

/// New deadlines, as renewals bring them: for work in another process, which has to be told.
#[derive(Debug)]
pub struct Extensions(mpsc::UnboundedReceiver<(u64, Moment)>);

impl Extensions {
    /// The next ones: [`Work::number`] and its new deadline, [`Moment::NEVER`] where the store has refused us. Empty when the
    /// fleet has ended.
    pub async fn next(&mut self) -> Vec<(u64, Moment)> {
        let mut next = Vec::new();
        self.0.recv_many(&mut next, 1_000).await;
        next
    }
}

impl Fleet {
    /// A member of the fleet `name`: up to 90 bytes of `A–Z a–z 0–9 . _ : / -`.
    pub fn builder(name: &str) -> Builder {
        Builder::new(name)
    }

    fn new(shared: Arc<MemberContext>, events: mpsc::UnboundedReceiver<FleetEvent>) -> Self {
        Fleet { shared, events: Mutex::new(events) }
    }

    /// Returns when the store has answered for the first time. Waits for a store that is down.
    ///
    /// # Errors
    /// Denied, Corrupt: the store answered, and an operator must act.
    pub async fn answered(&self) -> Result<()> {
        let mut reachable = self.shared.reachable.subscribe();
        let mut over = self.shared.over.subscribe();
        loop {
            match &*reachable.borrow_and_update() {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) if error.kind() != Kind::Unavailable => return Err(error.clone()),
                _ => {}
            }
            tokio::select! {
                _ = reachable.changed() => {}
                _ = over.wait_for(|over| *over) => {
                    return Err(Error::unavailable("the fleet has ended before it began"));
                }
            }
        }
    }

    /// The next thing that happens; `None` when the fleet has ended. One listener hears it all: share the fleet, not this.
    ///
    /// # Cancellation
    /// Dropping this future loses nothing.
    pub async fn next(&self) -> Option<FleetEvent> {
        let mut events = self.events.lock().await;
        let mut over = self.shared.over.subscribe();
        tokio::select! {
            biased;
            event = events.recv() => event,
            _ = over.wait_for(|over| *over) => events.try_recv().ok(),
        }
    }

    /// The same as a stream, which ends with the fleet.
    pub fn events(&self) -> impl Stream<Item = FleetEvent> + Send + '_ {
        stream::unfold(self, async |fleet| Some((fleet.next().await?, fleet)))
    }

    /// The fleet's name.
    pub fn name(&self) -> &Name {
        &self.shared.name
    }

    /// This member.
    pub fn member_id(&self) -> &CandidateId {
        &self.shared.me
    }

    /// Whether this member holds the lease on itself, computed now.
    pub fn is_member(&self) -> bool {
        self.shared.is_member()
    }

    /// The token of the lease on itself and how long that is certain, while it is held.
    pub fn membership(&self) -> Option<(Token, Duration)> {
        self.shared.membership()
    }

    /// The shards this member owns, with their tokens, computed now.
    pub fn owned(&self) -> Vec<(Shard, Token)> {
        self.shared.owned()
    }

    /// Whether this member owns a shard, computed from the clock at this very moment.
    pub fn is_owned(&self, shard: &str) -> bool {
        self.shared.is_owned(shard)
    }

    /// Who takes part, as last seen, in the order of their ids.
    pub fn members(&self) -> Vec<Member> {
        locked(&self.shared.view).members.clone()
    }

    /// The shards the source names, as last read, in order.
    pub fn shards(&self) -> Arc<source::Shards> {
        locked(&self.shared.view).shards.clone()
    }

    /// Who wants this shard most, of those that take part: its owner, if only the preference counted.
    pub fn preferred(&self, shard: &str) -> Option<CandidateId> {
        let view = locked(&self.shared.view);
        let members = view.members.iter();
        let members: Vec<_> = members
            .map(|member| placement::PlacementMember {
                id: member.id.as_str(),
                drained: member.drained,
            })
            .collect();
        placement::preferred(&members, shard).map(|at| view.members[at].id.clone())
    }

    /// How many shards have an owner, as of a moment ago.
    pub fn coverage(&self) -> Coverage {
        locked(&self.shared.view).coverage
    }

    /// How long renewals took, and how often they failed, since the start.
    pub fn renewals(&self) -> RenewalStats {
        self.shared.renewals()
    }

    /// Whether this member does its part in time: for a probe that restarts what has got stuck.
    pub fn pulse(&self) -> Pulse {
        let (late, overrun) = self.shared.late_and_overrun();
        Pulse { late, overrun, ended: *self.shared.over.borrow() }
    }

    /// What the store said last: `None` before its first answer, its error while it gives none.
    pub fn reachable(&self) -> Option<Result<()>> {
        self.shared.reachable.borrow().clone()
    }

    /// Why the source of shards cannot be read, while it cannot. Before its first good read a member does not join.
    pub fn source_error(&self) -> Option<Error> {
        locked(&self.shared.view).source_error.clone()
    }

    /// Whether another living process is a member under the id of this one, which therefore waits.
    pub fn has_namesake(&self) -> bool {
        locked(&self.shared.view).namesake
    }

    /// Whether this member is fit to work, as far as a [health check](Builder::health) says.
    pub fn is_healthy(&self) -> bool {
        self.shared.healthy.load(Ordering::Relaxed)
    }

    /// Whether it is over: nothing is owned or renewed any more.
    pub fn has_ended(&self) -> bool {
        *self.shared.over.borrow()
    }

    /// Every new deadline from now on. Can be had once.
    pub fn extensions(&self) -> Option<Extensions> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.shared.extensions.set(sender).ok()?;
        Some(Extensions(receiver))
    }

    /// Leaves: the others see it go, the work is told to stop, has stopped, and then everything is released, each shard naming
    /// who should have it next.
    ///
    /// Waits for the work: every [`Work`] has to be dropped, so go on to call [`Fleet::next`] meanwhile, or drop them before.
    pub async fn leave(&self) {
        self.shared.note(MemberInput::Leave);
        let mut over = self.shared.over.subscribe();
        // The sender lives in `shared`.
        let _ = over.wait_for(|over| *over).await;
    }
}

impl Drop for Fleet {
    /// No I/O: the driver stops, and the leases are left to their TTL.
    fn drop(&mut self) {
        let _ = self.shared.context.commands.send(DriverCommand::Abandon);
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet")
            .field("name", &self.shared.name)
            .field("member", &self.shared.me)
            .field("is_member", &self.is_member())
            .finish_non_exhaustive()
    }
}
