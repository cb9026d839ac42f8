//! PURE: removed shards: shards without an owner that are on no member's list any more, as far as the announced digests tell.
//!
//! The store keeps the record of a shard after its last owner, so a removed shard looks like a shard that no member claims. A
//! digest is the exclusive or of the listed shards, part by part: if the owned shards of a part and some of the unowned shards
//! add up to a member's value, then exactly these are on its list. If a member's value cannot be explained, all shards of the
//! part count as listed.

use std::collections::{BTreeMap, BTreeSet};

use super::list_digest::{part_of, word_of};
use super::{Shard, Snapshot};
use crate::placement;

/// Up to this many unowned shards in one part, all combinations are tried. With more, only the combination without any of them
/// is.
const MAX_COMBINED_SHARDS: usize = 10;

/// The known shards of one part of the digests.
#[derive(Default)]
struct ListPart<'a> {
    /// A hash that falls into this part.
    hash: u64,
    /// The exclusive or of the owned shards.
    owned: u32,
    unowned: Vec<(&'a Shard, u32)>,
}

impl Snapshot {
    /// Shards without an owner that no member lists. Empty while the lists are not known: a member has not announced its list,
    /// or there is no member. A removed shard is missing here if the store does not know all shards of its part of the digest.
    pub fn removed(&self) -> BTreeSet<&Shard> {
        let lists = || self.members.iter().map(|member| &member.list);
        if self.members.is_empty() || lists().any(|list| !list.is_announced()) {
            return BTreeSet::new();
        }
        let mut parts: BTreeMap<usize, ListPart<'_>> = BTreeMap::new();
        for (shard, owned) in &self.shards {
            let hash = placement::hash(shard.as_str());
            let part = parts.entry(part_of(hash)).or_default();
            part.hash = hash;
            match owned.owner {
                Some(_) => part.owned ^= word_of(hash),
                None => part.unowned.push((shard, word_of(hash))),
            }
        }
        let mut removed = BTreeSet::new();
        for part in parts.values().filter(|part| !part.unowned.is_empty()) {
            // A bit for each shard without an owner that a member lists.
            let listed = lists().map(|list| part.listed(list.part(part.hash)));
            let Some(listed) = listed.reduce(|one, other| Some(one? | other?)).flatten() else {
                continue;
            };
            let unowned = part.unowned.iter().enumerate();
            removed
                .extend(unowned.filter(|(at, _)| !has(listed, *at)).map(|(_, (shard, _))| shard));
        }
        removed
    }
}

impl ListPart<'_> {
    /// Which of the unowned shards are on a list with this value, one bit each; `None` if no combination explains the value.
    fn listed(&self, value: u32) -> Option<u32> {
        let combinations =
            1 << if self.unowned.len() <= MAX_COMBINED_SHARDS { self.unowned.len() } else { 0 };
        let sum = |listed: u32| {
            let unowned = self.unowned.iter().enumerate();
            let words = unowned.filter(|(at, _)| has(listed, *at)).map(|(_, (_, word))| *word);
            words.fold(self.owned, |sum, word| sum ^ word)
        };
        // Zero: the list has no shard in this part, even if other members own shards there.
        if value == 0 { Some(0) } else { (0..combinations).find(|listed| sum(*listed) == value) }
    }
}

fn has(bits: u32, at: usize) -> bool {
    bits.checked_shr(u32::try_from(at).unwrap_or(u32::MAX)).is_some_and(|bits| bits & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{ListDigest, Member, OwnedShard};
    use crate::lease::CandidateId;

    fn shards(range: std::ops::Range<usize>) -> Vec<Shard> {
        range.map(|at| Shard::new(&format!("s{at}")).unwrap()).collect()
    }

    /// Members with these lists; `known` shards, of which `owned` have an owner.
    fn snapshot(lists: &[ListDigest], known: &[Shard], owned: &[Shard]) -> Snapshot {
        let member = |(at, list): (usize, &ListDigest)| Member {
            id: CandidateId::new(&format!("m{at}")).unwrap(),
            note: String::new(),
            drained: false,
            list: list.clone(),
        };
        let shard = |shard: &Shard| {
            let owner = owned.contains(shard).then(|| "m0".to_owned());
            (shard.clone(), OwnedShard { owner, ..OwnedShard::default() })
        };
        Snapshot {
            members: lists.iter().enumerate().map(member).collect(),
            shards: known.iter().map(shard).collect(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn shards_on_no_list_are_removed_and_unowned_ones_are_not() {
        for (listed, owned, known) in
            [(10, 10, 13), (10, 7, 13), (1_000, 1_000, 3_000), (900, 890, 910)]
        {
            let (all, listed) = (shards(0..known), shards(0..listed));
            let list = ListDigest::of(&listed);
            let snapshot = snapshot(&[list.clone(), list], &all, &all[..owned]);
            let removed: Vec<&Shard> = snapshot.removed().into_iter().collect();
            let mut expected: Vec<&Shard> =
                all.iter().filter(|shard| !listed.contains(shard)).collect();
            expected.sort();
            assert_eq!(removed, expected);
        }
    }

    #[test]
    fn an_undecidable_shard_is_not_removed() {
        let all = shards(0..20);
        let list = ListDigest::of(&all[..10]);
        let none = BTreeSet::new();
        assert_eq!(snapshot(&[], &all, &all[..10]).removed(), none, "no member");
        let unannounced = [list.clone(), ListDigest::default()];
        assert_eq!(snapshot(&unannounced, &all, &all[..10]).removed(), none);
        // A shard on one of two lists is listed.
        let both = [list, ListDigest::of(&all)];
        assert_eq!(snapshot(&both, &all, &all[..10]).removed(), none);
        // A listed shard that the store does not know yet hides the others of its part, and nothing more.
        let many = shards(0..2_000);
        let lists = [ListDigest::of(&many[..1_000])];
        let snapshot = snapshot(&lists, &many[1..], &many[1..1_000]);
        let removed = snapshot.removed().len();
        assert!((900..1_000).contains(&removed), "{removed}");
    }
}
