//! Which member should own which shard, where members may list different shards.
//!
//! A member announces a digest of its list ([`ListDigest`]). For each shard of ours this says of another member:
//!
//! - its part of the digest equals ours: it lists the shard;
//! - its part is zero: it does not list the shard. A shard that we list for less than a TTL is excepted: the others may be
//!   about to read and announce the same list;
//! - otherwise it may list the shard. It is offered to that member; if it stays free for a TTL, it is not offered again to any
//!   member with that part, until its part changes or it owns the shard.
//!
//! Shards for which all members stand alike in this are planned together, among the members that may list them. So shards on
//! every list are shared evenly, and each other shard goes to a member that lists it: at once where the digest says so, after a
//! TTL where it does not. While lists differ, each member claims a shard that is free for one and a half TTLs, whatever its
//! plan says: no shard on the list of a member that works waits for 2 TTLs.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::entry::{Entry, Id, ME};
use super::{ListDigest, MemberState, Steward};
use crate::clock::Moment;
use crate::lease::CandidateId;
use crate::placement::{self, Item, Member};

/// So many TTLs an adopted shard is kept, whatever the share; twice as many each time nobody else has taken it after that.
const ADOPTED_FOR: u32 = 4;
/// And so often that doubles at most.
const ADOPTED_DOUBLES: u32 = 5;

/// What is known of another member and one shard of ours.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Listed {
    Yes,
    Maybe,
    No,
}

/// Shards that are planned together, and the members as they count for them.
struct Group<'a> {
    members: Vec<Member<'a>>,
    /// Indices among the shards that count.
    shards: Vec<usize>,
}

impl Steward {
    /// The members to plan with: as observed, and this member exactly as long as it holds its membership lease.
    fn present(&self) -> BTreeMap<CandidateId, MemberState> {
        let mut present = self.members.clone().unwrap_or_default();
        if self.takes_part() {
            present.entry(self.me.clone()).or_default().list = self.list.clone();
        } else {
            present.remove(&self.me);
        }
        present
    }

    pub(super) fn plan(&mut self, now: Moment) {
        let present = self.present();
        let ids: Vec<Id> = present.keys().map(|id| self.ids.of(id.as_str())).collect();
        let mut index = vec![None; self.ids.names.len()];
        for (at, id) in (0..).zip(&ids) {
            index[*id as usize] = Some(at);
        }
        let me_at = index[ME as usize];
        self.replan_at = None;
        let lists_differ = present.values().any(|state| state.list != self.list);
        if std::mem::replace(&mut self.lists_differed, lists_differ) && !lists_differ {
            // What was adopted because of it goes by the shares again.
            for entry in self.entries.values_mut() {
                (entry.adopted, entry.adoptions) = (None, 0);
                entry.missing_from.clear();
            }
        }
        let groups = self.groups(now, &present, me_at, lists_differ);
        let items: Vec<Item> = self
            .entries
            .values()
            .filter(|entry| entry.counts())
            .map(|entry| Item {
                hash: entry.hash,
                owner: entry.owner.and_then(|owner| index[owner as usize]),
                adopted: entry.adopted.is_some(),
            })
            .collect();
        let mut planned = vec![None; items.len()];
        let mut group_of = vec![0; items.len()];
        for (number, group) in groups.iter().enumerate() {
            let in_group: Vec<Item> = group.shards.iter().map(|at| items[*at]).collect();
            let targets = placement::plan_hashed(&group.members, &in_group);
            for (at, target) in group.shards.iter().zip(targets) {
                planned[*at] = target;
                group_of[*at] = number;
            }
        }
        let (seated_at, ttl) = (self.seated_at, self.ttl);
        let mut replan_at = self.replan_at;
        let counted = self.entries.values_mut().filter_map(|entry| {
            let before = entry.planned.take();
            entry.counts().then_some((entry, before))
        });
        for ((entry, before), (target, group)) in counted.zip(planned.into_iter().zip(group_of)) {
            let target = target.map(|target| ids[target as usize]);
            if target != before && entry.adopted.is_none() {
                entry.offered = now;
            }
            entry.planned = target;
            entry.adopted = entry.adopted.filter(|until| now < *until);
            // Members whose lists differ do not agree on the shares, so what stayed free is kept once it is taken.
            let overdue_at = entry.free_since.filter(|_| lists_differ);
            let overdue_at = overdue_at.map(|since| since.max(seated_at) + ttl);
            if entry.planned == Some(ME) {
                if overdue_at.is_some_and(|at| now >= at) {
                    entry.adopt(now, ttl);
                }
                earlier(&mut replan_at, entry.adopted);
            }
            let members = &groups[group].members;
            let mine = me_at.filter(|at| !members[*at as usize].drained);
            let Some(mine) = mine.filter(|_| entry.planned != Some(ME)) else { continue };
            let waited = entry.waited(now, seated_at, ttl);
            // A member that adopted it before does so again without waiting for those that prefer it.
            let rank = || placement::rank(members, entry.hash, mine);
            let in_turn =
                waited > 0 && (entry.adoptions > 0 || rank().is_some_and(|rank| rank <= waited));
            // Members whose lists differ may each wait for another; so in the end each claims it, and one gets it.
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
                earlier(&mut replan_at, entry.free_from(seated_at).map(|free| free + ttl * turns));
            }
        }
        self.replan_at = replan_at;
    }

    /// The shards that count, grouped by which members may own them.
    fn groups<'a>(
        &mut self,
        now: Moment,
        present: &'a BTreeMap<CandidateId, MemberState>,
        me_at: Option<u32>,
        lists_differ: bool,
    ) -> Vec<Group<'a>> {
        let all = |listed: &[Listed]| {
            let members = present.iter().zip(listed);
            let member = |((id, state), listed): ((&'a CandidateId, &MemberState), &Listed)| {
                Member { id: id.as_str(), drained: state.drained || *listed == Listed::No }
            };
            members.map(member).collect::<Vec<Member<'a>>>()
        };
        let lists: Vec<&ListDigest> = present.values().map(|state| &state.list).collect();
        if !lists_differ {
            let members = all(&vec![Listed::Yes; lists.len()]);
            let count = self.entries.values().filter(|entry| entry.counts()).count();
            return vec![Group { members, shards: (0..count).collect() }];
        }
        let (seated_at, ttl, own) = (self.seated_at, self.ttl, &self.list);
        let mut groups: HashMap<Vec<Listed>, Vec<usize>> = HashMap::new();
        let counted = self.entries.values_mut().filter(|entry| entry.counts());
        for (at, entry) in counted.enumerate() {
            let mine = own.part(entry.hash);
            let parts = || lists.iter().map(|list| list.part(entry.hash));
            let is_new = now < entry.added_at + ttl;
            if is_new && parts().any(|part| part == 0) {
                earlier(&mut self.replan_at, Some(entry.added_at + ttl));
            }
            // However often it was offered to another member meanwhile: a fleet of many lists would take as many TTLs.
            let overdue_at = entry.free_since.map(|since| since.max(seated_at) + ttl);
            let overdue = overdue_at.is_some_and(|at| now >= at);
            earlier(&mut self.replan_at, overdue_at.filter(|_| !overdue));
            let offered_in_vain = overdue && entry.planned != Some(ME);
            if offered_in_vain || !entry.missing_from.is_empty() {
                let others = parts().filter(|part| *part != mine);
                let missing = &entry.missing_from;
                let mut missing: Vec<u32> =
                    others.filter(|part| offered_in_vain || missing.contains(part)).collect();
                missing.sort_unstable();
                missing.dedup();
                entry.missing_from = missing;
            }
            let listed = |(at, part): (u32, u32)| match part {
                _ if Some(at) == me_at || part == mine => Listed::Yes,
                0 if !is_new => Listed::No,
                _ if entry.missing_from.contains(&part) => Listed::No,
                _ => Listed::Maybe,
            };
            let parts = lists.iter().map(|list| list.part(entry.hash));
            groups.entry((0..).zip(parts).map(listed).collect()).or_default().push(at);
        }
        let group = |(listed, shards): (Vec<Listed>, _)| Group { members: all(&listed), shards };
        groups.into_iter().map(group).collect()
    }
}

impl Entry {
    /// Keeps it for a while against the share, if it is not adopted yet.
    fn adopt(&mut self, now: Moment, ttl: Duration) {
        if self.adopted.is_none() {
            let doubled = ADOPTED_FOR << self.adoptions.min(ADOPTED_DOUBLES);
            self.adopted = Some(now + ttl * doubled);
            self.adoptions = self.adoptions.saturating_add(1);
        }
    }

    /// Since when it is free although a member should have taken it: since it was offered to that member, and since this member
    /// could have taken it instead.
    fn free_from(&self, seated_at: Moment) -> Option<Moment> {
        self.free_since.map(|since| since.max(self.offered).max(seated_at))
    }

    /// For how many whole TTLs it is free by now.
    fn waited(&self, now: Moment, seated_at: Moment, ttl: Duration) -> usize {
        self.free_from(seated_at).map_or(0, |since| {
            let turns = now.since(since).as_nanos() / ttl.as_nanos().max(1);
            usize::try_from(turns).unwrap_or(usize::MAX)
        })
    }
}

/// The earlier of two times, where there are two.
fn earlier(time: &mut Option<Moment>, other: Option<Moment>) {
    *time = (*time).min(other).or(*time).or(other);
}
