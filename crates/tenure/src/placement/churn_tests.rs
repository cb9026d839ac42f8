//! Property tests of placement: members and shards join and leave in any order; plans are carried out wholly, in part, or by
//! members that observe different input. Every plan keeps all guarantees.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Ids and names are numbers, so that test output is readable.
type Id = u16;
type Owners = BTreeMap<Id, Option<Id>>;

#[derive(Clone, Debug, Default, PartialEq)]
struct SimulatedFleet {
    /// Whether each member is drained.
    members: BTreeMap<Id, bool>,
    /// The owner, which may have left.
    shards: Owners,
    adopted: BTreeSet<Id>,
}

#[derive(Clone, Debug)]
enum FleetChange {
    Join(Id),
    Leave(usize),
    Drain(usize),
    Undrain(usize),
    Add(Id, u16),
    Remove(usize, usize),
    Adopt(usize),
}

/// The progress of each shard that should move, as one number: 0 not started, 1 released, 2 arrived.
#[derive(Clone, Debug)]
struct Progress(Vec<u8>);

fn id(member: Id) -> String {
    format!("web-{member}")
}

fn name(shard: Id) -> String {
    format!("tenant-{shard}")
}

fn preference_of(member: Id, shard: Id) -> u64 {
    score(hash(&name(shard)), hash(&id(member)))
}

impl SimulatedFleet {
    fn new(members: impl IntoIterator<Item = Id>, shards: u16) -> SimulatedFleet {
        let members = members.into_iter().map(|member| (member, false)).collect();
        SimulatedFleet {
            members,
            shards: (0..shards).map(|shard| (shard, None)).collect(),
            ..SimulatedFleet::default()
        }
    }

    fn settled(mut self) -> SimulatedFleet {
        self.shards = self.plan();
        self
    }

    fn recipients(&self) -> Vec<Id> {
        self.members.iter().filter(|(_, drained)| !**drained).map(|(member, _)| *member).collect()
    }

    fn owned_by(&self, member: Id) -> Vec<Id> {
        let own = self.shards.iter().filter(|(_, owner)| **owner == Some(member));
        own.map(|(shard, _)| *shard).collect()
    }

    fn plan(&self) -> Owners {
        self.plan_listed(
            &self.members.keys().copied().collect::<Vec<_>>(),
            &self.shards.keys().copied().collect::<Vec<_>>(),
        )
    }

    /// Plans with the members and the shards listed in this order.
    fn plan_listed(&self, members: &[Id], shards: &[Id]) -> Owners {
        let ids: Vec<String> = members.iter().map(|member| id(*member)).collect();
        let names: Vec<String> = shards.iter().map(|shard| name(*shard)).collect();
        let listed: Vec<PlacementMember<'_>> = ids
            .iter()
            .zip(members)
            .map(|(id, member)| PlacementMember { id, drained: self.members[member] })
            .collect();
        let held: Vec<HeldShard<'_>> = names
            .iter()
            .zip(shards)
            .map(|(name, shard)| HeldShard {
                shard: name,
                // A member that has left has an index behind the last one, or none at all.
                owner: self.shards[shard].and_then(|owner| {
                    let index = members.iter().position(|member| *member == owner);
                    index.or((owner % 2 == 0).then_some(members.len() + usize::from(owner)))
                }),
                adopted: self.adopted.contains(shard),
            })
            .collect();
        let planned = plan(&listed, &held);
        shards.iter().zip(planned).map(|(shard, to)| (*shard, to.map(|to| members[to]))).collect()
    }

    fn change(&mut self, change: &FleetChange) {
        let nth = |fleet: &SimulatedFleet, n: usize| {
            let many = fleet.members.len();
            fleet.members.keys().nth(n % many.max(1)).copied()
        };
        match *change {
            FleetChange::Join(member) if self.members.len() < 9 => {
                self.members.entry(member).or_insert(false);
            }
            FleetChange::Join(_) => {}
            FleetChange::Leave(n) => {
                nth(self, n).map(|member| self.members.remove(&member));
            }
            FleetChange::Drain(n) => {
                nth(self, n).map(|member| self.members.insert(member, true));
            }
            FleetChange::Undrain(n) => {
                nth(self, n).map(|member| self.members.insert(member, false));
            }
            FleetChange::Add(first, many) => {
                for shard in first..first + many {
                    self.shards.entry(shard).or_insert(None);
                }
            }
            FleetChange::Remove(first, many) => {
                let gone: Vec<Id> = self.shards.keys().skip(first).take(many).copied().collect();
                self.shards.retain(|shard, _| !gone.contains(shard));
            }
            FleetChange::Adopt(n) => {
                let shard = self.shards.keys().nth(n % self.shards.len().max(1)).copied();
                shard.map(|shard| self.adopted.insert(shard));
            }
        }
    }

    /// Carries out a part of a plan. Returns how many shards were released.
    fn carry_out(&mut self, planned: &Owners, progress: &Progress) -> usize {
        let mut released = 0;
        let mut steps = progress.0.iter().cycle();
        for (shard, owner) in &mut self.shards {
            let to = planned[shard];
            if *owner == to {
                continue;
            }
            match steps.next().copied().unwrap_or(2) {
                0 => {}
                1 => {
                    released += usize::from(owner.is_some());
                    *owner = None;
                }
                _ => {
                    released += usize::from(owner.is_some());
                    *owner = to;
                }
            }
        }
        released
    }
}

/// The fewest moves that make the shares even: tries every choice of the members that have one more.
fn fewest_moves(owned: &[usize], shards: usize) -> usize {
    let (even, left_over) = (shards / owned.len(), shards % owned.len());
    (0..1_u32 << owned.len())
        .filter(|chosen| chosen.count_ones() as usize == left_over)
        .map(|chosen| {
            let share = |member: usize| even + (chosen as usize >> member & 1);
            owned
                .iter()
                .enumerate()
                .map(|(member, owned)| owned.saturating_sub(share(member)))
                .sum()
        })
        .min()
        .unwrap_or(0)
}

/// Checks all guarantees of one plan.
fn check_guarantees(fleet: &SimulatedFleet, planned: &Owners) {
    let recipients = fleet.recipients();
    if recipients.is_empty() {
        assert!(planned.values().all(Option::is_none), "no member takes shards");
        return;
    }
    let after = SimulatedFleet { shards: planned.clone(), ..fleet.clone() };
    let (shards, even) = (fleet.shards.len(), fleet.shards.len() / recipients.len());

    for recipient in &recipients {
        let share = after.owned_by(*recipient).len();
        assert!(
            (even..=shards.div_ceil(recipients.len())).contains(&share),
            "{recipient} has {share}"
        );
    }
    assert!(planned.values().all(|owner| owner.is_some_and(|owner| recipients.contains(&owner))));

    let owned: Vec<usize> =
        recipients.iter().map(|recipient| fleet.owned_by(*recipient).len()).collect();
    let is_recipient = |owner: &Option<Id>| owner.is_some_and(|owner| recipients.contains(&owner));
    let moves =
        fleet.shards.iter().filter(|(shard, from)| is_recipient(from) && planned[shard] != **from);
    assert_eq!(moves.count(), fewest_moves(&owned, shards), "as few moves as possible");

    let mut unassigned: BTreeSet<(u64, String, Id)> = BTreeSet::new();
    let mut room: BTreeMap<Id, usize> = BTreeMap::new();
    for recipient in &recipients {
        let (had, has) = (fleet.owned_by(*recipient), after.owned_by(*recipient));
        let (kept, released): (Vec<Id>, Vec<Id>) =
            had.iter().partition(|shard| has.contains(shard));
        assert!(released.is_empty() || kept.len() == has.len(), "{recipient} releases and claims");
        assert!(
            released.is_empty() || had.len() > even,
            "{recipient} releases from within its share"
        );
        let preference =
            |shard: &Id| (fleet.adopted.contains(shard), preference_of(*recipient, *shard));
        if let (Some(least), Some(most)) =
            (kept.iter().map(preference).min(), released.iter().map(preference).max())
        {
            assert!(
                most <= least,
                "{recipient} releases a shard that it prefers to one that it keeps"
            );
        }
        room.insert(*recipient, has.len() - kept.len());
        unassigned.extend(released.iter().map(|shard| (hash(&name(*shard)), name(*shard), *shard)));
    }
    let free = fleet.shards.iter().filter(|(_, from)| !is_recipient(from));
    unassigned.extend(free.map(|(shard, _)| (hash(&name(*shard)), name(*shard), *shard)));
    for (_, _, shard) in unassigned {
        let open = room.iter().filter(|(_, room)| **room > 0).map(|(recipient, _)| *recipient);
        let best = open.max_by_key(|recipient| preference_of(*recipient, shard));
        assert_eq!(
            planned[&shard], best,
            "{shard} goes to the member with room and the highest preference"
        );
        *best.and_then(|best| room.get_mut(&best)).unwrap() -= 1;
    }

    assert_eq!(after.plan(), *planned, "nothing moves while nothing changes");
}

fn change() -> impl Strategy<Value = FleetChange> {
    let nth = 0..16_usize;
    prop_oneof![
        4 => (0..24_u16).prop_map(FleetChange::Join),
        3 => nth.clone().prop_map(FleetChange::Leave),
        2 => nth.clone().prop_map(FleetChange::Drain),
        2 => nth.prop_map(FleetChange::Undrain),
        3 => (0..150_u16, 1..60_u16).prop_map(|(first, many)| FleetChange::Add(first, many)),
        2 => (0..150_usize, 1..60_usize).prop_map(|(first, many)| FleetChange::Remove(first, many)),
        1 => (0..200_usize).prop_map(FleetChange::Adopt),
    ]
}

fn progress() -> impl Strategy<Value = Progress> {
    prop_oneof![
        Just(Progress(vec![2])),
        Just(Progress(vec![1])),
        vec(0..3_u8, 1..40).prop_map(Progress),
    ]
}

fn ids(many: std::ops::Range<usize>) -> impl Strategy<Value = BTreeSet<Id>> {
    proptest::collection::btree_set(0..200_u16, many)
}

fn shuffled(many: Id) -> impl Strategy<Value = Vec<Id>> {
    Just((0..many).collect::<Vec<Id>>()).prop_shuffle()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn a_plan_keeps_its_guarantees_after_any_changes(
        steps in vec((change(), progress()), 1..30),
    ) {
        let mut fleet = SimulatedFleet::new(0..3, 20);
        for (change, progress) in &steps {
            fleet.change(change);
            let planned = fleet.plan();
            check_guarantees(&fleet, &planned);
            fleet.carry_out(&planned, progress);
            prop_assert_eq!(fleet.plan(), planned, "carried out in part, it is still the plan");
        }
    }

    #[test]
    fn a_plan_from_any_owners_keeps_its_guarantees(
        members in ids(1..9),
        drained in vec(any::<bool>(), 9),
        owners in vec(proptest::option::of(0..9_usize), 0..120),
    ) {
        let all: Vec<Id> = members.iter().copied().collect();
        let known = |owner: usize| all.get(owner).copied().unwrap_or(999);
        let fleet = SimulatedFleet {
            members: members.into_iter().zip(drained).collect(),
            shards: (0..).zip(owners.into_iter().map(|owner| owner.map(known))).collect(),
            adopted: BTreeSet::new(),
        };
        check_guarantees(&fleet, &fleet.plan());
    }

    #[test]
    fn the_order_of_the_lists_makes_no_difference(
        steps in vec((change(), progress()), 1..10),
        members in shuffled(24),
        shards in shuffled(210),
    ) {
        let mut fleet = SimulatedFleet::new(0..3, 20);
        for (change, progress) in &steps {
            fleet.change(change);
            let planned = fleet.plan();
            let (mut members, mut shards) = (members.clone(), shards.clone());
            members.retain(|member| fleet.members.contains_key(member));
            shards.retain(|shard| fleet.shards.contains_key(shard));
            prop_assert_eq!(&fleet.plan_listed(&members, &shards), &planned);
            fleet.carry_out(&planned, progress);
        }
    }

    #[test]
    fn a_join_moves_the_share_of_the_newcomer_and_nothing_else(
        members in ids(1..40), newcomer in 200..300_u16, shards in 0..400_u16,
        rounds in vec(progress(), 0..6),
    ) {
        let mut fleet = SimulatedFleet::new(members, shards).settled();
        let before = fleet.shards.clone();
        fleet.members.insert(newcomer, false);
        let (shards, many) = (usize::from(shards), fleet.members.len());
        let planned = fleet.plan();
        let mut released = 0;
        for progress in rounds.iter().chain([&Progress(vec![2])]) {
            released += fleet.carry_out(&fleet.plan(), progress);
        }
        prop_assert_eq!(&fleet.shards, &planned, "however it was carried out");
        prop_assert!(released <= shards.div_ceil(many) + many);
        prop_assert_eq!(released, shards / many, "one more would be one move more");
        prop_assert_eq!(fleet.owned_by(newcomer).len(), released);
        for (shard, owner) in before {
            prop_assert!(planned[&shard] == owner || planned[&shard] == Some(newcomer));
        }
    }

    #[test]
    fn a_leave_moves_the_shards_of_the_leaver_and_nothing_else(
        members in ids(2..40), leaver in any::<proptest::sample::Index>(), shards in 0..400_u16,
        drained in any::<bool>(), rounds in vec(progress(), 0..6),
    ) {
        let all: Vec<Id> = members.iter().copied().collect();
        let leaver = *leaver.get(&all);
        let mut fleet = SimulatedFleet::new(members, shards).settled();
        let before = fleet.shards.clone();
        if drained {
            fleet.members.insert(leaver, true);
        } else {
            fleet.members.remove(&leaver);
        }
        let planned = fleet.plan();
        for progress in rounds.iter().chain([&Progress(vec![2])]) {
            fleet.carry_out(&fleet.plan(), progress);
        }
        prop_assert_eq!(&fleet.shards, &planned, "however it was carried out");
        let moved = before.iter().filter(|(shard, owner)| planned[shard] != **owner).count();
        let many = fleet.recipients().len();
        prop_assert!(moved <= usize::from(shards).div_ceil(many) + many);
        for (shard, owner) in before {
            prop_assert!(planned[&shard] == owner || owner == Some(leaver));
        }
    }

    /// Each member knows only some of the other members and the state of the previous round. It releases the shards that its
    /// own plan assigns to others, and claims the free shards that its plan assigns to it. Once all members observe the same
    /// state, two rounds are enough: one to release, one to claim.
    #[test]
    fn members_with_different_views_settle_once_they_agree(
        members in ids(1..9), shards in 0..120_u16,
        views in vec(vec(any::<u16>(), 9), 0..8),
    ) {
        let all: Vec<Id> = members.iter().copied().collect();
        let mut fleet = SimulatedFleet::new(members, shards);
        let mut stale = fleet.clone();
        let everything = vec![u16::MAX; 9];
        let confused = views.len();
        let mut expected_moves = 0;
        let mut released = 0;
        for (round, observed) in views.iter().chain([&everything, &everything]).enumerate() {
            let agreed = round >= confused;
            if round == confused {
                let owned = all.iter().map(|member| fleet.owned_by(*member).len());
                expected_moves = fewest_moves(&owned.collect::<Vec<_>>(), fleet.shards.len());
            }
            let now = fleet.clone();
            for (index, member) in all.iter().enumerate() {
                let mut view = if agreed { now.clone() } else { stale.clone() };
                let observes = |other: usize| other == index || observed[index] >> other & 1 == 1;
                let observed = (0..all.len()).filter(|other| observes(*other));
                view.members = observed.map(|other| (all[other], false)).collect();
                let planned = view.plan();
                for (shard, owner) in &mut fleet.shards {
                    let mine = planned[shard] == Some(*member);
                    if *owner == Some(*member) && !mine {
                        *owner = None;
                        released += usize::from(agreed);
                    } else if owner.is_none() && mine {
                        *owner = Some(*member);
                    }
                }
            }
            stale = now;
        }
        prop_assert_eq!(&fleet.shards, &fleet.plan());
        prop_assert_eq!(released, expected_moves, "as few as if all members had always agreed");
    }

    #[test]
    fn plans_by_name_and_by_hash_are_equal(
        owners in vec((proptest::option::of(0..7_usize), any::<bool>()), 0..200),
        drained in vec(proptest::bool::weighted(0.2), 1..7),
    ) {
        let ids: Vec<String> = (0..).take(drained.len()).map(id).collect();
        let names: Vec<String> = (0..).take(owners.len()).map(name).collect();
        let members: Vec<PlacementMember<'_>> =
            ids.iter().zip(drained).map(|(id, drained)| PlacementMember { id, drained }).collect();
        let (mut held, mut items) = (Vec::new(), Vec::new());
        for (shard, (owner, adopted)) in names.iter().zip(owners) {
            held.push(HeldShard { shard, owner, adopted });
            let owner = owner.map(|owner| u32::try_from(owner).unwrap());
            items.push(PlacementShard { hash: hash(shard), owner, adopted });
        }
        let by_hash: Vec<Option<usize>> = plan_hashed(&members, &items)
            .into_iter()
            .map(|owner| owner.map(|owner| owner as usize))
            .collect();
        prop_assert_eq!(plan(&members, &held), by_hash);
    }
}
