//! The public API of a fleet: many leases (shards), shared evenly among the running members.
//!
//! A fleet has **members**, processes that start and stop, and **shards**, pieces of work that are added and removed. At any
//! time each shard has at most one owner, and each member owns about the same number of shards. The assignment needs no
//! configuration.
//!
//! ```
//! # async fn poll(shard: &tenure::fleet::Shard, token: tenure::Token) { tokio::task::yield_now().await }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
//! use tenure::fleet::{Fleet, source};
//!
//! let store = tenure::open("memory:").await?;
//! let fleet = Fleet::builder("poll")
//!     .member("api-1")
//!     .shards(source::list(["tenant-1", "tenant-2"]))
//!     .join(store)
//!     .await?;
//! let run = fleet.run(|work| async move {
//!     // Only one member at a time works on this shard. When the shard is revoked, this work is dropped.
//!     while !work.should_stop() {
//!         poll(work.shard(), work.token()).await; // pass the token along with every effect
//!     }
//! });
//! # let stop_requested = async || while fleet.owned().len() < 2 { tokio::task::yield_now().await };
//! let stop = async {
//!     stop_requested().await;
//!     fleet.leave().await; // the work is dropped, and each shard goes to its next owner
//! };
//! tokio::join!(run, stop);
//! # Ok(()) }
//! ```
//!
//! Work that needs time to stop, or that runs elsewhere, takes the events itself:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
//! # use tenure::fleet::{Fleet, FleetEvent, source};
//! # let store = tenure::open("memory:").await?;
//! # let builder = Fleet::builder("poll:events").shards(source::list(["tenant-1", "tenant-2"]));
//! # let fleet = builder.join(store).await?;
//! let mut running = std::collections::HashMap::new();
//! while running.len() < 2 {
//!     match fleet.next().await {
//!         Some(FleetEvent::Assigned { shard, work, .. }) => {
//!             // Start the work, and pass work.token() along with every effect.
//!             running.insert(shard, work);
//!         }
//!         Some(FleetEvent::Revoked { shard, .. }) => {
//!             // Stop the work, then drop the handle: the shard goes to its next owner.
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
//! - **Only the lease grants the right.** Each shard is a lease, `FLEET:lease:SHARD`, with a token and a deadline like any
//!   other. Each member [plans](crate::placement) for itself which member *should* own which shard; the store decides which
//!   member *may*.
//! - **Stop, then release.** When a shard moves, its owner first gets [`FleetEvent::Revoked`], and [`ShardWork::revoked`]
//!   returns. The work has ended when every [`ShardWork`] of the shard is dropped. Then the member releases the lease and names
//!   the next owner, which is notified and acquires it.
//! - **No idle owner.** When the application drops every [`ShardWork`] of a shard that it owns, by a return, a cancellation or a
//!   panic, the member releases the shard, reports the reason, and the shard is claimed again after half a second. Work that the
//!   application has not taken yet keeps its shard.
//! - **One consumer, many observers.** [`Fleet::run`] or [`Fleet::next`] takes the work. [`Fleet::events`] gives each observer
//!   its own stream of notices.
//! - **Fail closed.** A member that cannot renew stops all its work before its deadlines.
//! - **Membership is a lease.** A member holds `FLEET:node:MEMBER` as soon as it has read its list of shards. It announces a
//!   digest of that list in the checkpoint of this lease: a shard is planned only for members that list it. A second member
//!   with the same id claims nothing while the first holds the membership lease.
//! - **Two threads.** The driver's thread renews, as in every election; the coordinator's thread reads the source and plans.

mod builder;
mod coordinator;
mod event;
mod list_digest;
mod member;
mod notice;
pub mod overrides;
pub mod planner;
mod removed_shards;
mod run;
mod shard;
mod shard_work;
mod snapshot;
pub mod source;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::Stream;
use tokio::sync::{Mutex, mpsc};

pub use builder::FleetBuilder;
pub use event::{FleetEvent, MembershipTerm};
pub use list_digest::ListDigest;
pub use notice::FleetNotice;
pub use planner::{Coverage, Reason, ShardNumber};
pub use shard::{Shard, fleet_name, leases_prefix, member_of, node, nodes_prefix};
pub use shard_work::ShardWork;
pub use snapshot::{OwnedShard, Snapshot, observe_fleet};

use crate::clock::Moment;
use crate::driver::{DriverCommand, RenewalStats};
use crate::election::Pulse;
use crate::error::{Error, Kind, Result};
use crate::lease::{CandidateId, Name, Token};
use crate::placement;
use event::QueuedEvent;
use member::{MemberContext, MemberInput, locked};

/// One member of a fleet.
///
/// Dropping it without [`Fleet::leave`] leaves its leases to their TTL: the member sends no more requests for them.
pub struct Fleet {
    shared: Arc<MemberContext>,
    events: Mutex<mpsc::UnboundedReceiver<QueuedEvent>>,
}

/// A member of the fleet, as observed in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The id of the member.
    pub id: CandidateId,
    /// The note of its membership lease: usually its URL.
    pub note: String,
    /// Whether an operator has drained it: then it should own no shard.
    pub drained: bool,
    /// The digest of its list of shards, as it has announced it.
    pub list: ListDigest,
}

impl Fleet {
    /// Configures a member of the fleet `name`: up to 90 bytes of `A–Z a–z 0–9 . _ : / -`.
    pub fn builder(name: &str) -> FleetBuilder {
        FleetBuilder::new(name)
    }

    fn new(shared: Arc<MemberContext>, events: mpsc::UnboundedReceiver<QueuedEvent>) -> Self {
        Fleet { shared, events: Mutex::new(events) }
    }

    /// Returns when the store has answered for the first time. Waits for a store that is down.
    ///
    /// # Errors
    /// Denied, Corrupt: the store has answered with an error that an operator must fix.
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

    /// Waits for the next event; `None` when the fleet has ended. Each event is delivered once, so only one task should call
    /// this, and none beside [`Fleet::run`].
    ///
    /// Work in a term that ended before this call is not delivered: neither its assignment nor its revocation.
    ///
    /// # Cancellation
    /// Cancel safe: dropping this future loses no event.
    pub async fn next(&self) -> Option<FleetEvent> {
        let mut events = self.events.lock().await;
        let mut over = self.shared.over.subscribe();
        loop {
            let event = tokio::select! {
                biased;
                event = events.recv() => event?,
                _ = over.wait_for(|over| *over) => events.try_recv().ok()?,
            };
            if let Some(event) = event.deliver() {
                return Some(event);
            }
        }
    }

    /// All notices about this member from now on, for an observer. Each call returns an independent stream, which ends after the
    /// last notice when the fleet ends.
    ///
    /// Observers do not replace the consumer: shards that this member owns get no work before [`Fleet::run`] or [`Fleet::next`]
    /// is called. An observer that is too slow receives [`FleetNotice::Missed`].
    pub fn events(&self) -> impl Stream<Item = FleetNotice> + Send + Unpin + 'static {
        self.shared.notices.subscribe()
    }

    /// The fleet's name.
    pub fn name(&self) -> &Name {
        &self.shared.name
    }

    /// The id of this member.
    pub fn member_id(&self) -> &CandidateId {
        &self.shared.me
    }

    /// Whether this member holds its membership lease, computed from the clock now.
    pub fn is_member(&self) -> bool {
        self.shared.is_member()
    }

    /// The token of the membership lease and how long it stays valid; `None` while this member does not hold it.
    pub fn membership(&self) -> Option<(Token, Duration)> {
        self.shared.membership()
    }

    /// The shards that this member owns, with their tokens, computed from the clock now.
    pub fn owned(&self) -> Vec<(Shard, Token)> {
        self.shared.owned()
    }

    /// Whether this member owns a shard, computed from the clock now.
    pub fn is_owned(&self, shard: &str) -> bool {
        self.shared.is_owned(shard)
    }

    /// The members of the fleet, as last observed, in the order of their ids.
    pub fn members(&self) -> Vec<Member> {
        locked(&self.shared.view).members.clone()
    }

    /// The shards of the source, as last read, in order.
    pub fn shards(&self) -> Arc<source::Shards> {
        locked(&self.shared.view).shards.clone()
    }

    /// The member with the highest preference for this shard: its owner if fair shares did not matter.
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

    /// How many shards have an owner. The coordinator updates this about once a second.
    pub fn coverage(&self) -> Coverage {
        locked(&self.shared.view).coverage
    }

    /// How long renewals took, and how often they failed, since the start.
    pub fn renewals(&self) -> RenewalStats {
        self.shared.renewals()
    }

    /// Whether the driver and the work of this member are on time: for a liveness probe that restarts a stuck process.
    pub fn pulse(&self) -> Pulse {
        let (late, overrun) = self.shared.late_and_overrun();
        Pulse { late, overrun, ended: *self.shared.over.borrow(), ..Pulse::default() }
    }

    /// Whether the store is reachable: `None` before its first answer, the last error while it does not answer.
    pub fn reachable(&self) -> Option<Result<()>> {
        self.shared.reachable.borrow().clone()
    }

    /// The error of the source of shards, while it cannot be read. A member does not join before its first successful read.
    pub fn source_error(&self) -> Option<Error> {
        locked(&self.shared.view).source_error.clone()
    }

    /// Whether another running process is a member with the same id. This member waits until that membership lease is free.
    pub fn has_namesake(&self) -> bool {
        locked(&self.shared.view).namesake
    }

    /// Whether this member is healthy, according to its [health check](FleetBuilder::health); always, if it has none.
    pub fn is_healthy(&self) -> bool {
        self.shared.healthy.load(Ordering::Relaxed)
    }

    /// Whether the fleet has ended: this member owns and renews nothing any more.
    pub fn has_ended(&self) -> bool {
        *self.shared.over.borrow()
    }

    /// For [`supervise`](crate::supervise): the new deadlines. Returns `None` after the first call.
    pub(crate) fn subscribe_to_extensions(&self) -> Option<mpsc::UnboundedReceiver<(u64, Moment)>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.shared.extensions.set(sender).ok()?;
        Some(receiver)
    }

    /// Leaves the fleet. This member first releases its membership lease, so the other members observe that it leaves; then it
    /// revokes its shards, waits until their work has ended, and releases each lease, naming the next owner.
    ///
    /// Waits for the work: every [`ShardWork`] must be dropped. [`Fleet::run`] drops them; beside [`Fleet::next`] keep calling it
    /// meanwhile, or drop them before.
    pub async fn leave(&self) {
        self.shared.notify(MemberInput::Leave);
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
