//! Presence: who takes part in an election, whether it leads or not.
//!
//! Everything is a lease: whoever is there holds one on itself, `tenure:node:NAME:ID`, with its URL as the note. When it goes
//! away it gives it back; when it dies, it runs out. Nobody decides anything by it: who may lead is decided by the lease alone.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
//! use std::time::Duration;
//! use tenure::presence::{Presence, present};
//! use tenure::{CandidateId, Name};
//!
//! let store = tenure::open("memory:").await?;
//! let (name, id) = (Name::new("presence:example")?, CandidateId::new("web-1")?);
//! let presence = Presence::new(&name, &id, Duration::from_secs(12))
//!     .note("http://10.0.0.1:3000")
//!     .announce(store.clone())
//!     .await?;
//! let nodes = present(&*store, &name).await?;
//! assert_eq!(nodes[0].id.as_str(), "web-1");
//! assert_eq!(nodes[0].note, "http://10.0.0.1:3000");
//! presence.leave().await;
//! assert!(present(&*store, &name).await?.is_empty());
//! # Ok(()) }
//! ```

use std::sync::Arc;
use std::time::Duration;

use crate::elector::{Builder, Election};
use crate::error::Result;
use crate::lease::{CandidateId, Lease, Name};
use crate::store::{Scope, Store};

/// What is announced, before it is.
#[derive(Debug)]
#[must_use = "nobody sees it before it is announced"]
pub struct Presence(Builder);

/// An announcement that stands until it is taken back, or this process ends.
#[derive(Debug)]
pub struct Present {
    election: Election,
}

/// One that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Who.
    pub id: CandidateId,
    /// What it says of itself: its URL.
    pub note: String,
    /// Since when, on the store's wall clock in Unix milliseconds.
    pub since: Option<u64>,
}

impl Presence {
    /// The candidate `id` of `name`. A presence of `ttl` outlives its process by that at most; three times the lease's is
    /// plenty, and costs one request a lease.
    pub fn new(name: &Name, id: &CandidateId, ttl: Duration) -> Presence {
        let builder = Builder::own(&name.node(id)).id(id.as_str()).ttl(ttl);
        Presence(builder.ends_with_process(true))
    }

    /// What it says of itself: up to 512 bytes.
    pub fn note(self, note: &str) -> Presence {
        Presence(self.0.note(note))
    }

    /// Announces it, and returns when the store has answered for the first time. Waits for a store that is down.
    ///
    /// # Errors
    /// As those of [`Builder::start`].
    pub async fn announce(self, store: Arc<dyn Store>) -> Result<Present> {
        Ok(Present { election: self.0.start(store).await? })
    }

    /// Announces it, and returns at once.
    ///
    /// # Errors
    /// As those of [`Builder::launch`].
    pub fn launch(self, store: Arc<dyn Store>) -> Result<Present> {
        Ok(Present { election: self.0.launch(store)? })
    }
}

impl Present {
    /// Whether it is this one that is seen, and not another with the same id.
    pub fn is_seen(&self) -> bool {
        self.election.is_leader()
    }

    /// Takes it back.
    pub async fn leave(self) {
        self.election.stop().await;
    }
}

/// Who takes part in `name`, in the order of their ids.
///
/// # Errors
/// As those of [`Store::observe`].
pub async fn present(store: &dyn Store, name: &Name) -> Result<Vec<Node>> {
    let leases = store.observe(&Scope::Prefix(name.nodes())).await?;
    // What cannot be read is nobody; it does not hide the others.
    let mut nodes: Vec<Node> =
        leases.into_iter().flatten().filter_map(|lease| node(name, lease)).collect();
    nodes.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(nodes)
}

/// The one that holds this lease on itself, if it is one of `name`: the nodes of `a:b` begin like those of `a`.
fn node(name: &Name, lease: Lease) -> Option<Node> {
    let id = CandidateId::new(&lease.holder?.id).ok()?;
    let theirs = lease.name == name.node(&id);
    theirs.then(|| Node { id, note: lease.note.as_str().to_owned(), since: lease.since })
}
