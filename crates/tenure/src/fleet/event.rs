//! The events of a member for the application, and how they wait for it.

use std::sync::Arc;

use super::notice::FleetNotice;
use super::shard_work::{MemberTerm, ShardWork};
use super::{Reason, Shard};
use crate::clock::Moment;
use crate::error::Error;
use crate::lease::{CandidateId, Checkpoint, Hold, Token};

/// The term of a membership lease. What it holds is for a [supervisor](crate::supervise).
#[derive(Debug)]
pub struct MembershipTerm {
    pub(crate) hold: Hold,
    pub(crate) deadline: Moment,
}

/// An event of one member of the fleet, for the one consumer that does the work: see [`Fleet::next`](crate::Fleet::next).
///
/// Observers receive a [`FleetNotice`] instead.
#[derive(Debug)]
#[non_exhaustive]
pub enum FleetEvent {
    /// This member has acquired its membership lease: it is a member from now on.
    Joined {
        /// The token of the term.
        token: Token,
        /// The number of this term within this process, as [`ShardWork::number`].
        number: u64,
        /// For a supervisor: see [`supervise::membership`](crate::supervise::membership).
        term: MembershipTerm,
    },
    /// This member has lost its membership lease; its shards are being revoked.
    Left {
        /// The number of the term that ended, as in [`FleetEvent::Joined`].
        number: u64,
        /// The reason of the loss.
        why: Reason,
    },
    /// This member owns a shard: start its work.
    Assigned {
        /// The shard to work on.
        shard: Shard,
        /// The token of the term: pass it along with every effect.
        token: Token,
        /// The checkpoint that the last owner has saved.
        checkpoint: Option<Checkpoint>,
        /// Keep this handle while the work runs. When it is dropped after [`FleetEvent::Revoked`], the lease is released. When it
        /// is dropped before, this member releases the shard for [`Reason::Dropped`].
        work: ShardWork,
    },
    /// The work of a shard must end. The fleet releases the lease only after all its [`ShardWork`] handles are dropped.
    Revoked {
        /// The shard whose work must end.
        shard: Shard,
        /// The token of the term that ends.
        token: Token,
        /// The number of the term, as [`ShardWork::number`].
        number: u64,
        /// The reason of the revocation.
        why: Reason,
    },
    /// The store has confirmed the release of the lease, or this member does not hold it any more.
    Released {
        /// The shard that was released.
        shard: Shard,
        /// The token of the term that ended.
        token: Token,
        /// The number of the term, as [`ShardWork::number`].
        number: u64,
        /// Why the term has ended.
        why: Reason,
    },
    /// The store does not answer. Work continues until its deadline.
    StoreUnreachable(Error),
    /// The store answers again.
    StoreBack,
    /// A message about the source of shards, for example that it cannot be read and the last good list is kept.
    Source(String),
    /// The members list different shards: the number of shards for each member that has announced its list. Empty: the lists
    /// are equal again.
    Lists(Vec<(CandidateId, usize)>),
    /// The number of shards that have had no owner for longer than a TTL, and some of these shards.
    Unowned(usize, Vec<Shard>),
}

/// An event that waits for the application.
pub(super) enum QueuedEvent {
    /// This member owns the shard. The application gets the handle with the event.
    Assigned(Shard, Arc<MemberTerm>),
    /// The work in this term must end, or its lease is released.
    Ended(Arc<MemberTerm>, FleetEvent),
    /// Any other event.
    General(FleetEvent),
}

impl QueuedEvent {
    /// The event for the application. `None` if it concerns a term that ended before the application had taken its work: such a
    /// term needs no work to stop.
    pub(super) fn deliver(self) -> Option<FleetEvent> {
        match self {
            QueuedEvent::Assigned(shard, term) => {
                let work = term.take(&shard)?;
                let checkpoint = work.checkpoint().cloned();
                Some(FleetEvent::Assigned { shard, token: work.token(), checkpoint, work })
            }
            QueuedEvent::Ended(term, event) => term.was_taken().then_some(event),
            QueuedEvent::General(event) => Some(event),
        }
    }

    /// The notice for observers.
    pub(super) fn notice(&self) -> FleetNotice {
        match self {
            QueuedEvent::Assigned(shard, term) => {
                FleetNotice::Assigned { shard: shard.clone(), token: term.term.hold.token }
            }
            QueuedEvent::Ended(_, event) | QueuedEvent::General(event) => event.into(),
        }
    }
}

impl From<FleetEvent> for QueuedEvent {
    fn from(event: FleetEvent) -> QueuedEvent {
        QueuedEvent::General(event)
    }
}
