//! The plan: which member should own which shard, if members may list different shards.
//!
//! A member announces a [digest](crate::fleet::ListDigest) of its list. A shard is planned only for members that list it:
//!
//! - a member whose part of the digest equals this member's part lists the same shards there;
//! - a member whose part differs may list the shard or not, so no shard is taken from its owner for that member, and what that
//!   member owns stays with it;
//! - a free shard that this member has listed for less than a TTL is also planned for members whose part differs: members read
//!   a new list at different times, and an announcement is observed up to a TTL later. A member with an empty list gets none.
//!
//! Shards with the same eligible members are planned together. So shards on every list are shared evenly, and each other shard
//! goes to a member that lists it. While lists differ, each member claims a shard that is free for one and a half TTLs, even
//! against its plan: no shard on the list of a working member waits for 2 TTLs.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::shard_entry::{ME, MemberNumber, ShardEntry};
use super::{MemberState, Planner};
use crate::clock::Moment;
use crate::lease::CandidateId;
use crate::placement::{self, PlacementMember, PlacementShard};

/// A member keeps an adopted shard for this many TTLs, even against the fair shares. The time doubles each time that no other
/// member claims the shard after that.
const ADOPTION_TTLS: u32 = 4;
/// Limit of these doublings.
const MAX_ADOPTION_DOUBLINGS: u32 = 5;

/// Shards that are planned together, and the members with their eligibility for these shards.
struct ListGroup<'a> {
    members: Vec<PlacementMember<'a>>,
    /// Indices among the shards that should be owned.
    shards: Vec<usize>,
}

impl Planner {
    /// The members to plan with: as observed, and this member exactly as long as it holds its membership lease.
    fn present(&self) -> BTreeMap<CandidateId, MemberState> {
        let mut present = self.members.clone().unwrap_or_default();
        if self.is_member() {
            present.entry(self.me.clone()).or_default().list = self.list.clone();
        } else {
            present.remove(&self.me);
        }
        present
    }

    pub(super) fn plan(&mut self, now: Moment) {
        let present = self.present();
        let ids: Vec<MemberNumber> = present.keys().map(|id| self.ids.of(id.as_str())).collect();
        let mut index = vec![None; self.ids.names.len()];
        for (at, id) in (0..).zip(&ids) {
            index[*id as usize] = Some(at);
        }
        let me_at = index[ME as usize];
        self.replan_at = None;
        let lists_differ = present.values().any(|state| state.list != self.list);
        if std::mem::replace(&mut self.lists_differed, lists_differ) && !lists_differ {
            // The lists are equal again: shards that were adopted because they differed follow the fair shares again.
            for entry in self.entries.values_mut() {
                (entry.adopted, entry.adoptions) = (None, 0);
            }
        }
        let groups = self.groups(now, &present, &index, lists_differ);
        let items: Vec<PlacementShard> = self
            .entries
            .values()
            .filter(|entry| entry.should_be_owned())
            .map(|entry| PlacementShard {
                hash: entry.hash,
                owner: entry.owner.and_then(|owner| index[owner as usize]),
                adopted: entry.adopted.is_some(),
            })
            .collect();
        let mut planned = vec![None; items.len()];
        let mut group_of = vec![0; items.len()];
        for (number, group) in groups.iter().enumerate() {
            let in_group: Vec<PlacementShard> = group.shards.iter().map(|at| items[*at]).collect();
            let targets = placement::plan_hashed(&group.members, &in_group);
            for (at, target) in group.shards.iter().zip(targets) {
                planned[*at] = target;
                group_of[*at] = number;
            }
        }
        let (member_since, ttl) = (self.member_since, self.ttl);
        let mut replan_at = self.replan_at;
        let counted = self.entries.values_mut().filter_map(|entry| {
            let before = entry.planned.take();
            entry.should_be_owned().then_some((entry, before))
        });
        for ((entry, before), (target, group)) in counted.zip(planned.into_iter().zip(group_of)) {
            let target = target.map(|target| ids[target as usize]);
            if target != before && entry.adopted.is_none() {
                entry.planned_since = now;
            }
            entry.planned = target;
            entry.adopted = entry.adopted.filter(|until| now < *until);
            // Members whose lists differ do not agree on the shares, so a shard that stayed free is kept once it is claimed.
            let overdue_at = entry.free_since.filter(|_| lists_differ);
            let overdue_at = overdue_at.map(|since| since.max(member_since) + ttl);
            if entry.planned == Some(ME) {
                if overdue_at.is_some_and(|at| now >= at) {
                    entry.adopt(now, ttl);
                }
                earlier(&mut replan_at, entry.adopted);
            }
            let members = &groups[group].members;
            let mine = me_at.filter(|at| !members[*at as usize].drained);
            let Some(mine) = mine.filter(|_| entry.planned != Some(ME)) else { continue };
            let waited = entry.waited(now, member_since, ttl);
            // A member that adopted it before adopts it again without waiting for members with a higher preference.
            let rank = || placement::rank(members, entry.hash, mine);
            let in_turn =
                waited > 0 && (entry.adoptions > 0 || rank().is_some_and(|rank| rank <= waited));
            // Members whose lists differ may all wait for each other; so in the end each claims it, and one acquires it.
            let late_at = overdue_at.map(|at| at + ttl / 2);
            let next = in_turn || late_at.is_some_and(|at| now >= at);
            if next {
                entry.adopt(now, ttl);
            }
            if next || (entry.adopted.is_some() && entry.owner == Some(ME)) {
                entry.planned = Some(ME);
                earlier(&mut replan_at, entry.adopted);
            } else {
                earlier(&mut replan_at, late_at);
                let turns = u32::try_from(waited).unwrap_or(u32::MAX).saturating_add(1);
                earlier(
                    &mut replan_at,
                    entry.free_from(member_since).map(|free| free + ttl * turns),
                );
            }
        }
        self.replan_at = replan_at;
    }

    /// The shards that should be owned, grouped by their eligible members.
    fn groups<'a>(
        &mut self,
        now: Moment,
        present: &'a BTreeMap<CandidateId, MemberState>,
        index: &[Option<u32>],
        lists_differ: bool,
    ) -> Vec<ListGroup<'a>> {
        let group = |eligible: &[bool], shards| {
            let members = present.iter().zip(eligible);
            let member = |((id, state), eligible): ((&'a CandidateId, &MemberState), &bool)| {
                PlacementMember { id: id.as_str(), drained: state.drained || !eligible }
            };
            ListGroup { members: members.map(member).collect(), shards }
        };
        if !lists_differ {
            let count = self.entries.values().filter(|entry| entry.should_be_owned()).count();
            return vec![group(&vec![true; present.len()], (0..count).collect())];
        }
        let states: Vec<&MemberState> = present.values().collect();
        let (own, ttl) = (&self.list, self.ttl);
        let mut replan_at = None;
        let mut groups: HashMap<Vec<bool>, Vec<usize>> = HashMap::new();
        for (at, entry) in self.entries.values().filter(|entry| entry.should_be_owned()).enumerate()
        {
            let (mine, part) = (own.part(entry.hash), |at: usize| states[at].list.part(entry.hash));
            let owner = entry.owner.and_then(|owner| index[owner as usize]);
            let owner = owner.and_then(|at| usize::try_from(at).ok());
            // The owner lists it although its part differs. Only the owner knows which other members list it.
            let stays = owner.filter(|at| part(*at) != mine && !states[*at].drained);
            let is_offered = owner.is_none() && now < entry.added_at + ttl;
            if is_offered {
                earlier(&mut replan_at, Some(entry.added_at + ttl));
            }
            let eligible = |at: usize| match stays {
                Some(owner) => at == owner,
                None => {
                    let is_empty = states[at].list.is_announced() && states[at].list.shards() == 0;
                    part(at) == mine || (is_offered && !is_empty)
                }
            };
            groups.entry((0..states.len()).map(eligible).collect()).or_default().push(at);
        }
        earlier(&mut self.replan_at, replan_at);
        groups.into_iter().map(|(eligible, shards)| group(&eligible, shards)).collect()
    }
}

impl ShardEntry {
    /// Keeps it for a while, even against the fair shares, unless it is adopted already.
    fn adopt(&mut self, now: Moment, ttl: Duration) {
        if self.adopted.is_none() {
            let doubled = ADOPTION_TTLS << self.adoptions.min(MAX_ADOPTION_DOUBLINGS);
            self.adopted = Some(now + ttl * doubled);
            self.adoptions = self.adoptions.saturating_add(1);
        }
    }

    /// Since when it is free although the planned member could have claimed it, and this member could have adopted it: not
    /// before it was planned for that member, nor before this member joined.
    fn free_from(&self, member_since: Moment) -> Option<Moment> {
        self.free_since.map(|since| since.max(self.planned_since).max(member_since))
    }

    /// For how many whole TTLs it has been free.
    fn waited(&self, now: Moment, member_since: Moment, ttl: Duration) -> usize {
        self.free_from(member_since).map_or(0, |since| {
            let turns = now.since(since).as_nanos() / ttl.as_nanos().max(1);
            usize::try_from(turns).unwrap_or(usize::MAX)
        })
    }
}

/// Replaces `time` with `other` if that is earlier, or if there is no `time`.
fn earlier(time: &mut Option<Moment>, other: Option<Moment>) {
    *time = (*time).min(other).or(*time).or(other);
}
