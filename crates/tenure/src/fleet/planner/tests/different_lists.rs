//! Plans of members that list different shards.

use super::*;

/// Shards that no other list contains, enough that each part of a digest has some.
fn other_names() -> Vec<Shard> {
    (0..2_000).map(|at| Shard::new(&format!("other{at:05}")).expect("a shard")).collect()
}

impl PlannerHarness {
    /// The member `a` and these others, which have announced these lists.
    fn members_list(&mut self, others: &[(&str, ListDigest)]) {
        let own = (id("a"), self.state(false));
        let member = |(other, list): &(&str, ListDigest)| {
            (id(other), MemberState { drained: false, list: list.clone() })
        };
        let members = others.iter().map(member).chain([own]).collect();
        self.planner.members(self.now, members);
    }

    /// It has just joined and read these shards; all leases were observed, and none has an owner.
    fn joined(shards: usize) -> Self {
        let mut harness = PlannerHarness::new();
        harness.planner.membership_acquired(harness.now);
        harness.list(&names(shards), &[]);
        harness.answer(1..=shards as ShardNumber);
        harness
    }
}

#[test]
fn a_member_with_an_empty_list_is_offered_no_shard() {
    let mut harness = PlannerHarness::joined(12);
    harness.members_list(&[("b", ListDigest::of(&[]))]);
    assert_eq!(claims(&harness.advance(Duration::from_secs(1))).len(), 12);
}

#[test]
fn new_shards_are_shared_with_members_that_may_be_about_to_list_them() {
    let mut harness = PlannerHarness::joined(12);
    harness.members_list(&[("b", ListDigest::of(&other_names()))]);
    let claimed = claims(&harness.advance(Duration::from_secs(1)));
    assert_eq!(claimed.len(), 6);
    harness.lead(claimed);
    // After a TTL it claims them itself, because the other member does not list them.
    let rest = claims(&harness.advance(TTL));
    assert_eq!(rest.len(), 6);
}

#[test]
fn no_shard_is_taken_from_its_owner_for_a_member_that_may_not_list_it() {
    for announced in [
        ListDigest::default(),
        ListDigest::of(&[]),
        ListDigest::of(&names(1)),
        ListDigest::of(&other_names()),
    ] {
        let mut harness = PlannerHarness::member_with(&[], 300);
        harness.lead(1..=300);
        let listed_by_both = announced == ListDigest::of(&names(1));
        harness.members_list(&[("b", announced)]);
        let left = harness.advance(3 * TTL);
        let left = releases(&left);
        assert!(left.is_empty() || listed_by_both, "{left:?}");
        // A part has one shard or more; a single shard of one part may move.
        assert!(left.len() <= 1, "{left:?}");
    }
}

#[test]
fn shards_of_a_member_with_another_list_are_not_claimed_until_they_are_free() {
    let mut harness = PlannerHarness::joined(4);
    harness.members_list(&[("b", ListDigest::of(&other_names()))]);
    for number in 1..=4 {
        harness.planner.owner(harness.now, number, Some("b"), true);
    }
    assert_eq!(claims(&harness.advance(3 * TTL)), NONE);
    for number in 1..=4 {
        harness.planner.owner(harness.now, number, None, true);
    }
    assert_eq!(claims(&harness.advance(Duration::from_secs(1))).len(), 4);
}

#[test]
fn one_more_shard_on_one_list_moves_no_other_shard() {
    let mut harness = PlannerHarness::member_with(&["b"], 1_000);
    let claimed = harness.planner.entries.iter().filter(|(_, entry)| entry.wanted);
    let claimed: Vec<ShardNumber> = claimed.map(|(number, _)| *number).collect();
    assert_eq!(claimed.len(), 500);
    harness.lead(claimed.iter().copied());
    for number in (1..=1_000).filter(|number| !claimed.contains(number)) {
        harness.planner.owner(harness.now, number, Some("b"), true);
    }
    harness.advance(2 * TTL);
    let before = harness.state(false).list;
    let mut steps = Vec::new();
    harness.planner.shards(harness.now, &names(1_001), |_| false, &mut steps);
    harness.answer([1_001]);
    harness.members_list(&[("b", before)]);
    let steps = harness.advance(Duration::from_secs(5));
    assert!(releases(&steps).is_empty(), "{steps:?}");
    assert!(claims(&steps).iter().all(|number| *number == 1_001), "{steps:?}");
}
