//! What a steward knows of one shard, and the numbers it has for members.

use std::collections::HashMap;
use std::sync::Arc;

use super::Reason;
use crate::clock::Moment;
use crate::fleet::Shard;
use crate::machine::Phase;

#[derive(Debug)]
pub(super) struct ShardEntry {
    pub(super) shard: Shard,
    pub(super) hash: u64,
    /// Its lease was looked at.
    pub(super) seen: bool,
    /// Its lease cannot be read: nobody can own it.
    pub(super) broken: bool,
    pub(super) paused: bool,
    /// The source does not name it any more; `Some(true)`: it does again.
    pub(super) gone: Option<bool>,
    pub(super) owner: Option<MemberNumber>,
    /// The owner is not in its start-up wait.
    pub(super) owner_works: bool,
    pub(super) planned: Option<MemberNumber>,
    pub(super) phase: Phase,
    /// Its machine was told to campaign.
    pub(super) wanted: bool,
    pub(super) queued: bool,
    /// A claim is under way.
    pub(super) claiming: bool,
    /// It is to be given away: to whom, and why.
    pub(super) leave: Option<(Option<MemberNumber>, Reason)>,
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

impl ShardEntry {
    /// Whether somebody should own it.
    pub(super) fn counts(&self) -> bool {
        !self.paused && !self.broken && self.gone.is_none()
    }
}

/// A member's id, as a number: there are many shards and few members.
pub(super) type MemberNumber = u32;
/// Our own.
pub(super) const ME: MemberNumber = 0;

#[derive(Debug, Default)]
pub(super) struct MemberNumbers {
    pub(super) names: Vec<Arc<str>>,
    pub(super) numbers: HashMap<Arc<str>, MemberNumber>,
}

impl MemberNumbers {
    pub(super) fn of(&mut self, name: &str) -> MemberNumber {
        if let Some(id) = self.numbers.get(name) {
            return *id;
        }
        let name: Arc<str> = name.into();
        let id = MemberNumber::try_from(self.names.len()).unwrap_or(MemberNumber::MAX);
        self.names.push(name.clone());
        self.numbers.insert(name, id);
        id
    }
}
