//! PURE: placement: members + shards -> which member should own which shard.
//!
//! A function of the members, the shards and the current owners; no clock, no store, no random numbers. Every member of a fleet
//! computes it for itself. Members that observe the same input compute the same plan, in any order of the lists.
//!
//! - **Even**: the shares of any two members differ by at most one. A drained member's share is zero.
//! - **Sticky**: a shard stays with its owner as long as the owner's share allows it.
//! - **By preference beyond that**: every member has a [rendezvous](preferred) score for every shard. A member with too many
//!   shards releases those with its lowest scores. A shard without an owner goes to the member with the highest score among
//!   those that have room.
//! - **Stable**: a plan that was carried out, completely or in part, is also the next plan. Nothing moves while nothing
//!   changes, and no member changes its plan in the middle of a move.
//!
//! **It grants no right.** It says which member *should* own a shard; only the lease says which member *may*. Members that
//! observe different input for a while plan differently for a while. The worst result is a shard that is owned by the wrong
//! member, or later than possible; never by two members.
//!
//! ```
//! use tenure::placement::{HeldShard, PlacementMember, plan};
//!
//! let names: Vec<String> = (0..10).map(|number| format!("tenant-{number}")).collect();
//! let two = [PlacementMember::new("a"), PlacementMember::new("b")];
//! let free: Vec<_> = names.iter().map(|name| HeldShard::new(name, None)).collect();
//! let before = plan(&two, &free); // five each
//!
//! let three = [PlacementMember::new("a"), PlacementMember::new("b"), PlacementMember::new("c")];
//! let held: Vec<_> =
//!     names.iter().zip(&before).map(|(name, owner)| HeldShard::new(name, *owner)).collect();
//! let after = plan(&three, &held);
//! let moved: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
//! assert_eq!(moved.len(), 3);
//! assert!(moved.iter().all(|(_, after)| **after == Some(2)), "all of them to the newcomer");
//! ```
//!
//! `docs/PLACEMENT.md` explains the same with a picture.

mod hash;
mod shares;

use std::cmp::Reverse;

pub use hash::hash;
use hash::score;
use shares::shares;

/// A member of the fleet. Ids are unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementMember<'a> {
    /// The id of the member.
    pub id: &'a str,
    /// Whether the member should own nothing, because it is drained or about to leave.
    pub drained: bool,
}

/// A shard by its name, and its current owner. Names are unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldShard<'a> {
    /// The name of the shard.
    pub shard: &'a str,
    /// The index of its owner in the list of members. An index outside the list means no owner.
    pub owner: Option<usize>,
    /// Whether its owner releases it only after all shards that are not adopted.
    pub adopted: bool,
}

/// A shard by the [hash] of its name, for callers that have very many shards and cache their hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementShard {
    /// The [hash] of the shard's name.
    pub hash: u64,
    /// The index of its owner in the list of members. An index outside the list means no owner.
    pub owner: Option<u32>,
    /// Whether its owner releases it only after all shards that are not adopted.
    pub adopted: bool,
}

impl<'a> PlacementMember<'a> {
    /// A member that takes its share.
    #[must_use]
    pub fn new(id: &'a str) -> Self {
        PlacementMember { id, drained: false }
    }

    /// A member that takes no shards and releases those that it has.
    #[must_use]
    pub fn drained(id: &'a str) -> Self {
        PlacementMember { id, drained: true }
    }
}

impl<'a> HeldShard<'a> {
    /// A shard that is not adopted.
    #[must_use]
    pub fn new(shard: &'a str, owner: Option<usize>) -> Self {
        HeldShard { shard, owner, adopted: false }
    }
}

/// For every shard, in the given order, the index of the member that should own it; `None` if every member is drained.
///
/// The list must not contain paused shards: their owners release them, and no member claims them.
#[must_use]
pub fn plan(members: &[PlacementMember<'_>], shards: &[HeldShard<'_>]) -> Vec<Option<usize>> {
    let mut order: Vec<(u64, usize)> =
        shards.iter().map(|held| hash(held.shard)).zip(0..).collect();
    // Names are compared only if hashes are equal, which almost never happens.
    order.sort_unstable_by(|(one, i), (other, j)| {
        one.cmp(other).then_with(|| (shards[*i].shard, i).cmp(&(shards[*j].shard, j)))
    });
    let items: Vec<PlacementShard> = order
        .iter()
        .map(|&(hash, index)| {
            let HeldShard { owner, adopted, .. } = shards[index];
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
/// For two shards with the same hash, the order in the list decides; otherwise the order makes no difference. A caller that
/// needs the same plan as other members even then lists equal hashes in the order of their names.
#[must_use]
pub fn plan_hashed(members: &[PlacementMember<'_>], items: &[PlacementShard]) -> Vec<Option<u32>> {
    let recipients = recipients(members);
    let mut planned = vec![None; items.len()];
    if recipients.is_empty() {
        return planned;
    }
    let mut recipient_of: Vec<Option<usize>> = vec![None; members.len()];
    for (recipient, Recipient { member, .. }) in recipients.iter().enumerate() {
        recipient_of[*member as usize] = Some(recipient);
    }
    let owner_of = |item: &PlacementShard| *recipient_of.get(item.owner? as usize)?;

    let mut owned = vec![0; recipients.len()];
    for recipient in items.iter().filter_map(owner_of) {
        owned[recipient] += 1;
    }
    let shares = shares(&owned, items.len());

    // The shards that have to be assigned, and, for each owner with too many shards, the shards to choose from.
    let mut unassigned: Vec<(u64, usize)> = Vec::new();
    let mut overfull: Vec<Vec<Preference>> = recipients.iter().map(|_| Vec::new()).collect();
    for (index, item) in items.iter().enumerate() {
        match owner_of(item) {
            None => unassigned.push((item.hash, index)),
            Some(recipient) if owned[recipient] <= shares[recipient] => planned[index] = item.owner,
            Some(recipient) => overfull[recipient].push(Preference {
                last: item.adopted,
                score: score(item.hash, recipients[recipient].hash),
                hash: item.hash,
                index,
            }),
        }
    }
    for (mut preferences, share) in
        overfull.into_iter().zip(&shares).filter(|(preferences, _)| !preferences.is_empty())
    {
        let (kept, released) = split_best(&mut preferences, *share);
        for Preference { index, .. } in kept {
            planned[*index] = items[*index].owner;
        }
        unassigned.extend(released.iter().map(|one| (one.hash, one.index)));
    }

    let room = owned.iter().zip(&shares).map(|(owned, share)| share.saturating_sub(*owned));
    assign(unassigned, recipients.into_iter().zip(room).collect(), &mut planned);
    planned
}

/// The member with the highest preference for this shard, among those that are not drained: its owner, if only the preference
/// counted.
///
/// All members are preferred for about the same number of shards. When a member joins or leaves, only the shards that prefer it
/// change: rendezvous hashing.
#[must_use]
pub fn preferred(members: &[PlacementMember<'_>], shard: &str) -> Option<usize> {
    let shard = hash(shard);
    // Reversed, because `max_by_key` returns the last of equal elements, and the first in order must win.
    let recipients = recipients(members).into_iter().rev();
    recipients
        .max_by_key(|recipient| score(shard, recipient.hash))
        .map(|recipient| recipient.member as usize)
}

/// How many other members have a higher preference for a shard with this [hash] than the member `of`: 0 for the
/// [preferred] member; `None` if `of` is drained or not in the list.
#[must_use]
pub fn rank(members: &[PlacementMember<'_>], hash: u64, of: u32) -> Option<usize> {
    let recipients = recipients(members);
    let own = recipients.iter().position(|recipient| recipient.member == of)?;
    let own_score = score(hash, recipients[own].hash);
    let ahead = |(at, recipient): (usize, &Recipient)| {
        let other_score = score(hash, recipient.hash);
        other_score > own_score || (other_score == own_score && at < own)
    };
    Some(recipients.iter().enumerate().filter(|recipient| ahead(*recipient)).count())
}

/// A member that takes its share.
struct Recipient {
    hash: u64,
    /// The index among all members.
    member: u32,
}

/// All members that take their share, in an order that does not depend on the order of the list.
fn recipients(members: &[PlacementMember<'_>]) -> Vec<Recipient> {
    let mut recipients: Vec<Recipient> = members
        .iter()
        .zip(0..)
        .filter(|(member, _)| !member.drained)
        .map(|(member, index)| Recipient { hash: hash(member.id), member: index })
        .collect();
    recipients.sort_by_key(|recipient| (recipient.hash, members[recipient.member as usize].id));
    recipients
}

/// The preference of an owner with too many shards for one of them: the owner releases the lowest first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Preference {
    last: bool,
    score: u64,
    hash: u64,
    index: usize,
}

/// Splits into the shards to keep, those with the highest preference, and the shards to release. The second part is never
/// empty.
fn split_best(preferences: &mut [Preference], share: usize) -> (&[Preference], &[Preference]) {
    if share > 0 {
        preferences.select_nth_unstable_by(share - 1, |one, other| other.cmp(one));
    }
    preferences.split_at(share)
}

/// Assigns each shard to the member with the highest preference among those that still have room. There is room for exactly as
/// many shards as there are.
fn assign(
    mut unassigned: Vec<(u64, usize)>,
    with_room: Vec<(Recipient, usize)>,
    planned: &mut [Option<u32>],
) {
    unassigned.sort_unstable();
    let mut open: Vec<(Recipient, usize)> =
        with_room.into_iter().filter(|(_, room)| *room > 0).collect();
    for (shard, index) in unassigned {
        // In the order of the recipients; the first of equals wins.
        let best = (0..open.len())
            .max_by_key(|recipient| (score(shard, open[*recipient].0.hash), Reverse(*recipient)));
        let Some(best) = best else { return };
        let (recipient, room) = &mut open[best];
        planned[index] = Some(recipient.member);
        *room -= 1;
        if *room == 0 {
            open.remove(best);
        }
    }
}

#[cfg(test)]
mod examples_tests;

#[cfg(test)]
mod churn_tests;
