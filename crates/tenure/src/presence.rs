//! Presence: which candidates take part in an election, and the state of each.
//!
//! A candidate is visible through a lease on itself, `tenure:node:NAME:ID`. Its note contains the candidate's URL, priority and
//! state. When the candidate ends it releases the lease; when it dies, the lease expires. Presence grants no right: only the
//! lease of the election decides which candidate may lead.
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

use crate::election::{CandidateState, Election, ElectionBuilder};
use crate::error::Result;
use crate::lease::{CandidateId, Lease, Name, OWN_PREFIX};
use crate::store::{Scope, Store};
use announcement::Announcement;

/// The presence of a candidate before it is announced.
#[derive(Debug)]
#[must_use = "nothing is visible before it is announced"]
pub struct Presence {
    builder: ElectionBuilder,
    announcement: Announcement,
}

/// A presence that is visible until [`PresentCandidate::leave`], or until this process ends.
#[derive(Debug)]
pub struct PresentCandidate {
    election: Election,
    announcement: Mutex<Announcement>,
}

/// A candidate that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The id of the candidate.
    pub id: CandidateId,
    /// The URL at which the candidate serves HTTP.
    pub url: Option<String>,
    /// The priority of the candidate on a free lease.
    pub priority: i32,
    /// The state of the candidate; `None` if its version of Tenure does not announce it, or announces it in another format.
    pub state: Option<CandidateState>,
    /// When the presence began, on the store's wall clock in Unix milliseconds.
    pub since: Option<u64>,
}

impl Presence {
    /// Builds the presence of candidate `id` of `name`. It outlives its process by at most `ttl`. Three times the TTL of the
    /// election's lease is enough, and costs one request per TTL of that lease.
    pub fn new(name: &Name, id: &CandidateId, ttl: Duration) -> Presence {
        let builder = ElectionBuilder::own(&name.node(id)).id(id.as_str()).ttl(ttl);
        Presence { builder: builder.ends_with_process(true), announcement: Announcement::default() }
    }

    /// Sets the URL at which the candidate serves HTTP. A URL of more than 250 bytes is left out.
    pub fn url(mut self, url: &str) -> Presence {
        self.announcement.url = Some(url.to_owned()).filter(|url| !url.is_empty());
        self
    }

    /// Sets the candidate's priority on a free lease; default 0.
    pub fn priority(mut self, priority: i32) -> Presence {
        self.announcement.priority = priority;
        self
    }

    /// Sets the candidate's initial state; default waiting.
    pub fn state(mut self, state: CandidateState) -> Presence {
        self.announcement.state = Some(state);
        self
    }

    /// Announces the presence, and returns when the store has answered for the first time. Waits for a store that is down.
    ///
    /// # Errors
    /// Those of [`ElectionBuilder::start`].
    pub async fn announce(self, store: Arc<dyn Store>) -> Result<PresentCandidate> {
        let present = self.launch(store)?;
        present.election.answered().await?;
        Ok(present)
    }

    /// Announces the presence, and returns at once.
    ///
    /// # Errors
    /// Those of [`ElectionBuilder::launch`].
    pub fn launch(self, store: Arc<dyn Store>) -> Result<PresentCandidate> {
        let Presence { builder, announcement } = self;
        let election = builder.note(announcement.note().as_str()).launch(store)?;
        Ok(PresentCandidate { election, announcement: Mutex::new(announcement) })
    }
}

impl PresentCandidate {
    /// Announces a new state. Returns at once; the driver of the presence lease writes it.
    pub fn set_state(&self, state: CandidateState) {
        let mut announcement = self.announcement.lock().unwrap_or_else(PoisonError::into_inner);
        announcement.state = Some(state);
        self.election.set_note(announcement.note());
    }

    /// Announces every change of the state of `election`. Never returns.
    pub async fn follow(&self, election: &Election) {
        let mut known =
            self.announcement.lock().unwrap_or_else(PoisonError::into_inner).state.clone();
        loop {
            let state = election.state_changed(&known.unwrap_or_default()).await;
            self.set_state(state.clone());
            known = Some(state);
        }
    }

    /// Whether this presence is visible, and not another one with the same id.
    pub fn is_visible(&self) -> bool {
        self.election.is_leader()
    }

    /// Ends the presence: releases its lease.
    pub async fn leave(&self) {
        self.election.stop().await;
    }
}

/// The candidates of `name`, ordered by id.
///
/// # Errors
/// Those of [`Store::observe`].
pub async fn present(store: &dyn Store, name: &Name) -> Result<Vec<Node>> {
    let candidates = below(store, &name.nodes()).await?;
    // The presence leases of `a:b` have the prefix of those of `a`.
    Ok(candidates.into_iter().filter(|(of, _)| of == name).map(|(_, node)| node).collect())
}

/// The candidates of all elections, each with the name of its election, ordered by id.
///
/// # Errors
/// Those of [`Store::observe`].
pub async fn all_present(store: &dyn Store) -> Result<Vec<(Name, Node)>> {
    below(store, &format!("{OWN_PREFIX}node:")).await
}

async fn below(store: &dyn Store, prefix: &str) -> Result<Vec<(Name, Node)>> {
    let leases = store.observe(&Scope::Prefix(prefix.to_owned())).await?;
    Ok(nodes(leases.iter().flatten()))
}

/// The candidates whose presence leases are among these leases, each with the name of its election, ordered by id. Other
/// leases, and presence leases that cannot be parsed, are left out.
pub fn nodes<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> Vec<(Name, Node)> {
    let mut nodes: Vec<(Name, Node)> = leases.into_iter().filter_map(node).collect();
    nodes.sort_by(|(_, a), (_, b)| a.id.cmp(&b.id));
    nodes
}

/// The candidate of a presence lease. Both the name and the id may contain colons, so the holder's id shows where the name ends
/// and the id begins.
fn node(lease: &Lease) -> Option<(Name, Node)> {
    let id = CandidateId::new(&lease.holder.as_ref()?.id).ok()?;
    let of = lease.name.as_str().strip_prefix(OWN_PREFIX)?.strip_prefix("node:")?;
    let of = Name::new(of.strip_suffix(id.as_str())?.strip_suffix(':')?).ok()?;
    let Announcement { url, priority, state } = Announcement::read(lease.note.as_str());
    let node = Node { id, url, priority, state, since: lease.since };
    (lease.name == of.node(&node.id)).then_some((of, node))
}
