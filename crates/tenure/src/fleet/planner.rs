//! PURE: what one member should claim, and what it should give away. Time is an argument; only the leases give any right.
//!
//! A steward sees the members, the shards, who owns which, and where the member's own machines stand. Whenever something of that
//! has changed it makes a new [plan](crate::placement), and orders what follows from it:
//!
//! ```text
//!   planned for me, not mine       →  Claim: its machine campaigns, and waits if somebody still has it
//!   mine, planned for somebody     →  Leave: the work ends, the lease is released naming that one, who is woken
//!   paused, gone, or not a member  →  Leave, naming nobody
//! ```
//!
//! Members plan from what they see, which differs for moments. A shard that stays free therefore makes everybody plan anew, a
//! little later each time; one that stays free for longer than a TTL is taken by those that prefer it next. Such a one is kept for
//! some TTLs even against the share, and longer each time it was in vain to offer it. A shard is planned only for members that list
//! it, as far as their announcements say: see `planning.rs`.

mod coverage;
mod entry;
mod order;
mod planning;
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
use entry::{ME, MemberNumber, MemberNumbers, ShardEntry};
pub use order::{Coverage, PlanStep, Reason};

/// The number of a shard within one member; never used for two.
pub type ShardNumber = u64;

/// Those that start together see each other before the first of them takes all.
const FIRST_LOOK_AROUND: Duration = Duration::from_millis(200);
/// What changes together is planned once.
const SETTLE: Duration = Duration::from_millis(30);
/// One that joins has looked around by then, and stands ready for what it is given.
const SETTLE_JOIN: Duration = Duration::from_millis(250);
/// And a plan for many shards is made less often.
const SETTLE_PER_SHARD: Duration = Duration::from_micros(1);
/// As many claims are under way at most: the rest waits its turn.
const CLAIMS: usize = 4_000;
/// As many are given away at a time at most.
const LEAVES: usize = 4_000;
/// A shard that is still free after this makes everybody plan again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What was observed of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberState {
    /// Whether it shall own nothing.
    pub drained: bool,
    /// The list that it has announced.
    pub list: ListDigest,
}

/// One member's view of its fleet.
#[derive(Debug)]
pub struct Planner {
    me: CandidateId,
    ttl: Duration,
    /// Why it does not hold the lease on itself, on which the others count; `None` while it does.
    unseated: Option<Reason>,
    seated_at: Moment,
    /// All members that were observed.
    members: Option<BTreeMap<CandidateId, MemberState>>,
    /// The digest of this member's own list.
    list: ListDigest,
    /// Members had announced different lists when it last planned.
    lists_differed: bool,
    ids: MemberNumbers,
    /// The same, as numbers; ourselves always.
    here: HashSet<MemberNumber>,
    entries: Entries,
    numbers: HashMap<Shard, ShardNumber>,
    last_number: ShardNumber,
    unseen: usize,
    free: usize,
    queue: VecDeque<ShardNumber>,
    claiming: usize,
    leaves: VecDeque<ShardNumber>,
    leaving: usize,
    /// Those whose machine has something of a term.
    held: usize,
    plan_at: Option<Moment>,
    look_again: Option<(Moment, Duration)>,
    /// When the plan may change although nothing happens: an adoption has lasted long enough, or a shard was free for so long
    /// that other members take it.
    replan_at: Option<Moment>,
}

/// Many, and gone through as a whole. Hashed the same in every process: a simulation gives the same history twice.
type Entries = HashMap<ShardNumber, ShardEntry, BuildHasherDefault<DefaultHasher>>;

impl Planner {
    /// The member `me`, which holds nothing yet and has not seen anything.
    pub fn new(me: CandidateId, ttl: Duration) -> Self {
        let mut ids = MemberNumbers::default();
        let here = HashSet::from([ids.of(me.as_str())]);
        Planner {
            me,
            ttl,
            unseated: Some(Reason::Expired),
            seated_at: Moment::NEVER,
            members: None,
            list: ListDigest::default(),
            lists_differed: false,
            ids,
            here,
            entries: Entries::default(),
            numbers: HashMap::new(),
            last_number: 0,
            unseen: 0,
            free: 0,
            queue: VecDeque::new(),
            claiming: 0,
            leaves: VecDeque::new(),
            leaving: 0,
            held: 0,
            plan_at: None,
            look_again: None,
            replan_at: None,
        }
    }

    // ---- what is seen ----

    /// The source names these shards, in order; some of them are paused.
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
                // Named again while its last work still ends: begun anew after that.
                Some(entry) => {
                    hashes.push(entry.hash);
                    entry.gone = entry.gone.map(|_| true);
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
                if entry.gone.is_none() {
                    changed = true;
                    entry.wanted = false;
                    out.push(PlanStep::Drop(number, Reason::Removed));
                }
                entry.gone = Some(false);
            }
        }
        if changed {
            self.note_free_all(now);
            self.plan_soon(now);
        }
    }

    /// Returns the hash of its name.
    fn add(&mut self, now: Moment, shard: Shard, paused: bool, out: &mut Vec<PlanStep>) -> u64 {
        self.last_number += 1;
        let number = self.last_number;
        self.unseen += 1;
        let hash = placement::hash(shard.as_str());
        let entry = ShardEntry {
            hash,
            shard: shard.clone(),
            seen: false,
            broken: false,
            paused,
            gone: None,
            owner: None,
            owner_works: false,
            planned: None,
            phase: Phase::Waiting,
            wanted: false,
            queued: false,
            claiming: false,
            leave: None,
            leaving: false,
            adopted: None,
            adoptions: 0,
            free_since: None,
            added_at: now,
            offered: Moment::NEVER,
        };
        self.entries.insert(number, entry);
        self.numbers.insert(shard.clone(), number);
        out.push(PlanStep::Add(number, shard));
        hash
    }

    /// The digest of the list that the source names, for the other members.
    pub fn list(&self) -> &ListDigest {
        &self.list
    }

    /// What was observed of the members, last.
    pub fn observed_members(&self) -> impl Iterator<Item = (&CandidateId, &MemberState)> {
        self.members.iter().flatten()
    }

    /// These members are there.
    pub fn members(&mut self, now: Moment, members: BTreeMap<CandidateId, MemberState>) {
        if self.members.as_ref() == Some(&members) {
            return;
        }
        self.here = members.keys().map(|id| self.ids.of(id.as_str())).collect();
        self.here.insert(self.ids.of(self.me.as_str()));
        let before = self.members.replace(members).unwrap_or_default();
        self.note_free_all(now);
        // Who went is replaced at once; who came, to whom something is given, is not hurried.
        let members = self.members.iter().flatten();
        let drained = |id| before.get(id).map(|state| state.drained);
        let kept = members.filter(|(id, state)| drained(*id) == Some(state.drained)).count();
        let joined = !before.is_empty() && kept == before.len();
        self.plan_within(now, if joined { SETTLE_JOIN } else { SETTLE });
    }

    /// This member holds the lease on itself: the others count on it.
    pub fn seated(&mut self, now: Moment) {
        if self.unseated.take().is_some() {
            self.seated_at = now;
            self.plan_at = Some(now + FIRST_LOOK_AROUND);
        }
    }

    /// It does not any more, and so gives up what it has.
    pub fn unseated(&mut self, now: Moment, reason: Reason) {
        if self.unseated.is_none() {
            self.unseated = Some(reason);
            self.plan_at = Some(now);
        }
    }

    /// The lease of a shard was looked at, or a claim answered.
    pub fn answered(&mut self, now: Moment, number: ShardNumber) {
        self.seen(now, number, false);
    }

    /// The lease of a shard cannot be read: an operator must act.
    pub fn broken(&mut self, now: Moment, number: ShardNumber) {
        self.seen(now, number, true);
    }

    fn seen(&mut self, now: Moment, number: ShardNumber, broken: bool) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if std::mem::take(&mut entry.claiming) {
            self.claiming -= 1;
        }
        let first = !std::mem::replace(&mut entry.seen, true);
        let changed = first || entry.broken != broken;
        entry.broken = broken;
        if first {
            self.unseen -= 1;
        }
        if changed {
            self.note_free(now, number);
            self.plan_soon(now);
        }
    }

    /// Another member holds the lease of a shard now, or none; `works` unless the holder is in its start-up wait.
    pub fn owner(&mut self, now: Moment, number: ShardNumber, owner: Option<&str>, works: bool) {
        let owner = owner.map(|owner| self.ids.of(owner));
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let before = std::mem::replace(&mut entry.owner, owner);
        entry.owner_works = works;
        // As planned: it went to whom it should, or from somebody who should not have it. An adoption was in nobody's plan.
        let expected = match owner {
            Some(_) => owner == entry.planned && entry.adopted.is_none(),
            None => entry.planned.is_some() && entry.planned != before,
        };
        if owner.is_some_and(|owner| owner != ME) {
            (entry.adopted, entry.adoptions) = (None, 0);
        }
        self.note_free(now, number);
        if !expected {
            self.plan_soon(now);
        }
    }

    /// The machine of a shard stands elsewhere now.
    pub fn moved(
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
        if !is_held(phase) && std::mem::take(&mut entry.leaving) {
            self.leaving -= 1;
        }
        if phase == Phase::Stopped {
            self.forget(now, number, out);
        } else {
            self.note_free(now, number);
        }
    }

    fn forget(&mut self, now: Moment, number: ShardNumber, out: &mut Vec<PlanStep>) {
        let Some(entry) = self.entries.remove(&number) else { return };
        self.unseen -= usize::from(!entry.seen);
        self.claiming -= usize::from(entry.claiming);
        self.leaving -= usize::from(entry.leaving);
        self.free -= usize::from(entry.free_since.is_some());
        self.numbers.remove(&entry.shard);
        if entry.gone == Some(true) {
            self.add(now, entry.shard, entry.paused, out);
        }
    }

    // ---- what follows ----

    /// When to come back; `None` when only an event can change anything.
    pub fn wake_at(&self) -> Option<Moment> {
        let plan_at = self.plan_at.filter(|_| self.can_plan());
        let look_again = self.look_again.map(|(at, _)| at).filter(|_| self.free > 0);
        let replan_at = self.replan_at.filter(|_| self.can_plan());
        [plan_at, look_again, replan_at].into_iter().flatten().min()
    }

    /// Adds what is to be done now to `out`.
    pub fn act(&mut self, now: Moment, out: &mut Vec<PlanStep>) {
        match self.look_again {
            Some((at, pause)) if self.free > 0 && now >= at => {
                self.look_again = Some((now + pause, (pause * 2).min(self.ttl)));
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
            self.settle(out);
        }
        self.give_away(out);
        self.claim(out);
    }

    /// Whether nothing of any term is left.
    pub fn holds_nothing(&self) -> bool {
        self.held == 0
    }

    /// All the shards it knows of.
    pub fn numbers(&self) -> impl Iterator<Item = ShardNumber> {
        self.entries.keys().copied()
    }

    fn can_plan(&self) -> bool {
        // One that is no member gives up what it has, whatever it knows.
        !self.takes_part() || (self.members.is_some() && self.unseen == 0)
    }

    fn takes_part(&self) -> bool {
        self.unseated.is_none()
    }

    fn plan_soon(&mut self, now: Moment) {
        self.plan_within(now, SETTLE);
    }

    fn plan_within(&mut self, now: Moment, settle: Duration) {
        let many = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        let at = now + settle + SETTLE_PER_SHARD * many;
        self.plan_at = Some(self.plan_at.map_or(at, |before| before.min(at)));
        self.look_again = Some((at + LOOK_AGAIN, LOOK_AGAIN * 2));
    }

    /// Turns the plan into orders; claims wait in the queue.
    fn settle(&mut self, out: &mut Vec<PlanStep>) {
        let me = ME;
        let takes_part = self.takes_part();
        let drained = self
            .members
            .as_ref()
            .and_then(|members| members.get(&self.me))
            .is_some_and(|state| state.drained);
        for (&number, entry) in &mut self.entries {
            if entry.gone.is_some() {
                continue;
            }
            let should = takes_part && entry.counts() && entry.planned == Some(me);
            if should && !entry.wanted && !entry.queued {
                entry.queued = true;
                self.queue.push_back(number);
            }
            if should {
                entry.leave = None;
                continue;
            }
            entry.queued = false;
            let has = matches!(entry.phase, Phase::Leading | Phase::Starting);
            if !std::mem::take(&mut entry.wanted) && !has {
                continue;
            }
            if entry.phase != Phase::Leading {
                out.push(PlanStep::Rest(number));
                continue;
            }
            let reason = match self.unseated {
                Some(reason) => reason,
                None if entry.paused => Reason::Paused,
                None if drained => Reason::Drain,
                None => Reason::Rebalance,
            };
            let next = entry.planned.filter(|next| *next != me);
            if entry.leave.replace((next, reason)).is_none() {
                self.leaves.push_back(number);
            }
        }
    }

    /// Takes from the queue as many as may end at a time.
    fn give_away(&mut self, out: &mut Vec<PlanStep>) {
        while self.leaving < LEAVES {
            let Some(number) = self.leaves.pop_front() else { break };
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            let Some((next, reason)) = entry.leave.take() else { continue };
            if entry.phase == Phase::Leading {
                entry.leaving = true;
                self.leaving += 1;
                let next = next.map(|next| &self.ids.names[next as usize]);
                let next = next.and_then(|next| CandidateId::new(next).ok());
                out.push(PlanStep::Leave(number, next, reason));
            }
        }
    }

    /// Takes from the queue as many as may be under way.
    fn claim(&mut self, out: &mut Vec<PlanStep>) {
        while self.claiming < CLAIMS {
            let Some(number) = self.queue.pop_front() else { break };
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

/// Whether there may be work, or a lease to give back.
fn is_held(phase: Phase) -> bool {
    matches!(phase, Phase::Starting | Phase::Leading | Phase::Resigning)
}
