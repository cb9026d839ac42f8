//! The events of a fleet for the application, and the handle for the work on a shard.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Reason, Shard};
use crate::clock::Moment;
use crate::driver::Term;
use crate::election::Saved;
use crate::error::{Error, Result};
use crate::lease::{CandidateId, Checkpoint, Hold, Token};

/// The term of a membership lease. What it holds is for a [supervisor](crate::supervise).
#[derive(Debug)]
pub struct MembershipTerm {
    pub(crate) hold: Hold,
    pub(crate) deadline: Moment,
}

/// An event of one member of the fleet.
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
        /// Keep this handle while the work runs. When it is dropped after [`FleetEvent::Revoked`], the lease is released.
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

/// The right to work on one shard, in one term.
///
/// Clone it for every task that works on the shard: the work counts as running as long as one of the clones exists.
pub struct ShardWork {
    term: Arc<Term>,
    number: u64,
}

impl ShardWork {
    /// `None` if the term is over already.
    pub(super) fn begin(term: &Arc<Term>, number: u64) -> Option<ShardWork> {
        let entered = term.enter();
        entered.then(|| ShardWork { term: term.clone(), number })
    }

    /// The number of this term within this process. A number is never used for two terms.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The token of the term, for resources that compare it.
    pub fn token(&self) -> Token {
        self.term.hold.token
    }

    /// For [`supervise`](crate::supervise).
    pub(crate) fn term(&self) -> &Term {
        &self.term
    }

    /// Whether this member certainly still owns the shard, computed from the clock now.
    pub fn is_valid(&self) -> bool {
        self.term.is_valid()
    }

    /// How long this member certainly still owns the shard.
    pub fn valid_for(&self) -> Duration {
        self.term.valid_for()
    }

    /// Saves up to 4 KiB for the next owner, written under the token of this term. Await one save before you start the next.
    ///
    /// # Errors
    /// Unavailable: the checkpoint may or may not have been saved; save again.
    pub async fn save(&self, checkpoint: impl AsRef<[u8]>) -> Result<Saved> {
        let checkpoint = Checkpoint::new(checkpoint)?;
        self.term.save(checkpoint, ()).await
    }
}

impl Clone for ShardWork {
    fn clone(&self) -> Self {
        self.term.add_handle();
        ShardWork { term: self.term.clone(), number: self.number }
    }
}

impl Drop for ShardWork {
    fn drop(&mut self) {
        self.term.exit();
    }
}

impl fmt::Debug for ShardWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("name", &self.term.hold.name)
            .field("token", &self.token())
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}
