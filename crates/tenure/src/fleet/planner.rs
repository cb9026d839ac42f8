//! PURE: the planner decides which shards one member should claim and release. Time is an argument; only a lease grants a
//! right.
//!
//! The coordinator feeds it with the members, the shards, the owner of each shard and the phase of each machine of this member.
//! When one of these changes, the planner makes a new [plan](crate::placement) and returns the steps that follow from it:
//!
//! ```text
//!   planned for this member, not owned by it   →  Claim: the machine campaigns, and waits while another member holds the lease
//!   owned, but planned for another member      →  Release: the work ends, the lease is released, the next owner is notified
//!   paused, removed, or this is not a member   →  Release; a paused or removed shard has no next owner
//! ```
//!
//! Each member plans from its own observations, and these differ for moments. Therefore, while a shard stays free, all members
//! plan again, with a growing delay. When a shard stays free for longer than a TTL, the members that prefer it next claim it,
//! in order of preference: they adopt it. A member keeps an adopted shard for some TTLs even if it has more than its share, and
//! longer each time that it has offered the shard in vain. A shard is planned only for members that list it, as far as
//! their announcements say: see `plan.rs`.

mod coverage;
mod plan;
mod shard_entry;
mod step;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use super::{ListDigest, Shard};
use crate::clock::Moment;
use crate::lease::CandidateId;
use crate::machine::Phase;
use crate::placement;
use shard_entry::{ME, MemberNumber, MemberNumbers, ShardEntry};
pub use step::{Coverage, PlanStep, Reason};

/// The number of a shard within one member. A number is never used for two shards.
pub type ShardNumber = u64;

/// A new member plans after this delay, so that members that start together observe each other before one claims all shards.
const FIRST_PLAN_DELAY: Duration = Duration::from_millis(200);
/// Delay between a change and the plan: changes that come together need one plan.
const PLAN_DELAY: Duration = Duration::from_millis(30);
/// Delay after a join: by then the new member has observed the fleet and is ready to claim what is released for it.
const JOIN_PLAN_DELAY: Duration = Duration::from_millis(250);
/// Additional delay per shard: a plan for many shards is expensive, so it is made less often.
const PLAN_DELAY_PER_SHARD: Duration = Duration::from_micros(1);
/// Limit of claims in flight; further claims wait in the queue.
const MAX_CLAIMS_IN_FLIGHT: usize = 4_000;
/// Limit of releases in progress; further releases wait in the queue.
const MAX_RELEASES_IN_PROGRESS: usize = 4_000;
/// If a shard is still free this long after a plan, the member plans again. The delay doubles each time, up to a TTL.
const FIRST_REPLAN_DELAY: Duration = Duration::from_millis(500);

/// The observed state of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberState {
    /// Whether it is drained: then it should own no shard.
    pub drained: bool,
    /// The digest of its list of shards, as it has announced it.
    pub list: ListDigest,
}

/// Plans the shards of one member, from this member's view of the fleet.
#[derive(Debug)]
pub struct Planner {
    me: CandidateId,
    ttl: Duration,
    /// Why this member does not hold its membership lease; `None` while it holds it. The other members count on it then.
    not_member: Option<Reason>,
    member_since: Moment,
    /// The members as last observed; `None` before the first observation.
    members: Option<BTreeMap<CandidateId, MemberState>>,
    /// The digest of this member's own list.
    list: ListDigest,
    /// Whether members had announced different lists at the last plan.
    lists_differed: bool,
    ids: MemberNumbers,
    /// The numbers of the observed members, and always that of this member.
    present_members: HashSet<MemberNumber>,
    entries: Entries,
    numbers: HashMap<Shard, ShardNumber>,
    last_number: ShardNumber,
    /// How many shards have a lease that was not observed yet.
    unobserved: usize,
    /// How many shards have no owner.
    free: usize,
    claim_queue: VecDeque<ShardNumber>,
    claiming: usize,
    release_queue: VecDeque<ShardNumber>,
    releasing: usize,
    /// How many machines may have work or a lease to release.
    held: usize,
    plan_at: Option<Moment>,
    /// When to plan again while a shard is free, and the delay after that.
    recheck_free: Option<(Moment, Duration)>,
    /// When the plan may change without an event: an adoption ends, or a shard has been free for so long that other members
    /// adopt it.
    replan_at: Option<Moment>,
}

/// All shards by number. The hasher is the same in every process, so that a simulation repeats its history: the order of
/// iteration is part of it.
type Entries = HashMap<ShardNumber, ShardEntry, BuildHasherDefault<DefaultHasher>>;

impl Planner {
    /// A planner for the member `me`, which holds no lease and has observed nothing yet.
    pub fn new(me: CandidateId, ttl: Duration) -> Self {
        let mut ids = MemberNumbers::default();
        let present_members = HashSet::from([ids.of(me.as_str())]);
        Planner {
            me,
            ttl,
            not_member: Some(Reason::Expired),
            member_since: Moment::PAST,
            members: None,
            list: ListDigest::default(),
            lists_differed: false,
            ids,
            present_members,
            entries: Entries::default(),
            numbers: HashMap::new(),
            last_number: 0,
            unobserved: 0,
            free: 0,
            claim_queue: VecDeque::new(),
            claiming: 0,
            release_queue: VecDeque::new(),
            releasing: 0,
            held: 0,
            plan_at: None,
            recheck_free: None,
            replan_at: None,
        }
    }

    // ---- observations ----

    /// The source lists these shards, in order; `paused` tells which of them are paused.
    pub fn shards(
        &mut self,
        now: Moment,
        shards: &[Shard],
        paused: impl Fn(&Shard) -> bool,
        out: &mut Vec<PlanStep>,
    ) {
        debug_assert!(shards.is_sorted());
        let mut changed = false;
        let mut hashes = Vec::with_capacity(shards.len());
        for shard in shards {
            let number = self.numbers.get(shard).copied();
            match number.and_then(|number| self.entries.get_mut(&number)) {
                // Listed again while its last work is ending: added again after that.
                Some(entry) => {
                    hashes.push(entry.hash);
                    entry.removed = entry.removed.map(|_| true);
                }
                None => {
                    hashes.push(self.add(now, shard.clone(), paused(shard), out));
                    changed = true;
                }
            }
        }
        self.list = ListDigest::of_hashes(hashes);
        for (&number, entry) in &mut self.entries {
            let is_paused = paused(&entry.shard);
            changed |= entry.paused != is_paused;
            entry.paused = is_paused;
            if shards.binary_search(&entry.shard).is_err() {
                if entry.removed.is_none() {
                    changed = true;
                    entry.wanted = false;
                    out.push(PlanStep::Remove(number, Reason::Removed));
                }
                entry.removed = Some(false);
            }
        }
        if changed {
            self.update_free_all(now);
            self.plan_soon(now);
        }
    }

    /// Adds a shard and returns the hash of its name.
    fn add(&mut self, now: Moment, shard: Shard, paused: bool, out: &mut Vec<PlanStep>) -> u64 {
        self.last_number += 1;
        let number = self.last_number;
        self.unobserved += 1;
        let hash = placement::hash(shard.as_str());
        let entry = ShardEntry {
            hash,
            shard: shard.clone(),
            observed: false,
            broken: false,
            paused,
            removed: None,
            owner: None,
            owner_works: false,
            planned: None,
            phase: Phase::Waiting,
            wanted: false,
            queued: false,
            claiming: false,
            pending_release: None,
            releasing: false,
            adopted: None,
            adoptions: 0,
            free_since: None,
            added_at: now,
            planned_since: Moment::PAST,
        };
        self.entries.insert(number, entry);
        self.numbers.insert(shard.clone(), number);
        out.push(PlanStep::Add(number, shard));
        hash
    }

    /// The digest of this member's list, to be announced to the other members.
    pub fn list(&self) -> &ListDigest {
        &self.list
    }

    /// The members, as last observed.
    pub fn observed_members(&self) -> impl Iterator<Item = (&CandidateId, &MemberState)> {
        self.members.iter().flatten()
    }

    /// The store has these members.
    pub fn members(&mut self, now: Moment, members: BTreeMap<CandidateId, MemberState>) {
        if self.members.as_ref() == Some(&members) {
            return;
        }
        self.present_members = members.keys().map(|id| self.ids.of(id.as_str())).collect();
        self.present_members.insert(self.ids.of(self.me.as_str()));
        let before = self.members.replace(members).unwrap_or_default();
        self.update_free_all(now);
        // A member that left is replaced at once. For a member that joined, releases can wait.
        let members = self.members.iter().flatten();
        let drained = |id| before.get(id).map(|state| state.drained);
        let kept = members.filter(|(id, state)| drained(*id) == Some(state.drained)).count();
        let joined = !before.is_empty() && kept == before.len();
        self.plan_within(now, if joined { JOIN_PLAN_DELAY } else { PLAN_DELAY });
    }

    /// This member has acquired its membership lease: the other members count on it from now on.
    pub fn membership_acquired(&mut self, now: Moment) {
        if self.not_member.take().is_some() {
            self.member_since = now;
            self.plan_at = Some(now + FIRST_PLAN_DELAY);
        }
    }

    /// This member has lost its membership lease, so it releases its shards.
    pub fn membership_lost(&mut self, now: Moment, reason: Reason) {
        if self.not_member.is_none() {
            self.not_member = Some(reason);
            self.plan_at = Some(now);
        }
    }

    /// The lease of a shard was observed, or the store has answered a claim.
    pub fn answered(&mut self, now: Moment, number: ShardNumber) {
        self.record_observation(now, number, false);
    }

    /// The lease of a shard cannot be read: an operator must repair it.
    pub fn broken(&mut self, now: Moment, number: ShardNumber) {
        self.record_observation(now, number, true);
    }

    fn record_observation(&mut self, now: Moment, number: ShardNumber, broken: bool) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if std::mem::take(&mut entry.claiming) {
            self.claiming -= 1;
        }
        let first = !std::mem::replace(&mut entry.observed, true);
        let changed = first || entry.broken != broken;
        entry.broken = broken;
        if first {
            self.unobserved -= 1;
        }
        if changed {
            self.update_free(now, number);
            self.plan_soon(now);
        }
    }

    /// The holder of a shard's lease has changed; `None`: the lease is free. `works` is `false` while the holder is in its
    /// start-up wait.
    pub fn owner(&mut self, now: Moment, number: ShardNumber, owner: Option<&str>, works: bool) {
        let owner = owner.map(|owner| self.ids.of(owner));
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let before = std::mem::replace(&mut entry.owner, owner);
        entry.owner_works = works;
        // Expected: the planned member has acquired it, or another member has released it. No plan contains an adoption.
        let expected = match owner {
            Some(_) => owner == entry.planned && entry.adopted.is_none(),
            None => entry.planned.is_some() && entry.planned != before,
        };
        if owner.is_some_and(|owner| owner != ME) {
            (entry.adopted, entry.adoptions) = (None, 0);
        }
        self.update_free(now, number);
        if !expected {
            self.plan_soon(now);
        }
    }

    /// The machine of a shard has entered another phase.
    pub fn phase_changed(
        &mut self,
        now: Moment,
        number: ShardNumber,
        phase: Phase,
        out: &mut Vec<PlanStep>,
    ) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let before = std::mem::replace(&mut entry.phase, phase);
        self.held += usize::from(is_held(phase));
        self.held -= usize::from(is_held(before));
        if !is_held(phase) && std::mem::take(&mut entry.releasing) {
            self.releasing -= 1;
        }
        if phase == Phase::Stopped {
            self.forget(now, number, out);
        } else {
            self.update_free(now, number);
        }
    }

    fn forget(&mut self, now: Moment, number: ShardNumber, out: &mut Vec<PlanStep>) {
        let Some(entry) = self.entries.remove(&number) else { return };
        self.unobserved -= usize::from(!entry.observed);
        self.claiming -= usize::from(entry.claiming);
        self.releasing -= usize::from(entry.releasing);
        self.free -= usize::from(entry.free_since.is_some());
        self.numbers.remove(&entry.shard);
        if entry.removed == Some(true) {
            self.add(now, entry.shard, entry.paused, out);
        }
    }

    // ---- decisions ----

    /// When to call [`Planner::act`] again; `None` if only an event can change the plan.
    pub fn wake_at(&self) -> Option<Moment> {
        let plan_at = self.plan_at.filter(|_| self.can_plan());
        let recheck_free = self.recheck_free.map(|(at, _)| at).filter(|_| self.free > 0);
        let replan_at = self.replan_at.filter(|_| self.can_plan());
        [plan_at, recheck_free, replan_at].into_iter().flatten().min()
    }

    /// Adds the steps that are due now to `out`.
    pub fn act(&mut self, now: Moment, out: &mut Vec<PlanStep>) {
        match self.recheck_free {
            Some((at, pause)) if self.free > 0 && now >= at => {
                self.recheck_free = Some((now + pause, (pause * 2).min(self.ttl)));
                self.plan_at.get_or_insert(now);
            }
            _ => {}
        }
        if self.replan_at.is_some_and(|at| now >= at) {
            self.replan_at = None;
            self.plan_at.get_or_insert(now);
        }
        if self.can_plan() && self.plan_at.is_some_and(|at| now >= at) {
            self.plan_at = None;
            self.plan(now);
            self.apply_plan(out);
        }
        self.start_releases(out);
        self.start_claims(out);
    }

    /// Whether no term of any shard is left: no work, and no lease to release.
    pub fn holds_nothing(&self) -> bool {
        self.held == 0
    }

    /// The numbers of all known shards.
    pub fn numbers(&self) -> impl Iterator<Item = ShardNumber> {
        self.entries.keys().copied()
    }

    fn can_plan(&self) -> bool {
        // Without the membership lease this member only releases, and that needs no observation.
        !self.is_member() || (self.members.is_some() && self.unobserved == 0)
    }

    fn is_member(&self) -> bool {
        self.not_member.is_none()
    }

    fn plan_soon(&mut self, now: Moment) {
        self.plan_within(now, PLAN_DELAY);
    }

    fn plan_within(&mut self, now: Moment, delay: Duration) {
        let many = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        let at = now + delay + PLAN_DELAY_PER_SHARD * many;
        self.plan_at = Some(self.plan_at.map_or(at, |before| before.min(at)));
        self.recheck_free = Some((at + FIRST_REPLAN_DELAY, FIRST_REPLAN_DELAY * 2));
    }

    /// Derives steps from the plan. Claims and releases go through their queues.
    fn apply_plan(&mut self, out: &mut Vec<PlanStep>) {
        let me = ME;
        let is_member = self.is_member();
        let drained = self
            .members
            .as_ref()
            .and_then(|members| members.get(&self.me))
            .is_some_and(|state| state.drained);
        for (&number, entry) in &mut self.entries {
            if entry.removed.is_some() {
                continue;
            }
            let should = is_member && entry.should_be_owned() && entry.planned == Some(me);
            if should && !entry.wanted && !entry.queued {
                entry.queued = true;
                self.claim_queue.push_back(number);
            }
            if should {
                entry.pending_release = None;
                continue;
            }
            entry.queued = false;
            let has = matches!(entry.phase, Phase::Leading | Phase::Starting);
            if !std::mem::take(&mut entry.wanted) && !has {
                continue;
            }
            if entry.phase != Phase::Leading {
                out.push(PlanStep::Withdraw(number));
                continue;
            }
            let reason = match self.not_member {
                Some(reason) => reason,
                None if entry.paused => Reason::Paused,
                None if drained => Reason::Drain,
                None => Reason::Rebalance,
            };
            let next = entry.planned.filter(|next| *next != me);
            if entry.pending_release.replace((next, reason)).is_none() {
                self.release_queue.push_back(number);
            }
        }
    }

    /// Starts queued releases, up to the limit.
    fn start_releases(&mut self, out: &mut Vec<PlanStep>) {
        while self.releasing < MAX_RELEASES_IN_PROGRESS {
            let Some(number) = self.release_queue.pop_front() else { break };
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            let Some((next, reason)) = entry.pending_release.take() else { continue };
            if entry.phase == Phase::Leading {
                entry.releasing = true;
                self.releasing += 1;
                let next = next.map(|next| &self.ids.names[next as usize]);
                let next = next.and_then(|next| CandidateId::new(next).ok());
                out.push(PlanStep::Release(number, next, reason));
            }
        }
    }

    /// Starts queued claims, up to the limit.
    fn start_claims(&mut self, out: &mut Vec<PlanStep>) {
        while self.claiming < MAX_CLAIMS_IN_FLIGHT {
            let Some(number) = self.claim_queue.pop_front() else { break };
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            if std::mem::take(&mut entry.queued) {
                entry.wanted = true;
                entry.claiming = true;
                self.claiming += 1;
                out.push(PlanStep::Claim(number));
            }
        }
    }
}

/// Whether there may be work, or a lease to release.
fn is_held(phase: Phase) -> bool {
    matches!(phase, Phase::Starting | Phase::Leading | Phase::Resigning)
}
