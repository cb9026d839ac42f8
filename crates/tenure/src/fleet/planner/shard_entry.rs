//! The planner's state of one shard, and its numbering of the members.

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
    /// Its lease was observed at least once.
    pub(super) observed: bool,
    /// Its lease cannot be read, so no member can own it.
    pub(super) broken: bool,
    pub(super) paused: bool,
    /// `Some`: the source has removed it, and its last work is ending; `Some(true)`: the source lists it again.
    pub(super) removed: Option<bool>,
    pub(super) owner: Option<MemberNumber>,
    /// The owner is not in its start-up wait.
    pub(super) owner_works: bool,
    pub(super) planned: Option<MemberNumber>,
    pub(super) phase: Phase,
    /// Its machine campaigns, or will when it receives the request.
    pub(super) wanted: bool,
    /// It waits in the queue of claims.
    pub(super) queued: bool,
    /// A claim is in flight.
    pub(super) claiming: bool,
    /// It waits in the queue of releases: the next owner, and the reason.
    pub(super) pending_release: Option<(Option<MemberNumber>, Reason)>,
    /// Its release is in progress.
    pub(super) releasing: bool,
    /// This member has adopted it, because the planned member did not claim it. Until this moment it is kept, even against the
    /// fair shares.
    pub(super) adopted: Option<Moment>,
    /// How often in a row this member has adopted it.
    pub(super) adoptions: u32,
    pub(super) free_since: Option<Moment>,
    /// When the source first listed it.
    pub(super) added_at: Moment,
    /// Since when it is planned for the current target.
    pub(super) planned_since: Moment,
}

impl ShardEntry {
    /// Whether a member should own it: it is listed, readable and not paused.
    pub(super) fn should_be_owned(&self) -> bool {
        !self.paused && !self.broken && self.removed.is_none()
    }
}

/// A member's id as a number, which saves memory: there are many shards and few members.
pub(super) type MemberNumber = u32;
/// The number of this member.
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
