//! Members that list different shards.

use super::*;

/// Shards that no test lists otherwise, enough that each part of a digest has some.
fn other_names() -> Vec<Shard> {
    (0..2_000).map(|at| Shard::new(&format!("other{at:05}")).expect("a shard")).collect()
}

impl Desk {
    /// The member `a` and these others, which have announced these lists.
    fn members_list(&mut self, others: &[(&str, ListDigest)]) {
        let own = (id("a"), self.state(false));
        let member = |(other, list): &(&str, ListDigest)| {
            (id(other), MemberState { drained: false, list: list.clone() })
        };
        let members = others.iter().map(member).chain([own]).collect();
        self.steward.members(self.now, members);
    }

    /// It has just joined and read these shards; each lease was observed, and none has an owner.
    fn joined(shards: usize) -> Self {
        let mut desk = Desk::new();
        desk.steward.seated(desk.now);
        desk.list(&names(shards), &[]);
        desk.answers(1..=shards as ShardNumber);
        desk
    }
}

#[test]
fn a_member_with_an_empty_list_is_offered_no_shard() {
    let mut desk = Desk::joined(12);
    desk.members_list(&[("b", ListDigest::of(&[]))]);
    assert_eq!(claims(&desk.waits(Duration::from_secs(1))).len(), 12);
}

#[test]
fn new_shards_are_shared_with_members_that_may_be_about_to_list_them() {
    let mut desk = Desk::joined(12);
    desk.members_list(&[("b", ListDigest::of(&other_names()))]);
    let claimed = claims(&desk.waits(Duration::from_secs(1)));
    assert_eq!(claimed.len(), 6);
    desk.leads(claimed);
    // And claimed after a TTL, where that member does not list them after all.
    let rest = claims(&desk.waits(TTL));
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
        let mut desk = Desk::seated(&[], 300);
        desk.leads(1..=300);
        let listed_by_both = announced == ListDigest::of(&names(1));
        desk.members_list(&[("b", announced)]);
        let left = desk.waits(3 * TTL);
        let left = leaves(&left);
        assert!(left.is_empty() || listed_by_both, "{left:?}");
        // A part has one shard or more; a single shard of one part may move.
        assert!(left.len() <= 1, "{left:?}");
    }
}

#[test]
fn what_a_member_with_another_list_owns_is_not_claimed_until_it_is_free() {
    let mut desk = Desk::joined(4);
    desk.members_list(&[("b", ListDigest::of(&other_names()))]);
    for number in 1..=4 {
        desk.steward.owner(desk.now, number, Some("b"), true);
    }
    assert_eq!(claims(&desk.waits(3 * TTL)), NONE);
    for number in 1..=4 {
        desk.steward.owner(desk.now, number, None, true);
    }
    assert_eq!(claims(&desk.waits(Duration::from_secs(1))).len(), 4);
}

#[test]
fn one_more_shard_on_one_list_moves_no_other_shard() {
    let mut desk = Desk::seated(&["b"], 1_000);
    let claimed = desk.steward.entries.iter().filter(|(_, entry)| entry.wanted);
    let claimed: Vec<ShardNumber> = claimed.map(|(number, _)| *number).collect();
    assert_eq!(claimed.len(), 500);
    desk.leads(claimed.iter().copied());
    for number in (1..=1_000).filter(|number| !claimed.contains(number)) {
        desk.steward.owner(desk.now, number, Some("b"), true);
    }
    desk.waits(2 * TTL);
    let before = desk.state(false).list;
    let mut orders = Vec::new();
    desk.steward.shards(desk.now, &names(1_001), |_| false, &mut orders);
    desk.answers([1_001]);
    desk.members_list(&[("b", before)]);
    let orders = desk.waits(Duration::from_secs(5));
    assert!(leaves(&orders).is_empty(), "{orders:?}");
    assert!(claims(&orders).iter().all(|number| *number == 1_001), "{orders:?}");
}
