//! Members and shards that come and go in any order, with plans carried out wholly, by half, or by members that see
//! different things: what is promised of a plan holds for each.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Ids and names are numbers, so that what a test prints can be read.
type Id = u16;
type Owners = BTreeMap<Id, Option<Id>>;

#[derive(Clone, Debug, Default, PartialEq)]
struct World {
    /// Whether each is drained.
    members: BTreeMap<Id, bool>,
    /// The owner, which may be gone.
    shards: Owners,
    adopted: BTreeSet<Id>,
}

#[derive(Clone, Debug)]
enum Change {
    Join(Id),
    Leave(usize),
    Drain(usize),
    Undrain(usize),
    Add(Id, u16),
    Remove(usize, usize),
    Adopt(usize),
}

/// What becomes of the shards that should move, each by one number: it has not begun, is on its way, or has arrived.
#[derive(Clone, Debug)]
struct Progress(Vec<u8>);

fn id(member: Id) -> String {
    format!("web-{member}")
}

fn name(shard: Id) -> String {
    format!("tenant-{shard}")
}

fn likes(member: Id, shard: Id) -> u64 {
    score(hash(&name(shard)), hash(&id(member)))
}

impl World {
    fn new(members: impl IntoIterator<Item = Id>, shards: u16) -> World {
        let members = members.into_iter().map(|member| (member, false)).collect();
        World {
            members,
            shards: (0..shards).map(|shard| (shard, None)).collect(),
            ..World::default()
        }
    }

    fn settled(mut self) -> World {
        self.shards = self.plan();
        self
    }

    fn takers(&self) -> Vec<Id> {
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

    /// With the members and the shards listed in this order.
    fn plan_listed(&self, members: &[Id], shards: &[Id]) -> Owners {
        let ids: Vec<String> = members.iter().map(|member| id(*member)).collect();
        let names: Vec<String> = shards.iter().map(|shard| name(*shard)).collect();
        let listed: Vec<PlacementMember<'_>> = ids
            .iter()
            .zip(members)
            .map(|(id, member)| PlacementMember { id, drained: self.members[member] })
            .collect();
        let held: Vec<HeldShards<'_>> = names
            .iter()
            .zip(shards)
            .map(|(name, shard)| HeldShards {
                shard: name,
                // Whoever is gone has an index behind the last, or none at all.
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

    fn change(&mut self, change: &Change) {
        let nth = |world: &World, n: usize| {
            let many = world.members.len();
            world.members.keys().nth(n % many.max(1)).copied()
        };
        match *change {
            Change::Join(member) if self.members.len() < 9 => {
                self.members.entry(member).or_insert(false);
            }
            Change::Join(_) => {}
            Change::Leave(n) => {
                nth(self, n).map(|member| self.members.remove(&member));
            }
            Change::Drain(n) => {
                nth(self, n).map(|member| self.members.insert(member, true));
            }
            Change::Undrain(n) => {
                nth(self, n).map(|member| self.members.insert(member, false));
            }
            Change::Add(first, many) => {
                for shard in first..first + many {
                    self.shards.entry(shard).or_insert(None);
                }
            }
            Change::Remove(first, many) => {
                let gone: Vec<Id> = self.shards.keys().skip(first).take(many).copied().collect();
                self.shards.retain(|shard, _| !gone.contains(shard));
            }
            Change::Adopt(n) => {
                let shard = self.shards.keys().nth(n % self.shards.len().max(1)).copied();
                shard.map(|shard| self.adopted.insert(shard));
            }
        }
    }

    /// Carries out some of a plan. Says how many shards were given up.
    fn carry_out(&mut self, planned: &Owners, progress: &Progress) -> usize {
        let mut given_up = 0;
        let mut fates = progress.0.iter().cycle();
        for (shard, owner) in &mut self.shards {
            let to = planned[shard];
            if *owner == to {
                continue;
            }
            match fates.next().copied().unwrap_or(2) {
                0 => {}
                1 => {
                    given_up += usize::from(owner.is_some());
                    *owner = None;
                }
                _ => {
                    given_up += usize::from(owner.is_some());
                    *owner = to;
                }
            }
        }
        given_up
    }
}

/// The fewest moves by which shares can become even: every way to choose who has one more is tried.
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

/// All that is promised of one plan.
fn keeps_its_promises(world: &World, planned: &Owners) {
    let takers = world.takers();
    if takers.is_empty() {
        assert!(planned.values().all(Option::is_none), "nobody takes anything");
        return;
    }
    let after = World { shards: planned.clone(), ..world.clone() };
    let (shards, even) = (world.shards.len(), world.shards.len() / takers.len());

    for taker in &takers {
        let share = after.owned_by(*taker).len();
        assert!((even..=shards.div_ceil(takers.len())).contains(&share), "{taker} has {share}");
    }
    assert!(planned.values().all(|owner| owner.is_some_and(|owner| takers.contains(&owner))));

    let owned: Vec<usize> = takers.iter().map(|taker| world.owned_by(*taker).len()).collect();
    let is_taker = |owner: &Option<Id>| owner.is_some_and(|owner| takers.contains(&owner));
    let moves =
        world.shards.iter().filter(|(shard, from)| is_taker(from) && planned[shard] != **from);
    assert_eq!(moves.count(), fewest_moves(&owned, shards), "as few moves as there can be");

    let mut loose: BTreeSet<(u64, String, Id)> = BTreeSet::new();
    let mut room: BTreeMap<Id, usize> = BTreeMap::new();
    for taker in &takers {
        let (had, has) = (world.owned_by(*taker), after.owned_by(*taker));
        let (kept, given_up): (Vec<Id>, Vec<Id>) =
            had.iter().partition(|shard| has.contains(shard));
        assert!(given_up.is_empty() || kept.len() == has.len(), "{taker} gives up and takes");
        assert!(given_up.is_empty() || had.len() > even, "{taker} gives up from within its share");
        let liked = |shard: &Id| (world.adopted.contains(shard), likes(*taker, *shard));
        if let (Some(least), Some(most)) =
            (kept.iter().map(liked).min(), given_up.iter().map(liked).max())
        {
            assert!(most <= least, "{taker} gives up what it likes more than what it keeps");
        }
        room.insert(*taker, has.len() - kept.len());
        loose.extend(given_up.iter().map(|shard| (hash(&name(*shard)), name(*shard), *shard)));
    }
    let free = world.shards.iter().filter(|(_, from)| !is_taker(from));
    loose.extend(free.map(|(shard, _)| (hash(&name(*shard)), name(*shard), *shard)));
    for (_, _, shard) in loose {
        let open = room.iter().filter(|(_, room)| **room > 0).map(|(taker, _)| *taker);
        let best = open.max_by_key(|taker| likes(*taker, shard));
        assert_eq!(planned[&shard], best, "{shard} goes to whoever likes it most and has room");
        *best.and_then(|best| room.get_mut(&best)).unwrap() -= 1;
    }

    assert_eq!(after.plan(), *planned, "nothing moves while nothing changes");
}

fn change() -> impl Strategy<Value = Change> {
    let nth = 0..16_usize;
    prop_oneof![
        4 => (0..24_u16).prop_map(Change::Join),
        3 => nth.clone().prop_map(Change::Leave),
        2 => nth.clone().prop_map(Change::Drain),
        2 => nth.prop_map(Change::Undrain),
        3 => (0..150_u16, 1..60_u16).prop_map(|(first, many)| Change::Add(first, many)),
        2 => (0..150_usize, 1..60_usize).prop_map(|(first, many)| Change::Remove(first, many)),
        1 => (0..200_usize).prop_map(Change::Adopt),
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
    fn whatever_has_happened_a_plan_keeps_its_promises(
        steps in vec((change(), progress()), 1..30),
    ) {
        let mut world = World::new(0..3, 20);
        for (change, progress) in &steps {
            world.change(change);
            let planned = world.plan();
            keeps_its_promises(&world, &planned);
            world.carry_out(&planned, progress);
            prop_assert_eq!(world.plan(), planned, "half carried out it is still the plan");
        }
    }

    #[test]
    fn any_owners_at_all_can_be_planned_from(
        members in ids(1..9),
        drained in vec(any::<bool>(), 9),
        owners in vec(proptest::option::of(0..9_usize), 0..120),
    ) {
        let all: Vec<Id> = members.iter().copied().collect();
        let known = |owner: usize| all.get(owner).copied().unwrap_or(999);
        let world = World {
            members: members.into_iter().zip(drained).collect(),
            shards: (0..).zip(owners.into_iter().map(|owner| owner.map(known))).collect(),
            adopted: BTreeSet::new(),
        };
        keeps_its_promises(&world, &world.plan());
    }

    #[test]
    fn the_order_of_the_lists_makes_no_difference(
        steps in vec((change(), progress()), 1..10),
        members in shuffled(24),
        shards in shuffled(210),
    ) {
        let mut world = World::new(0..3, 20);
        for (change, progress) in &steps {
            world.change(change);
            let planned = world.plan();
            let (mut members, mut shards) = (members.clone(), shards.clone());
            members.retain(|member| world.members.contains_key(member));
            shards.retain(|shard| world.shards.contains_key(shard));
            prop_assert_eq!(&world.plan_listed(&members, &shards), &planned);
            world.carry_out(&planned, progress);
        }
    }

    #[test]
    fn a_join_moves_the_share_of_the_newcomer_and_nothing_else(
        members in ids(1..40), newcomer in 200..300_u16, shards in 0..400_u16,
        rounds in vec(progress(), 0..6),
    ) {
        let mut world = World::new(members, shards).settled();
        let before = world.shards.clone();
        world.members.insert(newcomer, false);
        let (shards, many) = (usize::from(shards), world.members.len());
        let planned = world.plan();
        let mut given_up = 0;
        for progress in rounds.iter().chain([&Progress(vec![2])]) {
            given_up += world.carry_out(&world.plan(), progress);
        }
        prop_assert_eq!(&world.shards, &planned, "however it was carried out");
        prop_assert!(given_up <= shards.div_ceil(many) + many);
        prop_assert_eq!(given_up, shards / many, "one more would be one move more");
        prop_assert_eq!(world.owned_by(newcomer).len(), given_up);
        for (shard, owner) in before {
            prop_assert!(planned[&shard] == owner || planned[&shard] == Some(newcomer));
        }
    }

    #[test]
    fn a_leave_moves_what_the_leaver_had_and_nothing_else(
        members in ids(2..40), leaver in any::<proptest::sample::Index>(), shards in 0..400_u16,
        drained in any::<bool>(), rounds in vec(progress(), 0..6),
    ) {
        let all: Vec<Id> = members.iter().copied().collect();
        let leaver = *leaver.get(&all);
        let mut world = World::new(members, shards).settled();
        let before = world.shards.clone();
        if drained {
            world.members.insert(leaver, true);
        } else {
            world.members.remove(&leaver);
        }
        let planned = world.plan();
        for progress in rounds.iter().chain([&Progress(vec![2])]) {
            world.carry_out(&world.plan(), progress);
        }
        prop_assert_eq!(&world.shards, &planned, "however it was carried out");
        let moved = before.iter().filter(|(shard, owner)| planned[shard] != **owner).count();
        let many = world.takers().len();
        prop_assert!(moved <= usize::from(shards).div_ceil(many) + many);
        for (shard, owner) in before {
            prop_assert!(planned[&shard] == owner || owner == Some(leaver));
        }
    }

    /// Each member knows only some of the others and what was so a round ago, gives up what its own plan gives to
    /// others, and takes what is free and its plan gives to it. Once they all see the same, two rounds are enough:
    /// one to give up, one to take.
    #[test]
    fn members_that_saw_different_things_settle_once_they_see_the_same(
        members in ids(1..9), shards in 0..120_u16,
        views in vec(vec(any::<u16>(), 9), 0..8),
    ) {
        let all: Vec<Id> = members.iter().copied().collect();
        let mut world = World::new(members, shards);
        let mut stale = world.clone();
        let everything = vec![u16::MAX; 9];
        let confused = views.len();
        let mut must = 0;
        let mut given_up = 0;
        for (round, seen) in views.iter().chain([&everything, &everything]).enumerate() {
            let agreed = round >= confused;
            if round == confused {
                let owned = all.iter().map(|member| world.owned_by(*member).len());
                must = fewest_moves(&owned.collect::<Vec<_>>(), world.shards.len());
            }
            let now = world.clone();
            for (index, member) in all.iter().enumerate() {
                let mut view = if agreed { now.clone() } else { stale.clone() };
                let sees = |other: usize| other == index || seen[index] >> other & 1 == 1;
                let seen = (0..all.len()).filter(|other| sees(*other));
                view.members = seen.map(|other| (all[other], false)).collect();
                let planned = view.plan();
                for (shard, owner) in &mut world.shards {
                    let mine = planned[shard] == Some(*member);
                    if *owner == Some(*member) && !mine {
                        *owner = None;
                        given_up += usize::from(agreed);
                    } else if owner.is_none() && mine {
                        *owner = Some(*member);
                    }
                }
            }
            stale = now;
        }
        prop_assert_eq!(&world.shards, &world.plan());
        prop_assert_eq!(given_up, must, "as few as if nobody had ever been wrong");
    }

    #[test]
    fn names_and_hashes_come_to_the_same(
        owners in vec((proptest::option::of(0..7_usize), any::<bool>()), 0..200),
        drained in vec(proptest::bool::weighted(0.2), 1..7),
    ) {
        let ids: Vec<String> = (0..).take(drained.len()).map(id).collect();
        let names: Vec<String> = (0..).take(owners.len()).map(name).collect();
        let members: Vec<PlacementMember<'_>> =
            ids.iter().zip(drained).map(|(id, drained)| PlacementMember { id, drained }).collect();
        let (mut held, mut items) = (Vec::new(), Vec::new());
        for (shard, (owner, adopted)) in names.iter().zip(owners) {
            held.push(HeldShards { shard, owner, adopted });
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
