//! The store contract ([`Store`]) and [`open`], which selects a store by URL.
//!
//! Code outside this module never tests the scheme of a URL and never downcasts a store's error. What it needs to know is in
//! [`Limits`], in [`Error::blocked_by`], and, before a store is open, in [`visibility_of`].
//!
//! A store is small and holds no policy: no retries, no timers, no events. The election is written once, above the store.
//! [`memory`] is the reference implementation: where this contract leaves a question open, the behaviour of [`memory`] decides.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::lease::{
    Answer, CandidateId, Checkpoint, Claim, Grant, Hold, Lease, Name, Release, Token,
};

mod batches;
pub mod cas;
pub mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
mod endpoint;
mod ephemeral;
#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
mod leads_from;
pub mod memory;
mod open;
pub mod poll;
pub mod record;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(all(feature = "redis", feature = "tls"))]
mod tls;
#[cfg(all(feature = "redis", not(feature = "tls")))]
mod tls_disabled;

/// The macro with which [`Store`], and the traits of the modules below, are implemented.
pub use async_trait::async_trait;
/// The type of a [watch](Store::watch).
pub use futures_util::stream::BoxStream;

#[cfg(all(feature = "redis", not(feature = "tls")))]
use tls_disabled as tls;

#[cfg(feature = "redis")]
pub use endpoint::Credentials;
pub use endpoint::redact_url;
pub(crate) use open::url_of_existing;
pub use open::{DEFAULT_URL, file_url, open, open_existing, visibility_of};
/// The crate `rustls`, in the version whose `ClientConfig` the builders of stores accept.
#[cfg(feature = "tls")]
#[doc(no_inline)]
pub use tokio_rustls::rustls;

/// A service that keeps leases.
///
/// # Contract
/// Every operation acts on each item atomically and independently. An outer error means that nothing is known about any item;
/// an inner error concerns that item only. Acquire, renew and release return one answer for each request, in their order.
///
/// A call may have any number of items: a store whose service takes fewer at once sends several requests. But the caller gets
/// all answers together, so a caller that must not wait for a slow request sends at most [`Limits::max_batch`] items per call.
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
    /// The limits of this store: TTL range, grade, visibility, largest batch, and how it notifies watchers.
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

/// The operations of a [`Store`] for a single lease. Every store has them.
///
/// There is one error instead of an outer and an inner one. A store that returns more or fewer answers than it must is
/// [`Unavailable`](crate::Kind::Unavailable): nothing is known about the lease.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use std::time::Duration;
/// use tenure::store::StoreExt as _;
/// use tenure::{CandidateId, Claim, Name, Nonce};
///
/// let store = tenure::open("memory:").await?;
/// let name = Name::new("store-ext:example")?;
/// let ttl = Duration::from_secs(4);
/// let claim = Claim::new(name.clone(), CandidateId::new("a")?, Nonce::random(), ttl);
///
/// let grant = store.acquire_one(&claim).await?.held().expect("it is free");
/// assert!(store.renew_one(&grant.hold, ttl).await?.is_held());
/// assert!(store.observe_one(&name).await?.is_some_and(|lease| lease.holder.is_some()));
/// store.release_one(grant.hold).await?;
/// # Ok(()) }
/// ```
pub trait StoreExt: Store {
    /// Claims one lease.
    fn acquire_one(&self, claim: &Claim) -> impl Future<Output = Result<Answer<Grant>>> + Send {
        async move { only(self.acquire(slice::from_ref(claim)).await?) }
    }

    /// Extends one held lease by `ttl`.
    fn renew_one(&self, hold: &Hold, ttl: Duration) -> impl Future<Output = Result<Answer>> + Send {
        async move { only(self.renew(slice::from_ref(hold), ttl).await?) }
    }

    /// Releases one lease: a [`Hold`], or a [`Release`] with the preferred successor.
    fn release_one(&self, release: impl Into<Release>) -> impl Future<Output = Result<()>> + Send {
        let release = release.into();
        async move { only(self.release(&[release]).await?) }
    }

    /// Reads one lease. `None` if the name was never used.
    fn observe_one(&self, name: &Name) -> impl Future<Output = Result<Option<Lease>>> + Send {
        async move {
            match self.observe(&Scope::name(name)).await? {
                leases if leases.is_empty() => Ok(None),
                leases => only(leases).map(Some),
            }
        }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

/// The single answer to a single request.
fn only<T>(answers: Vec<Result<T>>) -> Result<T> {
    match <[Result<T>; 1]>::try_from(answers) {
        Ok([answer]) => answer,
        Err(answers) => Err(wrong_count(1, answers.len())),
    }
}

/// The error for a store that breaks its contract: `count` answers to `requests` requests.
pub(crate) fn wrong_count(requests: usize, count: usize) -> Error {
    Error::unavailable(format!("the store returned {count} answers to {requests} requests"))
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

impl Grade {
    /// The letter used as a label in metrics, logs and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Grade::A => "A",
            Grade::B => "B",
            Grade::C => "C",
        }
    }
}

/// The candidates that can share a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Visibility {
    /// Only this process: another process has its own leases under the same URL.
    Process,
    /// The processes of this machine.
    Machine,
    /// Every machine that reaches the store.
    Network,
}

impl Visibility {
    /// The word used as a label in metrics, logs and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Visibility::Process => "process",
            Visibility::Machine => "machine",
            Visibility::Network => "network",
        }
    }
}

/// How a store notifies its watchers of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// The store sends a notification when a lease changes.
    Push,
    /// The store has no notifications: a watch reads the leases at this interval.
    Poll(Duration),
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
    /// The candidates that can share the store.
    pub visibility: Visibility,
    /// The number of items that a caller should send in one call; at least 1. The store accepts any number.
    pub max_batch: usize,
    /// How the store notifies its watchers.
    pub notification: Notification,
    /// Whether candidates make themselves visible by default: see [`presence`](crate::presence). Not where each of them would
    /// cost the store much.
    pub presence: bool,
}

impl Limits {
    /// The limits of a store that accepts TTLs from 100 ms to one day, is visible to other machines, takes a thousand items at
    /// once and sends notifications.
    pub fn new(grade: Grade) -> Self {
        Limits {
            min_ttl: Duration::from_millis(100),
            max_ttl: Duration::from_secs(86_400),
            grade,
            visibility: Visibility::Network,
            max_batch: 1_000,
            notification: Notification::Push,
            presence: true,
        }
    }

    /// The same limits for a store that only this machine can use.
    #[must_use]
    pub fn this_machine_only(mut self) -> Self {
        self.visibility = Visibility::Machine;
        self
    }

    /// The same limits for a store that only this process can use.
    #[must_use]
    pub fn this_process_only(mut self) -> Self {
        self.visibility = Visibility::Process;
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

impl Verdict {
    /// The word used as a label in metrics, logs and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Good => "good",
            Verdict::Weak => "weak",
            Verdict::Bad => "bad",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_wrong_number_of_answers_is_unavailable_and_no_panic() {
        assert_eq!(only(vec![Ok(7)]), Ok(7));
        assert_eq!(only::<()>(vec![Err(Error::denied("no"))]).unwrap_err().kind(), Kind::Denied);
        for answers in [vec![], vec![Ok(1), Ok(2)]] {
            assert_eq!(only(answers).unwrap_err().kind(), Kind::Unavailable);
        }
    }
}
