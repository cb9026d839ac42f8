//! What the application is told, and the handle it works with.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Reason, Shard};
use crate::clock::Moment;
use crate::driver::{Saved, Term};
use crate::error::{Error, Result};
use crate::lease::{CandidateId, Checkpoint, Hold, Token};

/// Something happened in the fleet.
#[derive(Debug)]
#[non_exhaustive]
pub enum FleetEvent {
    /// This member holds the lease on itself, and takes part from now on.
    Joined {
        /// Its proof: for a process that watches over this one, and gives it back when this one has died.
        hold: Hold,
        /// As [`Work::number`].
        number: u64,
        /// Until when, unless it is extended.
        deadline: Moment,
    },
    /// It does not any more; what it owns is being taken from it.
    Left {
        /// As in [`Event::Joined`].
        number: u64,
        /// Why.
        why: Reason,
    },
    /// This member owns a shard now: begin its work.
    Assigned {
        /// Which.
        shard: Shard,
        /// The number of the term; give it along with every effect.
        token: Token,
        /// What the last owner left.
        checkpoint: Option<Checkpoint>,
        /// Keep it while the work goes on. When it is dropped after [`Event::Revoked`], the lease is released.
        work: ShardWork,
    },
    /// The work of a shard has to end. The fleet waits until its [`Work`] is dropped before it gives the shard away.
    Revoked {
        /// Which.
        shard: Shard,
        /// The term that ends.
        token: Token,
        /// As [`Work::number`].
        number: u64,
        /// Why.
        why: Reason,
    },
    /// The store has confirmed that the lease was given back, or it is no longer ours.
    Released {
        /// Which.
        shard: Shard,
        /// The term that ended.
        token: Token,
        /// As [`Work::number`].
        number: u64,
        /// Why.
        why: Reason,
    },
    /// The store gives no answer. Work goes on until its deadline.
    StoreUnreachable(Error),
    /// The store answers again.
    StoreBack,
    /// The source of shards cannot be read, so the last good list stays; or it has something to say.
    Source(String),
    /// The members list different shards: how many each lists that has announced its list. Empty: they list the same again.
    Lists(Vec<(CandidateId, usize)>),
    /// So many shards have had no owner for longer than a TTL; some of them.
    Unowned(usize, Vec<Shard>),
}

/// The right to work on one shard, in one term.
///
/// Clone it for every task that works on the shard: as long as one of the clones is there, the work counts as going on.
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

    /// The number of this term within this process: never used for two.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The number of the term, for whoever compares it.
    pub fn token(&self) -> Token {
        self.term.hold.token
    }

    /// The proof of this term, for a process that watches over this one.
    pub fn hold(&self) -> &Hold {
        &self.term.hold
    }

    /// When this member stops believing, if nothing extends it.
    pub fn deadline(&self) -> Moment {
        self.term.deadline()
    }

    /// Whether the shard is certainly still ours, computed now.
    pub fn is_valid(&self) -> bool {
        self.term.is_valid()
    }

    /// How long the shard is certainly still ours.
    pub fn valid_for(&self) -> Duration {
        self.term.valid_for()
    }

    /// Leaves up to 4 KiB for the next owner, written under the token of this term. Await one before you begin the next.
    ///
    /// # Errors
    /// Unavailable: it may or may not have been kept; save again.
    pub async fn save(&self, checkpoint: impl AsRef<[u8]>) -> Result<Saved> {
        let checkpoint = Checkpoint::new(checkpoint)?;
        self.term.save(&checkpoint).await
    }
}

impl Clone for ShardWork {
    fn clone(&self) -> Self {
        self.term.enter_beside();
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
