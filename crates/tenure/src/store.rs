//! Where leases live: the contract every store keeps, and [`open`], which chooses one by URL.
//!
//! A store is small and has no policy: no retries, no timers, no events. The election is written once,
//! above it. [`memory`] is the reference; its meaning is the meaning.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use crate::error::Result;
use crate::lease::{
    Answer, CandidateId, Checkpoint, Claim, Grant, Hold, Lease, Name, Release, Token,
};

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(any(feature = "file", feature = "redis"))]
mod ephemeral;
#[cfg(feature = "file")]
pub mod file;
mod leads_from;
pub mod memory;
mod open;
#[cfg(feature = "redis")]
pub mod redis;

pub use open::{open, open_existing, shown};

/// Where leases live.
///
/// # Contract
/// Every verb acts on each item atomically and by itself: the outer error means that nothing is known about
/// any of them, an inner one concerns that item alone. Answers come in the order of the questions.
///
/// - **acquire** grants a lease that is free, released or expired, with a token greater than any this name ever had.
///   To the nonce that already holds it, alive, it gives the same answer again, extended: a request whose reply was
///   lost is safe to repeat. Everybody else is told who has it and for how long, on the store's own clock.
/// - **renew** extends by `ttl` from now, only while candidate, nonce and token match and the lease has not expired.
///   An expired term never comes back.
/// - **release** frees at once, only what is ours; what is not is left alone, and that is no error. The token survives.
/// - **save** writes the checkpoint, only under the current, live hold and with a number greater than the last of
///   this term; the same number again is Held and changes nothing.
/// - **observe** and **watch** are for looking. A watch is a hint: it may repeat itself, come late, or leave things
///   out, but after anything has changed some [`Change`] comes, and after the last change one that is later than it.
/// - Whatever is found under a name that is not a record of ours is [`Corrupt`](crate::Kind::Corrupt): never granted,
///   never changed.
///
/// # Cancellation
/// Dropping a future of a store may leave its request done or not done, exactly like a lost reply.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// What this store can and cannot do.
    fn limits(&self) -> Limits;

    /// The store's URL, without passwords.
    fn url(&self) -> String;

    /// The same store over connections of its own, so that renewals share theirs with nobody.
    fn detached(&self) -> Arc<dyn Store>;

    /// Where the death of this process frees what ends with it: the file whose lock says that it lives, once such a term was
    /// claimed. Let whatever does the work inherit it, and the lease is free early only when that is gone too.
    fn liveness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Claims leases.
    async fn acquire(&self, claims: &[Claim]) -> Result<Vec<Result<Answer<Grant>>>>;

    /// Extends what is held, each by `ttl`.
    async fn renew(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Answer>>>;

    /// Gives leases back.
    async fn release(&self, releases: &[Release]) -> Result<Vec<Result<()>>>;

    /// Leaves a checkpoint under a hold. `number` grows with every save of one term.
    async fn save(&self, hold: &Hold, number: u64, checkpoint: &Checkpoint) -> Result<Answer>;

    /// Break-glass: the token is raised, so that renewals are refused from now on.
    async fn revoke(&self, name: &Name, when: Revoke) -> Result<Lease>;

    /// Reads now. Names that were never used are left out.
    async fn observe(&self, scope: &Scope) -> Result<Vec<Result<Lease>>>;

    /// Tells of changes, for as long as the stream is polled. The first item comes when the store listens.
    fn watch(&self, scope: &Scope) -> BoxStream<'static, Change>;

    /// What the store is, how fast, and what it promises: for `tenure doctor`.
    async fn examine(&self) -> Result<Report>;
}

/// What is read or watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// These names.
    Names(Vec<Name>),
    /// Every name that begins like this; the empty prefix is everything.
    Prefix(String),
}

impl Scope {
    /// One name.
    pub fn name(name: &Name) -> Self {
        Scope::Names(vec![name.clone()])
    }

    /// Whether `name` is in it.
    pub fn contains(&self, name: &Name) -> bool {
        match self {
            Scope::Names(names) => names.contains(name),
            Scope::Prefix(prefix) => name.as_str().starts_with(prefix),
        }
    }
}

/// A hint that something happened; the truth is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The watch is listening from now on, or has just missed something: look yourself.
    Look,
    /// This lease was granted.
    Granted {
        /// Which.
        name: Name,
        /// In which term.
        token: Token,
        /// To whom; `None` where the store does not say.
        holder: Option<CandidateId>,
    },
    /// This lease became free.
    Freed {
        /// Which.
        name: Name,
        /// Whom the last holder asked to come next.
        next: Option<CandidateId>,
    },
}

impl Change {
    /// Whether a watcher of `scope` should be told.
    pub fn concerns(&self, scope: &Scope) -> bool {
        match self {
            Change::Look => true,
            Change::Granted { name, .. } | Change::Freed { name, .. } => scope.contains(name),
        }
    }
}

/// When a revoked lease can be acquired again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoke {
    /// When the time the holder had left has run out: never two leaders.
    InTime,
    /// At once: the holder may go on until it notices, so two leaders are possible.
    Now,
}

/// What the store promises about two leaders. `docs/STORES.md` says what each rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Linearizable and durable.
    A,
    /// One durable node.
    B,
    /// May grant twice in a failover.
    C,
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What a store can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The shortest TTL it takes.
    pub min_ttl: Duration,
    /// The longest TTL it takes.
    pub max_ttl: Duration,
    /// What it promises, as far as it is known by now; never better than what [`Store::examine`] finds.
    pub grade: Grade,
    /// Other machines see it too.
    pub shared: bool,
}

impl Limits {
    /// The limits of a store that takes TTLs from 100 ms to a day and is seen by other machines.
    pub fn new(grade: Grade) -> Self {
        Limits {
            min_ttl: Duration::from_millis(100),
            max_ttl: Duration::from_secs(86_400),
            grade,
            shared: true,
        }
    }

    /// The same for a store that only this machine sees.
    #[must_use]
    pub fn this_machine_only(mut self) -> Self {
        self.shared = false;
        self
    }
}

/// What [`Store::examine`] found.
#[derive(Clone, Debug)]
pub struct Report {
    /// What it is, with its version: `Redis 7.0.15`, `directory on ext4`.
    pub what: String,
    /// What it promises as it is set up now.
    pub grade: Grade,
    /// How long one round trip took.
    pub round_trip: Duration,
    /// What was looked at.
    pub checks: Vec<Check>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What, in a word or two: `eviction`.
    pub what: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was found, and what to do about it where something should be done.
    pub found: String,
}

/// How a [`Check`] came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, with a promise less.
    Weak,
    /// Does not work.
    Bad,
}
