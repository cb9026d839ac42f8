//! Exactly one owner for a task that must not be duplicated but must always be running.

#[cfg(not(target_os = "linux"))]
compile_error!("tenure needs Linux: it counts on CLOCK_BOOTTIME, inotify and process descriptors");

pub mod ask;
mod clock;
pub mod election;
mod elector;
mod entropy;
mod error;
mod fence;
pub mod guide;
mod health;
mod lease;
pub mod observation;
mod rng;
pub mod store;
pub mod timing;

pub use clock::{Clock, Moment};
pub use elector::{Builder, Election, Event, Leadership, Saved, Status};
pub use error::{Error, Kind, Result};
pub use fence::{Fence, StaleToken};
pub use health::HealthGate;
pub use lease::{
    Answer, CandidateId, Checkpoint, Claim, Ended, Grant, Hold, Holder, Lease, Lineage, Name,
    Nonce, Note, OWN_PREFIX, Release, StoreTime, Token,
};
pub use store::{Store, open};
