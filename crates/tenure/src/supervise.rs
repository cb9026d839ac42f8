//! What a supervisor outside the library needs: a program that runs the work in another process, stops that process before the
//! deadline, and releases the lease when the process that led has died. The command `tenure` is such a program.
//!
//! Work inside the process needs none of this: [`Leadership`] and [`ShardWork`] say whether it may continue, and the library
//! releases the lease when the work has ended.
//!
//! - [`SupervisedTerm`]: the [`Hold`] of a term, under which another process releases the lease, and its deadline.
//! - [`membership`]: the same for the membership of a fleet's member.
//! - [`extended`] and [`Extensions`]: the new deadlines, to be forwarded as renewals confirm them.
//! - [`store_url`]: the URL with which the other process opens the same store.
//! - [`Store::liveness`]: a file that the processes that do the work must inherit.
//! - [`run_blocking`] and [`spawn_runtime`]: threads for a process that must not panic when the kernel refuses a new thread.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
//! use tenure::supervise::{self, SupervisedTerm as _};
//!
//! let store = tenure::open("memory:").await?;
//! let election = tenure::Election::builder("supervise:example").start(store).await?;
//! let leadership = election.leadership().await.expect("it was not stopped");
//!
//! // Pass these to the process that does the work, and a new deadline whenever there is one.
//! let (hold, known) = (leadership.hold(), leadership.deadline());
//! assert_eq!(hold.token, leadership.token());
//! tokio::select! {
//!     deadline = supervise::extended(&leadership, known) => assert_ne!(deadline, known),
//!     reason = leadership.lost() => println!("stop the process: {reason:?}"),
//! }
//! # Ok(()) }
//! ```

use std::time::Duration;

use tokio::sync::mpsc;

pub use crate::blocking::{run as run_blocking, spawn_runtime};
use crate::clock::Moment;
use crate::election::Leadership;
use crate::fleet::{Fleet, MembershipTerm, ShardWork};
use crate::lease::Hold;
use crate::store::{Store, url_of_existing};

/// A term of this process: the leadership of an election, or the ownership of a shard.
pub trait SupervisedTerm {
    /// The proof of this term, which a store compares before it changes anything. For a process that monitors this one and
    /// releases the lease when this process has died. Work needs only the token.
    fn hold(&self) -> &Hold;

    /// The deadline of this term, unless a renewal extends it: the work must have stopped by then.
    fn deadline(&self) -> Moment;

    /// The time to the deadline, computed now; zero when the term is over.
    fn valid_for(&self) -> Duration;
}

impl SupervisedTerm for Leadership {
    fn hold(&self) -> &Hold {
        &self.term().hold
    }

    fn deadline(&self) -> Moment {
        self.term().deadline()
    }

    fn valid_for(&self) -> Duration {
        Leadership::valid_for(self)
    }
}

impl SupervisedTerm for ShardWork {
    fn hold(&self) -> &Hold {
        &self.term().hold
    }

    fn deadline(&self) -> Moment {
        self.term().deadline()
    }

    fn valid_for(&self) -> Duration {
        ShardWork::valid_for(self)
    }
}

/// The hold of a membership, under which another process releases the lease when this process has died, and its deadline, unless
/// a renewal extends it.
pub fn membership(term: &MembershipTerm) -> (&Hold, Moment) {
    (&term.hold, term.deadline)
}

/// Returns when the deadline differs from `known`: later after a renewal, [`Moment::PAST`] when the store has refused a renewal.
pub async fn extended(leadership: &Leadership, known: Moment) -> Moment {
    let mut extended = leadership.subscribe_to_extensions();
    loop {
        extended.mark_unchanged();
        let deadline = leadership.deadline();
        if deadline != known {
            return deadline;
        }
        if extended.changed().await.is_err() {
            // The sender is part of the term, which this handle keeps alive.
            return deadline;
        }
    }
}

/// The new deadlines of all terms of one member of a fleet, as renewals confirm them.
#[derive(Debug)]
pub struct Extensions(mpsc::UnboundedReceiver<(u64, Moment)>);

impl Extensions {
    /// Subscribes to all new deadlines from now on. Returns `None` after the first call for this member.
    pub fn subscribe(fleet: &Fleet) -> Option<Extensions> {
        fleet.subscribe_to_extensions().map(Extensions)
    }

    /// Waits for the next extensions: [`ShardWork::number`] and the new deadline, or [`Moment::PAST`] if the store has refused
    /// the renewal. Empty when the fleet has ended.
    pub async fn next(&mut self) -> Vec<(u64, Moment)> {
        let mut next = Vec::new();
        self.0.recv_many(&mut next, 1_000).await;
        next
    }
}

/// The URL with which another process of this machine opens `store`, which was opened from `url`. It contains the password of
/// `url`. For a directory it names the very directory that is open, and opening it never creates a directory.
pub fn store_url(url: &str, store: &dyn Store) -> String {
    url_of_existing(url, store)
}
