//! PURE: who should own which shard.
//!
//! A function of the members, the shards and who owns what now; no clock, no store, no coin. Every member of a fleet
//! computes it for itself, and those that see the same come to the same answer, in whatever order they list it.
//!
//! - **Even**: the shares of any two members differ by at most one. A drained member's share is nothing.
//! - **Sticky**: a shard stays where it is as long as its owner's share allows it.
//! - **By preference beyond that**: every member has a [rendezvous](preferred) score for every shard. Whoever has too many
//!   gives up those it scores lowest, and what has no owner goes to the member that scores it highest and has room.
//! - **Steady**: a plan that has been carried out is the next plan, and so is one that is half carried out. Nothing moves
//!   while nothing changes, and nobody changes its mind in the middle of a move.
//!
//! **It gives no right.** It says who *should* own a shard; only the lease says who *may*. Members that see different things
//! for a while plan differently for a while, and all that comes of it is a shard that is owned by the wrong one, or later
//! than it could be; never by two.
//!
//! ```
//! use tenure::placement::{Held, Member, plan};
//!
//! let names: Vec<String> = (0..10).map(|number| format!("tenant-{number}")).collect();
//! let two = [Member::new("a"), Member::new("b")];
//! let free: Vec<_> = names.iter().map(|name| Held::new(name, None)).collect();
//! let before = plan(&two, &free); // five each
//!
//! let three = [Member::new("a"), Member::new("b"), Member::new("c")];
//! let held: Vec<_> = names.iter().zip(&before).map(|(name, owner)| Held::new(name, *owner)).collect();
//! let after = plan(&three, &held);
//! let moved: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
//! assert_eq!(moved.len(), 3);
//! assert!(moved.iter().all(|(_, after)| **after == Some(2)), "all of them to the newcomer");
//! ```
//!
//! The same in plain words, with a picture: `docs/PLACEMENT.md`.

mod hash;
mod shares;

use std::cmp::Reverse;

pub use hash::hash;
use hash::score;
use shares::shares;

/// One that takes part. No two have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementMember<'a> {
    /// Who.
    pub id: &'a str,
    /// Whether it should own nothing, because somebody said so or because it is about to leave.
    pub drained: bool,
}

/// A shard by its name, and who owns it now. No two have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldShards<'a> {
    /// Its name.
    pub shard: &'a str,
    /// Its owner's index in the list of members. One that is not in the list is nobody.
    pub owner: Option<usize>,
    /// Whether its owner gives it up only after all that are not.
    pub adopted: bool,
}

/// A shard by the [hash] of its name, for whoever has very many and keeps their hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementShard {
    /// The [hash] of its name.
    pub hash: u64,
    /// Its owner's index in the list of members. One that is not in the list is nobody.
    pub owner: Option<u32>,
    /// Whether its owner gives it up only after all that are not.
    pub adopted: bool,
}

impl<'a> PlacementMember<'a> {
    /// One that takes its share.
    #[must_use]
    pub fn new(id: &'a str) -> Self {
        PlacementMember { id, drained: false }
    }

    /// One that takes nothing and gives up what it has.
    #[must_use]
    pub fn drained(id: &'a str) -> Self {
        PlacementMember { id, drained: true }
    }
}

impl<'a> HeldShards<'a> {
    /// A shard that is not adopted.
    #[must_use]
    pub fn new(shard: &'a str, owner: Option<usize>) -> Self {
        HeldShards { shard, owner, adopted: false }
    }
}

/// For every shard, in the order given, the index of the member that should own it; nobody, if every member is drained.
///
/// Paused shards are not in the list: whoever owns one releases it, and nobody takes it.
#[must_use]
pub fn plan(members: &[PlacementMember<'_>], shards: &[HeldShards<'_>]) -> Vec<Option<usize>> {
    let mut order: Vec<(u64, usize)> =
        shards.iter().map(|held| hash(held.shard)).zip(0..).collect();
    // Names are compared only where hashes are equal, which is next to never.
    order.sort_unstable_by(|(one, i), (other, j)| {
        one.cmp(other).then_with(|| (shards[*i].shard, i).cmp(&(shards[*j].shard, j)))
    });
    let items: Vec<PlacementShard> = order
        .iter()
        .map(|&(hash, index)| {
            let HeldShards { owner, adopted, .. } = shards[index];
            PlacementShard {
                hash,
                owner: owner.and_then(|owner| u32::try_from(owner).ok()),
                adopted,
            }
        })
        .collect();
    let mut planned = vec![None; shards.len()];
    for ((_, index), owner) in order.into_iter().zip(plan_hashed(members, &items)) {
        planned[index] = owner.map(|owner| owner as usize);
    }
    planned
}

/// The same as [`plan`], for shards whose hashes are known.
///
/// Two shards with the same hash are told apart by which comes first in the list; everything else about its order makes no
/// difference. Whoever needs the same answer as others even then lists equal hashes in the order of their names.
#[must_use]
pub fn plan_hashed(members: &[PlacementMember<'_>], items: &[PlacementShard]) -> Vec<Option<u32>> {
    let takers = takers(members);
    let mut planned = vec![None; items.len()];
    if takers.is_empty() {
        return planned;
    }
    let mut taker_of: Vec<Option<usize>> = vec![None; members.len()];
    for (taker, Recipient { member, .. }) in takers.iter().enumerate() {
        taker_of[*member as usize] = Some(taker);
    }
    let owner_of = |item: &PlacementShard| *taker_of.get(item.owner? as usize)?;

    let mut owned = vec![0; takers.len()];
    for taker in items.iter().filter_map(owner_of) {
        owned[taker] += 1;
    }
    let shares = shares(&owned, items.len());

    // What stays with its owner, what is to be dealt out, and, of those who have too many, what they choose from.
    let mut loose: Vec<(u64, usize)> = Vec::new();
    let mut crowded: Vec<Vec<Preference>> = takers.iter().map(|_| Vec::new()).collect();
    for (index, item) in items.iter().enumerate() {
        match owner_of(item) {
            None => loose.push((item.hash, index)),
            Some(taker) if owned[taker] <= shares[taker] => planned[index] = item.owner,
            Some(taker) => crowded[taker].push(Preference {
                last: item.adopted,
                score: score(item.hash, takers[taker].hash),
                hash: item.hash,
                index,
            }),
        }
    }
    for (mut liked, share) in
        crowded.into_iter().zip(&shares).filter(|(liked, _)| !liked.is_empty())
    {
        let (kept, given_up) = split_best(&mut liked, *share);
        for Preference { index, .. } in kept {
            planned[*index] = items[*index].owner;
        }
        loose.extend(given_up.iter().map(|liked| (liked.hash, liked.index)));
    }

    let room = owned.iter().zip(&shares).map(|(owned, share)| share.saturating_sub(*owned));
    deal(loose, takers.into_iter().zip(room).collect(), &mut planned);
    planned
}

/// The member that wants this shard most, of those that are not drained: its owner, if only the preference counted.
///
/// Each member is that for about as many shards as every other, and when one joins or leaves, only the shards change that
/// prefer it: rendezvous hashing.
#[must_use]
pub fn preferred(members: &[PlacementMember<'_>], shard: &str) -> Option<usize> {
    let shard = hash(shard);
    // From the end, because the last of equals is found, and the first in order is to win.
    let takers = takers(members).into_iter().rev();
    takers.max_by_key(|taker| score(shard, taker.hash)).map(|taker| taker.member as usize)
}

/// How many of the others want a shard with this [hash] more than the member `of` does: 0 for the one that [prefers](preferred)
/// it most; `None` if it is drained, or there is no such member.
#[must_use]
pub fn rank(members: &[PlacementMember<'_>], hash: u64, of: u32) -> Option<usize> {
    let takers = takers(members);
    let own = takers.iter().position(|taker| taker.member == of)?;
    let own_score = score(hash, takers[own].hash);
    let ahead = |(at, taker): (usize, &Recipient)| {
        let theirs = score(hash, taker.hash);
        theirs > own_score || (theirs == own_score && at < own)
    };
    Some(takers.iter().enumerate().filter(|taker| ahead(*taker)).count())
}

/// A member that takes its share.
struct Recipient {
    hash: u64,
    /// Its index among all members.
    member: u32,
}

/// All that take their share, in an order that does not depend on how they are listed.
fn takers(members: &[PlacementMember<'_>]) -> Vec<Recipient> {
    let mut takers: Vec<Recipient> = members
        .iter()
        .zip(0..)
        .filter(|(member, _)| !member.drained)
        .map(|(member, index)| Recipient { hash: hash(member.id), member: index })
        .collect();
    takers.sort_by_key(|taker| (taker.hash, members[taker.member as usize].id));
    takers
}

/// A shard in the eyes of an owner that has too many: what compares lower is given up first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Preference {
    last: bool,
    score: u64,
    hash: u64,
    index: usize,
}

/// As many as the share allows, those liked most, and then the rest, which is never nothing.
fn split_best(liked: &mut [Preference], share: usize) -> (&[Preference], &[Preference]) {
    if share > 0 {
        liked.select_nth_unstable_by(share - 1, |one, other| other.cmp(one));
    }
    liked.split_at(share)
}

/// Gives each shard to whoever wants it most of those that still have room. There is room for exactly as many as there are.
fn deal(
    mut loose: Vec<(u64, usize)>,
    with_room: Vec<(Recipient, usize)>,
    planned: &mut [Option<u32>],
) {
    loose.sort_unstable();
    let mut open: Vec<(Recipient, usize)> =
        with_room.into_iter().filter(|(_, room)| *room > 0).collect();
    for (shard, index) in loose {
        // In the order of the takers, and the first of equals wins.
        let best = (0..open.len())
            .max_by_key(|taker| (score(shard, open[*taker].0.hash), Reverse(*taker)));
        let Some(best) = best else { return };
        let (taker, room) = &mut open[best];
        planned[index] = Some(taker.member);
        *room -= 1;
        if *room == 0 {
            open.remove(best);
        }
    }
}

#[cfg(test)]
#[path = "placement/examples_tests.rs"]
mod examples;

#[cfg(test)]
#[path = "placement/churn_tests.rs"]
mod churn;
