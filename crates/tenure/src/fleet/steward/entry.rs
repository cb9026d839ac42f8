//! What a steward knows of one shard, and the numbers it has for members.

use std::collections::HashMap;
use std::sync::Arc;

use super::Reason;
use crate::clock::Moment;
use crate::election::Phase;
use crate::fleet::Shard;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) shard: Shard,
    pub(super) hash: u64,
    /// Its lease was looked at.
    pub(super) seen: bool,
    /// Its lease cannot be read: nobody can own it.
    pub(super) broken: bool,
    pub(super) paused: bool,
    /// The source does not name it any more; `Some(true)`: it does again.
    pub(super) gone: Option<bool>,
    pub(super) owner: Option<Id>,
    /// The owner is not in its start-up wait.
    pub(super) owner_works: bool,
    pub(super) planned: Option<Id>,
    pub(super) phase: Phase,
    /// Its machine was told to campaign.
    pub(super) wanted: bool,
    pub(super) queued: bool,
    /// A claim is under way.
    pub(super) claiming: bool,
    /// It is to be given away: to whom, and why.
    pub(super) leave: Option<(Option<Id>, Reason)>,
    /// It is being given away.
    pub(super) leaving: bool,
    /// Taken because whoever should have it did not; until when it is kept, even if others should have more.
    pub(super) adopted: Option<Moment>,
    /// How often in a row.
    pub(super) adoptions: u32,
    pub(super) free_since: Option<Moment>,
    /// When the source named it first.
    pub(super) added_at: Moment,
    /// Since when it is planned for whom it is planned for.
    pub(super) offered: Moment,
}

impl Entry {
    /// Whether somebody should own it.
    pub(super) fn counts(&self) -> bool {
        !self.paused && !self.broken && self.gone.is_none()
    }
}

/// A member's id, as a number: there are many shards and few members.
pub(super) type Id = u32;
/// Our own.
pub(super) const ME: Id = 0;

#[derive(Debug, Default)]
pub(super) struct Ids {
    pub(super) names: Vec<Arc<str>>,
    pub(super) numbers: HashMap<Arc<str>, Id>,
}

impl Ids {
    pub(super) fn of(&mut self, name: &str) -> Id {
        if let Some(id) = self.numbers.get(name) {
            return *id;
        }
        let name: Arc<str> = name.into();
        let id = Id::try_from(self.names.len()).unwrap_or(Id::MAX);
        self.names.push(name.clone());
        self.numbers.insert(name, id);
        id
    }
}
