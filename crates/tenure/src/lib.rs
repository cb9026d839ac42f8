//! Exactly one owner for a task that must not be duplicated but must always be running.
//!
//! Any number of candidates run the same program. Tenure elects one of them as the leader, over a store that you already have,
//! and elects another one when that leader stops, dies or is cut off.
//!
//! # Ten lines
//!
//! ```
//! # async fn send_the_report(token: tenure::Token) {}
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
//! use tenure::Election;
//!
//! let store = tenure::open("memory:").await?; // file:DIR, redis://HOST:PORT/DB
//! let election = Election::builder("reports:nightly").start(store).await?;
//! election
//!     .lead(async |leadership| {
//!         // Only one candidate at a time is here. If leadership is lost, this work is dropped, and started again in the next term.
//!         send_the_report(leadership.token()).await;
//!     })
//!     .await;
//! election.stop().await; // the work has ended: release the lease, so that another candidate leads at once
//! # Ok(()) }
//! ```
//!
//! # What it promises, and what it does not
//!
//! 1. **At most one leader at any instant**, as long as clocks drift less than the configured bound (1000 ppm by default),
//!    the store's clock is not stepped, and the store keeps what it acknowledged. The leader knows its own deadline and stops
//!    before it.
//! 2. **A token that only grows**, regardless of the candidates' clocks, on every store that keeps what it acknowledged. A
//!    resource that compares it *inside* its write refuses a stale leader. See [fencing](docs::fencing).
//! 3. **No delay that the fault does not require.** A leader that stops cleanly releases the lease, and the store notifies the
//!    other candidates. A store that detects the death of a process (`file:`) frees the lease when the leader's process dies,
//!    if you declare that the work [ends with it](ElectionBuilder::ends_with_process). If a machine vanishes, another candidate
//!    leads when the lease has expired.
//!
//! It does **not** promise:
//!
//! - that effects of two leaders never overlap. A process can be paused between a check and an effect, by a suspend, a
//!   debugger, or the migration of a virtual machine. Only a resource that compares tokens refuses a late effect.
//! - more than the store promises. A store that loses what it acknowledged can grant a lease twice; its [grade](store::Grade)
//!   says so.
//! - that work is done exactly once. A leader can die after an effect and before it has recorded the effect. A
//!   [checkpoint](Leadership::save) narrows that gap and does not close it.
//! - order among the waiting candidates: which one wins a free lease is a race.
//!
//! # How it works
//!
//! - **A leader has a deadline.** It is counted from the clock *before* the request was sent, on a clock that continues in
//!   suspend, and is shorter than the lease: `sent + TTL × (1 − drift) − margin`. [`Election::is_leader`] and
//!   [`Leadership::is_valid`] compare it with the clock at every call; there is no flag that could be left set.
//! - **Renewals have their own thread, runtime and connection.** A busy application cannot starve them. A renewal that fails is
//!   retried until it is time to stop.
//! - **The work is notified in time.** [`Leadership::lost`] returns at the latest one
//!   [`stop_within`](ElectionBuilder::stop_within) before the deadline, so that the work has time to stop. If the store refuses
//!   a renewal, `lost` returns at once, and no time is left.
//! - **Stop, then release.** The lease is released only when the work has ended, that is, when every [`Leadership`] is dropped.
//!   A leader that resigns renews the lease until then. A candidate campaigns again only after its work has ended.
//! - **A waiting candidate sleeps** until the store notifies it, the holder's lease expires, or the
//!   [retry period](ElectionBuilder::retry_period) has passed, one TTL by default.
//! - **A waiting candidate remembers the leader.** A record can vanish, and the store's clock can run ahead. A candidate that is
//!   granted such a lease, and that has observed a live leader, waits until that leader must have stopped. Only then it leads.
//!
//! The defaults: TTL 4 s, renewed every TTL/3, margin TTL/10, time to stop TTL/5, drift 1000 ppm. [`ElectionBuilder`] sets
//! them; [`timing`] reports settings that contradict each other, in one sentence each.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `file` | yes | [`file:DIR`](store::file): a directory on this machine |
//! | `redis` | no | `redis://`, and `store::redis::RedisStore::builder` for your own client, credentials and key prefix |
//! | `kubernetes` | no | `kubernetes://NAMESPACE`: Lease objects of a Kubernetes API server, with the crate `kube`, rustls and ring |
//! | `tls` | no | TLS for the stores that are servers, with rustls and ring: `rediss://`, and your own TLS configuration |
//! | `serde` | no | status, events and leases as [JSON](docs::observability), and `ElectionConfig`, for the application's settings file |
//! | `metrics` | no | `metrics::FacadeMetrics`, which reports through the `metrics` crate |
//! | `conformance` | no | the table of properties that every store is tested against, for your own store |
//! | `testing` | no | `testing::term`, a term that a test can end, and `testing::FaultyStore`, a store with injected errors and delays |
//!
//! `memory:` is always available: for tests, and for threads of one process. Without `redis` and `kubernetes` no network client is compiled,
//! and without `tls` and `kubernetes` no TLS. `metrics` adds three small crates; `serde`, `testing` and `conformance` add none. Linux only.
//!
//! With `redis`, the crate `redis` brings `url`, whose Unicode tables are 21 crates by default. An application selects smaller
//! ones (5 crates) in its own `Cargo.lock`: `cargo update -p idna_adapter --precise 1.1.0`.
//!
//! # Layout
//!
//! | to | see |
//! |---|---|
//! | elect | [`open`], [`Election`], [`ElectionBuilder`], [`HealthGate`], [`Health`] |
//! | work as the leader | [`Leadership`], [`StopSignal`], [`Saved`], [`Checkpoint`], and the chapters on [blocking work](docs::blocking), [several waiters](docs::waiters), [cancellation](docs::cancellation) and [checkpoints](docs::checkpoints) |
//! | observe an election | [`Status`], [`CandidateState`], [`Event`], [`RenewalStats`], [`Histogram`], [`Pulse`], [`machine::EndReason`], [`machine::Phase`] |
//! | monitor it | [`metrics`], [`trace`], and the chapter on [observability](docs::observability) |
//! | distribute many leases over a fleet | [`fleet`], [`Fleet`] |
//! | fence | [`Token`], [`Fence`], and the chapter on [fencing](docs::fencing) |
//! | test your own code | [`Clock::manual`], [`store::memory`], `testing` (feature), and the chapter on [testing](docs::testing) |
//! | keep the settings in a file | `ElectionConfig` (feature `serde`), [`text`] |
//! | send a request to a leader elsewhere | [`request`] |
//! | list the candidates | [`presence`] |
//! | choose a store | [`store`], [`open`] |
//! | write a store | [`Store`] and its contract, and the chapters on [stores](docs::stores) and on the [parts](docs::parts) |
//! | run the work in another process, and stop it in time | [`supervise`] |
//! | handle errors | [`Error`], and its [`Kind`]: what you can do about it. Losing an election is not an error |
//! | know its threads and connections | the chapter on [threads](docs::threads) |
//! | come from another tool | the chapter for users of [kubert, rslock, redlock and etcd-client](docs::other_tools) |
//! | read the algorithm | [`machine`], [`placement`], [`fleet::planner`], [`observation`], [`timing`]: pure, with time and seeds as arguments |
//!
//! `examples/` has small programs to start in two terminals: `minimal`, `events`, `fenced_write`, `graceful_shutdown`,
//! `checkpointed_counter`, `fenced_worker`, `fleet`. `axum_service` is a complete HTTP service with a job that runs on its leader.
//! `bucket_store` is a complete store of its own, with one election on it, and `store_wrapper` wraps any store.

#[cfg(not(target_os = "linux"))]
compile_error!("tenure needs Linux: it requires CLOCK_BOOTTIME, inotify and process descriptors");

mod blocking;
mod clock;
pub mod docs;
mod driver;
mod election;
mod entropy;
mod error;
mod fence;
pub mod fleet;
mod fork_check;
mod health;
mod histogram;
mod inotify;
mod labels;
mod lease;
pub mod machine;
pub mod metrics;
pub mod observation;
pub mod placement;
pub mod presence;
pub mod request;
mod rng;
#[cfg(feature = "serde")]
mod serialize;
pub mod store;
pub mod supervise;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;
pub mod timing;
pub mod trace;

pub use clock::{Clock, Moment};
pub use driver::RenewalStats;
#[cfg(feature = "serde")]
pub use election::ElectionConfig;
pub use election::{
    CandidateState, Election, ElectionBuilder, Event, Leadership, Pulse, Saved, Status, StopSignal,
};
pub use error::{Blocker, Error, Kind, Result};
pub use fence::{Fence, StaleToken};
pub use fleet::Fleet;
pub use health::{Health, HealthGate};
pub use histogram::Histogram;
pub use lease::{
    Answer, CandidateId, Checkpoint, Claim, ClaimedWait, Ended, Grant, Hold, Holder, Lease,
    Lineage, Name, Nonce, Note, OWN_PREFIX, PastTerm, PastTermOutcome, Release, StartupWait,
    StoreTime, Token, WaitReason,
};
pub use store::{Store, StoreExt, open};
