//! Presence: which candidates take part in an election, and what each of them does.
//!
//! Everything is a lease: a candidate holds one on itself, `tenure:node:NAME:ID`. Its note carries the candidate's URL, priority
//! and state. When the candidate ends it releases the lease; when it dies, the lease expires. Presence grants no right: who may
//! lead is decided by the lease of the election alone.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
//! use std::time::Duration;
//! use tenure::presence::{Presence, present};
//! use tenure::{CandidateId, CandidateState, Name};
//!
//! let store = tenure::open("memory:").await?;
//! let (name, id) = (Name::new("presence:example")?, CandidateId::new("web-1")?);
//! let presence = Presence::new(&name, &id, Duration::from_secs(12))
//!     .url("http://10.0.0.1:3000")
//!     .announce(store.clone())
//!     .await?;
//! let nodes = present(&*store, &name).await?;
//! assert_eq!(nodes[0].id.as_str(), "web-1");
//! assert_eq!(nodes[0].url.as_deref(), Some("http://10.0.0.1:3000"));
//! assert_eq!(nodes[0].state, Some(CandidateState::Waiting));
//! presence.leave().await;
//! assert!(present(&*store, &name).await?.is_empty());
//! # Ok(()) }
//! ```

mod announcement;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::driver::{Builder, CandidateState, Election};
use crate::error::Result;
use crate::lease::{CandidateId, Lease, Name, OWN_PREFIX};
use crate::store::{Scope, Store};
use announcement::Announcement;

/// A presence before it is announced.
#[derive(Debug)]
#[must_use = "nothing is visible before it is announced"]
pub struct Presence {
    builder: Builder,
    announcement: Announcement,
}

/// A presence that is visible until [`Present::leave`], or until this process ends.
#[derive(Debug)]
pub struct PresentCandidate {
    election: Election,
    announcement: Mutex<Announcement>,
}

/// A candidate that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its id.
    pub id: CandidateId,
    /// Where it answers over HTTP.
    pub url: Option<String>,
    /// Its priority on a free lease.
    pub priority: i32,
    /// What it does; `None` if its version of Tenure does not say it, or says it in another way.
    pub state: Option<CandidateState>,
    /// Since when it is present, on the store's wall clock in Unix milliseconds.
    pub since: Option<u64>,
}

impl Presence {
    /// The presence of candidate `id` of `name`. With `ttl` it outlives its process by that at most; three times the TTL of
    /// the election's lease is enough, and costs one request in that lease's TTL.
    pub fn new(name: &Name, id: &CandidateId, ttl: Duration) -> Presence {
        let builder = Builder::own(&name.node(id)).id(id.as_str()).ttl(ttl);
        Presence { builder: builder.ends_with_process(true), announcement: Announcement::default() }
    }

    /// Where the candidate answers over HTTP. A URL of more than 250 bytes is left out.
    pub fn url(mut self, url: &str) -> Presence {
        self.announcement.url = Some(url.to_owned()).filter(|url| !url.is_empty());
        self
    }

    /// The candidate's priority on a free lease; default 0.
    pub fn priority(mut self, priority: i32) -> Presence {
        self.announcement.priority = priority;
        self
    }

    /// What the candidate does at first; default waiting.
    pub fn state(mut self, state: CandidateState) -> Presence {
        self.announcement.state = Some(state);
        self
    }

    /// Announces it, and returns when the store has answered for the first time. Waits for a store that is down.
    ///
    /// # Errors
    /// As those of [`Builder::start`].
    pub async fn announce(self, store: Arc<dyn Store>) -> Result<PresentCandidate> {
        let present = self.launch(store)?;
        present.election.answered().await?;
        Ok(present)
    }

    /// Announces it, and returns at once.
    ///
    /// # Errors
    /// As those of [`Builder::launch`].
    pub fn launch(self, store: Arc<dyn Store>) -> Result<PresentCandidate> {
        let Presence { builder, announcement } = self;
        let election = builder.note(announcement.note().as_str()).launch(store)?;
        Ok(PresentCandidate { election, announcement: Mutex::new(announcement) })
    }
}

impl PresentCandidate {
    /// Shows from now on that the candidate does this. Returns at once; the presence lease's own driver writes it.
    pub fn set_state(&self, state: CandidateState) {
        let mut announcement = self.announcement.lock().unwrap_or_else(PoisonError::into_inner);
        announcement.state = Some(state);
        self.election.set_note(announcement.note());
    }

    /// Shows what `election` does, with each change of its state; never returns.
    pub async fn follow(&self, election: &Election) {
        let mut known =
            self.announcement.lock().unwrap_or_else(PoisonError::into_inner).state.clone();
        loop {
            let state = election.state_changed(&known.unwrap_or_default()).await;
            self.set_state(state.clone());
            known = Some(state);
        }
    }

    /// Whether it is this one that is seen, and not another with the same id.
    pub fn is_seen(&self) -> bool {
        self.election.is_leader()
    }

    /// Takes it back.
    pub async fn leave(&self) {
        self.election.stop().await;
    }
}

/// Who takes part in `name`, in the order of their ids.
///
/// # Errors
/// As those of [`Store::observe`].
pub async fn present(store: &dyn Store, name: &Name) -> Result<Vec<Node>> {
    let everybody = below(store, &name.nodes()).await?;
    // The nodes of `a:b` begin like those of `a`.
    Ok(everybody.into_iter().filter(|(of, _)| of == name).map(|(_, node)| node).collect())
}

/// Who takes part in anything, with the name of what, in the order of their ids.
///
/// # Errors
/// As those of [`Store::observe`].
pub async fn everybody(store: &dyn Store) -> Result<Vec<(Name, Node)>> {
    below(store, &format!("{OWN_PREFIX}node:")).await
}

async fn below(store: &dyn Store, prefix: &str) -> Result<Vec<(Name, Node)>> {
    let leases = store.observe(&Scope::Prefix(prefix.to_owned())).await?;
    Ok(nodes(leases.iter().flatten()))
}

/// The candidates that hold any of these leases on themselves, with the name they take part in, in the order of their ids.
/// Other leases, and those that cannot be read, are left out.
pub fn nodes<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> Vec<(Name, Node)> {
    let mut nodes: Vec<(Name, Node)> = leases.into_iter().filter_map(node).collect();
    nodes.sort_by(|(_, a), (_, b)| a.id.cmp(&b.id));
    nodes
}

/// The candidate that holds this lease on itself. Both the name and the id may contain colons, so the holder's id says
/// where the name ends and the id begins.
fn node(lease: &Lease) -> Option<(Name, Node)> {
    let id = CandidateId::new(&lease.holder.as_ref()?.id).ok()?;
    let of = lease.name.as_str().strip_prefix(OWN_PREFIX)?.strip_prefix("node:")?;
    let of = Name::new(of.strip_suffix(id.as_str())?.strip_suffix(':')?).ok()?;
    let Announcement { url, priority, state } = Announcement::read(lease.note.as_str());
    let node = Node { id, url, priority, state, since: lease.since };
    (lease.name == of.node(&node.id)).then_some((of, node))
}
