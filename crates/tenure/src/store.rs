//! The store contract ([`Store`]) and [`open`], which selects a store by URL.
//!
//! A store is small and holds no policy: no retries, no timers, no events. The election is written once, above the store.
//! [`memory`] is the reference implementation: where this contract leaves a question open, the behaviour of [`memory`] decides.

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

pub use open::{open, open_existing, redact_url};

/// A service that keeps leases.
///
/// # Contract
/// Every operation acts on each item atomically and independently. An outer error means that nothing is known about any item;
/// an inner error concerns that item only. Answers are in the order of the requests.
///
/// - **acquire** grants a lease that is free, released or expired, with a token greater than any token this name ever had. If
///   the lease is live and held by the same nonce, it returns the same answer again and extends the lease, so a request whose
///   reply was lost is safe to repeat. Any other caller gets `Taken`, with the holder and its remaining time on the store's own
///   clock.
/// - **renew** extends the lease by `ttl` from now, only while candidate, nonce and token match and the lease has not expired.
///   An expired term never becomes valid again.
/// - **release** frees the lease at once, but only a lease that the caller holds. Any other lease stays unchanged, without an
///   error. The token survives.
/// - **save** writes the checkpoint, only under the current, live hold and with a number greater than the last of this term. A
///   repeat of the same number is `Held` and changes nothing.
/// - **observe** and **watch** only read. A watch is a hint: it may repeat changes, deliver them late, or omit some. But after
///   every change the stream yields some [`Change`], and after the last change it yields one that is later than that change.
/// - Anything under a name that is not a valid record is [`Corrupt`](crate::Kind::Corrupt): the store never grants it and never
///   changes it.
///
/// # Cancellation
/// Dropping a future of a store leaves its request either done or not done, exactly like a lost reply.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// The limits of this store: TTL range, grade and visibility.
    fn limits(&self) -> Limits;

    /// The store's URL, without passwords.
    fn url(&self) -> String;

    /// The same store over its own connections, so that renewals share a connection with no other caller.
    fn detached(&self) -> Arc<dyn Store>;

    /// The file whose lock shows that this process is alive, in a store that frees a lease when its process dies. `None` until
    /// such a term was claimed. Let every process that does the work inherit this file: the store then frees the lease early
    /// only when those processes have ended too.
    fn liveness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Claims leases.
    async fn acquire(&self, claims: &[Claim]) -> Result<Vec<Result<Answer<Grant>>>>;

    /// Extends held leases, each by `ttl`.
    async fn renew(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Answer>>>;

    /// Releases leases.
    async fn release(&self, releases: &[Release]) -> Result<Vec<Result<()>>>;

    /// Saves a checkpoint under a hold. `number` increases with every save of one term.
    async fn save(&self, hold: &Hold, number: u64, checkpoint: &Checkpoint) -> Result<Answer>;

    /// Break-glass: raises the token, so that renewals are refused from now on.
    async fn revoke(&self, name: &Name, when: Revoke) -> Result<Lease>;

    /// Reads the current leases. Names that were never used are omitted.
    async fn observe(&self, scope: &Scope) -> Result<Vec<Result<Lease>>>;

    /// Subscribes to changes, for as long as the stream is polled. The first item arrives when the subscription is active.
    fn watch(&self, scope: &Scope) -> BoxStream<'static, Change>;

    /// Inspects the store for `tenure doctor`: what it is, how fast it is, and what it promises.
    async fn examine(&self) -> Result<Report>;
}

/// The leases that are read or watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// These names.
    Names(Vec<Name>),
    /// Every name that begins with this prefix; the empty prefix covers all names.
    Prefix(String),
}

impl Scope {
    /// One name.
    pub fn name(name: &Name) -> Self {
        Scope::Names(vec![name.clone()])
    }

    /// Whether the scope contains `name`.
    pub fn contains(&self, name: &Name) -> bool {
        match self {
            Scope::Names(names) => names.contains(name),
            Scope::Prefix(prefix) => name.as_str().starts_with(prefix),
        }
    }
}

/// A hint that something changed. Only the store itself has the current state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The subscription is active from now on, or may have missed a change: observe the store.
    Look,
    /// This lease was granted.
    Granted {
        /// The lease that was granted.
        name: Name,
        /// The token of the new term.
        token: Token,
        /// The candidate that holds it; `None` where the store does not report it.
        holder: Option<CandidateId>,
    },
    /// This lease became free.
    Freed {
        /// The lease that became free.
        name: Name,
        /// The successor that the last holder prefers.
        next: Option<CandidateId>,
    },
}

impl Change {
    /// Whether a watcher of `scope` should receive this change.
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
    /// When the holder's remaining time has passed: there are never two leaders.
    InTime,
    /// At once: the holder may continue until it notices, so two leaders are possible.
    Now,
}

/// What the store promises about two leaders. `docs/STORES.md` says what each grade depends on.
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

/// The limits of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The shortest TTL the store accepts.
    pub min_ttl: Duration,
    /// The longest TTL the store accepts.
    pub max_ttl: Duration,
    /// The grade as far as it is known now; never better than what [`Store::examine`] finds.
    pub grade: Grade,
    /// Whether candidates on other machines can use the store too.
    pub shared: bool,
}

impl Limits {
    /// The limits of a store that accepts TTLs from 100 ms to one day and is visible to other machines.
    pub fn new(grade: Grade) -> Self {
        Limits {
            min_ttl: Duration::from_millis(100),
            max_ttl: Duration::from_secs(86_400),
            grade,
            shared: true,
        }
    }

    /// The same limits for a store that only this machine can use.
    #[must_use]
    pub fn this_machine_only(mut self) -> Self {
        self.shared = false;
        self
    }
}

/// The result of [`Store::examine`].
#[derive(Clone, Debug)]
pub struct Report {
    /// The store and its version: `Redis 7.0.15`, `directory on ext4`.
    pub what: String,
    /// The grade of the store with its current configuration.
    pub grade: Grade,
    /// The duration of one round trip.
    pub round_trip: Duration,
    /// The individual checks.
    pub checks: Vec<Check>,
}

/// One property of the store that [`Store::examine`] checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The property, in one or two words: `eviction`.
    pub what: &'static str,
    /// The result of the check.
    pub verdict: Verdict,
    /// What was found, and what the operator should do about it, if anything.
    pub found: String,
}

/// The result of a [`Check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, but with a weaker promise.
    Weak,
    /// Does not work.
    Bad,
}
