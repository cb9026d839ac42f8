//! Placement examples that can be checked by hand, and plans that must never change.

use super::*;

fn names(shards: usize) -> Vec<String> {
    (0..shards).map(|number| format!("shard-{number}")).collect()
}

fn planned(
    members: &[PlacementMember<'_>],
    names: &[String],
    owners: &[Option<usize>],
) -> Vec<Option<usize>> {
    let held: Vec<_> =
        names.iter().zip(owners).map(|(name, owner)| HeldShard::new(name, *owner)).collect();
    plan(members, &held)
}

fn from_nothing(members: &[PlacementMember<'_>], shards: usize) -> Vec<Option<usize>> {
    planned(members, &names(shards), &vec![None; shards])
}

/// The number of shards of each member.
fn counts(members: &[PlacementMember<'_>], owners: &[Option<usize>]) -> Vec<usize> {
    let owned = |member| owners.iter().filter(|owner| **owner == Some(member)).count();
    (0..members.len()).map(owned).collect()
}

fn members<const N: usize>(ids: [&str; N]) -> [PlacementMember<'_>; N] {
    ids.map(PlacementMember::new)
}

#[test]
fn nine_shards_are_three_for_each_of_three() {
    let three = members(["a", "b", "c"]);
    assert_eq!(counts(&three, &from_nothing(&three, 9)), [3, 3, 3]);
}

#[test]
fn ten_shards_are_two_for_each_of_five() {
    let five = members(["a", "b", "c", "d", "e"]);
    assert_eq!(counts(&five, &from_nothing(&five, 10)), [2; 5]);
}

#[test]
fn a_third_member_takes_three_of_ten_shards_and_nothing_else_moves() {
    let three = members(["a", "b", "c"]);
    let before = from_nothing(&three[..2], 10);
    assert_eq!(counts(&three, &before), [5, 5, 0]);
    let after = planned(&three, &names(10), &before);
    assert_eq!(counts(&three, &after)[2], 3);
    assert!(before.iter().zip(&after).all(|(from, to)| from == to || *to == Some(2)));
}

#[test]
fn when_a_member_leaves_only_its_shards_move() {
    let three = members(["a", "b", "c"]);
    let before = from_nothing(&three, 10);
    let after = planned(&three[..2], &names(10), &before);
    assert_eq!(counts(&three, &after), [5, 5, 0]);
    assert!(before.iter().zip(&after).all(|(from, to)| from == to || *from == Some(2)));
}

#[test]
fn a_drained_member_releases_all_shards_and_takes_its_share_after_undrain() {
    let mut three = members(["a", "b", "c"]);
    let before = from_nothing(&three, 9);
    three[1] = PlacementMember::drained("b");
    let drained = planned(&three, &names(9), &before);
    let mut shares = counts(&three, &drained);
    assert_eq!(shares.remove(1), 0);
    shares.sort_unstable();
    assert_eq!(shares, [4, 5]);
    assert!(before.iter().zip(&drained).all(|(from, to)| from == to || *from == Some(1)));

    three[1] = PlacementMember::new("b");
    assert_eq!(counts(&three, &planned(&three, &names(9), &drained)), [3, 3, 3]);
}

#[test]
fn no_shard_is_planned_without_an_undrained_member() {
    assert_eq!(from_nothing(&[], 3), [None; 3]);
    let all = [PlacementMember::drained("a"), PlacementMember::drained("b")];
    assert_eq!(planned(&all, &names(3), &[Some(0), Some(1), None]), [None; 3]);
    assert_eq!(preferred(&all, "shard-1"), None);
    assert!(from_nothing(&members(["a"]), 0).is_empty());
}

#[test]
fn an_owner_that_is_not_a_member_counts_as_no_owner() {
    let two = members(["a", "b"]);
    let unknown_owners = [Some(2), Some(usize::MAX), Some(u32::MAX as usize + 1), None, None, None];
    assert_eq!(planned(&two, &names(6), &unknown_owners), from_nothing(&two, 6));
}

#[test]
fn fewer_shards_than_members_stay_where_they_are() {
    let four = members(["a", "b", "c", "d"]);
    for owners in [[Some(0), Some(1)], [Some(3), Some(2)], [Some(1), Some(3)]] {
        assert_eq!(planned(&four, &names(2), &owners), owners);
    }
}

#[test]
fn adopted_shards_are_released_last() {
    let two = members(["a", "b"]);
    let names = names(10);
    let released = |adopted: &dyn Fn(usize) -> bool| -> Vec<usize> {
        let held: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(shard, name)| HeldShard { shard: name, owner: Some(0), adopted: adopted(shard) })
            .collect();
        let after = plan(&two, &held);
        (0..10).filter(|shard| after[*shard] == Some(1)).collect()
    };
    let by_preference = released(&|_| false);
    assert_eq!(by_preference.len(), 5);
    let others: Vec<usize> = (0..10).filter(|shard| !by_preference.contains(shard)).collect();
    assert_eq!(released(&|shard| by_preference.contains(&shard)), others);
    assert_eq!(released(&|_| true), by_preference, "all adopted is none adopted");
}

#[test]
fn shards_with_the_same_hash_are_ordered_by_name() {
    let same_hash = ["tw000476L@?{9@@#", "twin-one-shards!"];
    assert_eq!(hash(same_hash[0]), hash(same_hash[1]));
    let two = members(["a", "b"]);
    let forward: Vec<_> = same_hash.iter().map(|name| HeldShard::new(name, None)).collect();
    let backward: Vec<_> = forward.iter().rev().copied().collect();
    let mut planned_backward = plan(&two, &backward);
    planned_backward.reverse();
    assert_eq!(plan(&two, &forward), planned_backward);
    assert_eq!(counts(&two, &planned_backward), [1, 1]);
}

#[test]
fn duplicate_members_and_shards_are_harmless() {
    let same = members(["a", "a", "b"]);
    let names = vec!["shard".to_owned(); 9];
    let after = planned(&same, &names, &[None; 9]);
    assert_eq!(counts(&same, &after), [3, 3, 3]);
    assert_eq!(planned(&same, &names, &after), after);
}

// From a second implementation in another language: every later version must compute the same plan.
#[test]
fn a_plan_is_the_same_in_every_version() {
    let all = members(["web-1", "web-2", "web-3"]);
    let owners = |digits: &str| -> Vec<Option<usize>> {
        digits.bytes().map(|digit| Some(usize::from(digit - b'1'))).collect()
    };
    let two = from_nothing(&all[..2], 10);
    assert_eq!(two, owners("2221121112"));
    let joined = planned(&all, &names(10), &two);
    assert_eq!(joined, owners("2323123112"));
    let mut left = all;
    left[0].drained = true;
    assert_eq!(planned(&left, &names(10), &joined), owners("2323323322"));
}

#[test]
fn all_members_are_preferred_about_equally_often() {
    for many in [2, 3, 7, 100] {
        let ids: Vec<String> = (1..=many).map(|number| format!("web-{number}")).collect();
        let all: Vec<_> = ids.iter().map(|id| PlacementMember::new(id)).collect();
        let first: Vec<_> = names(1_000 * many).iter().map(|name| preferred(&all, name)).collect();
        // 1000 each, five standard deviations to either side.
        for (id, times) in ids.iter().zip(counts(&all, &first)) {
            assert!((850..=1150).contains(&times), "{id} of {many} is preferred {times} times");
        }
    }
}

#[test]
fn the_preferred_member_changes_only_for_the_shards_of_the_member_that_left() {
    let four = members(["a", "b", "c", "d"]);
    let mut without = four;
    without[2].drained = true;
    for name in names(1_000) {
        match preferred(&four, &name) {
            Some(2) => assert_ne!(preferred(&without, &name), Some(2)),
            other => assert_eq!(preferred(&without, &name), other),
        }
    }
}
