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
//! little later each time; one that stays free for longer than a TTL is taken by those that prefer it next, for whoever should
//! have it may not know of it. Such a one is kept for some TTLs even against the share, and longer each time it was in vain to
//! offer it: members whose lists differ would pass it on and on.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use super::Shard;
use crate::clock::Moment;
use crate::election::Phase;
use crate::lease::CandidateId;
use crate::placement::{self, Item};

/// The number of a shard within one member; never used for two.
pub type Number = u64;

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
/// So many TTLs an adopted shard is kept, whatever the share; twice as many each time nobody else has taken it after that.
const ADOPTED_FOR: u32 = 4;
/// And so often that doubles at most.
const ADOPTED_DOUBLES: u32 = 5;
/// A shard that is still free after this makes everybody plan again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What is to be done about a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// There is such a shard: look at its lease from now on, and do not campaign.
    Add(Number, Shard),
    /// Campaign for it.
    Claim(Number),
    /// Do not campaign for it any more.
    Rest(Number),
    /// End its work, then release it, and name who should come next.
    Leave(Number, Option<CandidateId>, Reason),
    /// There is no such shard any more: do the same where there is work, and forget it.
    Drop(Number, Reason),
}

/// Why a shard was taken from its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Somebody else should have it.
    Rebalance,
    /// This member leaves.
    Shutdown,
    /// Its lease, or the membership, could not be kept.
    Expired,
    /// Somebody has paused it.
    Paused,
    /// Somebody has drained this member.
    Drain,
    /// This member is not fit to work.
    Unhealthy,
    /// The source of shards does not name it any more.
    Removed,
}

impl Reason {
    /// The word used in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Rebalance => "rebalance",
            Reason::Shutdown => "shutdown",
            Reason::Expired => "expired",
            Reason::Paused => "paused",
            Reason::Drain => "drain",
            Reason::Unhealthy => "unhealthy",
            Reason::Removed => "removed",
        }
    }
}

/// How many shards have an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coverage {
    /// All that the source names.
    pub shards: usize,
    /// Those nobody should own now.
    pub paused: usize,
    /// Those this member owns.
    pub mine: usize,
    /// Those nobody owns, as far as is known here.
    pub free: usize,
    /// Those nobody has owned for longer than a TTL.
    pub unowned: usize,
}

/// One member's view of its fleet.
#[derive(Debug)]
pub struct Steward {
    me: CandidateId,
    ttl: Duration,
    /// Why it does not hold the lease on itself, on which the others count; `None` while it does.
    unseated: Option<Reason>,
    seated_at: Moment,
    /// Everybody that is there, and whether it was drained.
    members: Option<BTreeMap<CandidateId, bool>>,
    ids: Ids,
    /// The same, as numbers; ourselves always.
    here: HashSet<Id>,
    entries: Entries,
    numbers: HashMap<Shard, Number>,
    last_number: Number,
    unseen: usize,
    free: usize,
    queue: VecDeque<Number>,
    claiming: usize,
    leaves: VecDeque<Number>,
    leaving: usize,
    /// Those whose machine has something of a term.
    held: usize,
    plan_at: Option<Moment>,
    look_again: Option<(Moment, Duration)>,
    /// When the first adoption has lasted long enough.
    adopted_until: Option<Moment>,
}

/// Many, and gone through as a whole. Hashed the same in every process: a simulation gives the same history twice.
type Entries = HashMap<Number, Entry, BuildHasherDefault<DefaultHasher>>;

#[derive(Debug)]
struct Entry {
    shard: Shard,
    hash: u64,
    /// Its lease was looked at.
    seen: bool,
    /// Its lease cannot be read: nobody can own it.
    broken: bool,
    paused: bool,
    /// The source does not name it any more; `Some(true)`: it does again.
    gone: Option<bool>,
    owner: Option<Id>,
    /// The owner is not in its start-up wait.
    owner_works: bool,
    planned: Option<Id>,
    phase: Phase,
    /// Its machine was told to campaign.
    wanted: bool,
    queued: bool,
    /// A claim is under way.
    claiming: bool,
    /// It is to be given away: to whom, and why.
    leave: Option<(Option<Id>, Reason)>,
    /// It is being given away.
    leaving: bool,
    /// Taken because whoever should have it did not; until when it is kept, even if others should have more.
    adopted: Option<Moment>,
    /// How often in a row.
    adoptions: u32,
    free_since: Option<Moment>,
    /// Since when it is planned for whom it is planned for.
    offered: Moment,
}

impl Entry {
    /// Whether somebody should own it.
    fn counts(&self) -> bool {
        !self.paused && !self.broken && self.gone.is_none()
    }
}

/// A member's id, as a number: there are many shards and few members.
type Id = u32;
/// Our own.
const ME: Id = 0;

#[derive(Debug, Default)]
struct Ids {
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, Id>,
}

impl Ids {
    fn of(&mut self, name: &str) -> Id {
        if let Some(id) = self.numbers.get(name) {
            return *id;
        }
        let name: Arc<str> = name.into();
        let id = Id::try_from(self.names.len()).unwrap_or(Id::MAX);
        self.names.push(name.clone());
        self.numbers.insert(name, id);
        id
    }
}

impl Steward {
    /// The member `me`, which holds nothing yet and has not seen anything.
    pub fn new(me: CandidateId, ttl: Duration) -> Self {
        let mut ids = Ids::default();
        let here = HashSet::from([ids.of(me.as_str())]);
        Steward {
            me,
            ttl,
            unseated: Some(Reason::Expired),
            seated_at: Moment::NEVER,
            members: None,
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
            adopted_until: None,
        }
    }

    // ---- what is seen ----

    /// The source names these shards, in order; some of them are paused.
    pub fn shards(
        &mut self,
        now: Moment,
        shards: &[Shard],
        paused: impl Fn(&Shard) -> bool,
        out: &mut Vec<Order>,
    ) {
        debug_assert!(shards.is_sorted());
        let mut changed = false;
        for shard in shards {
            let number = self.numbers.get(shard).copied();
            match number.and_then(|number| self.entries.get_mut(&number)) {
                // Named again while its last work still ends: begun anew after that.
                Some(entry) if entry.gone.is_some() => entry.gone = Some(true),
                Some(_) => {}
                None => {
                    self.add(shard.clone(), paused(shard), out);
                    changed = true;
                }
            }
        }
        for (&number, entry) in &mut self.entries {
            let is_paused = paused(&entry.shard);
            changed |= entry.paused != is_paused;
            entry.paused = is_paused;
            if shards.binary_search(&entry.shard).is_err() {
                if entry.gone.is_none() {
                    changed = true;
                    entry.wanted = false;
                    out.push(Order::Drop(number, Reason::Removed));
                }
                entry.gone = Some(false);
            }
        }
        if changed {
            self.note_free_all(now);
            self.plan_soon(now);
        }
    }

    fn add(&mut self, shard: Shard, paused: bool, out: &mut Vec<Order>) {
        self.last_number += 1;
        let number = self.last_number;
        self.unseen += 1;
        let entry = Entry {
            hash: placement::hash(shard.as_str()),
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
            offered: Moment::NEVER,
        };
        self.entries.insert(number, entry);
        self.numbers.insert(shard.clone(), number);
        out.push(Order::Add(number, shard));
    }

    /// These members are there; `true` for those that were drained.
    pub fn members(&mut self, now: Moment, members: BTreeMap<CandidateId, bool>) {
        if self.members.as_ref() == Some(&members) {
            return;
        }
        self.here = members.keys().map(|id| self.ids.of(id.as_str())).collect();
        self.here.insert(self.ids.of(self.me.as_str()));
        let before = self.members.replace(members).unwrap_or_default();
        self.note_free_all(now);
        // Who went is replaced at once; who came, to whom something is given, is not hurried.
        let members = self.members.iter().flatten();
        let kept = members.filter(|(id, drained)| before.get(*id) == Some(*drained)).count();
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
    pub fn answered(&mut self, now: Moment, number: Number) {
        self.seen(now, number, false);
    }

    /// The lease of a shard cannot be read: an operator must act.
    pub fn broken(&mut self, now: Moment, number: Number) {
        self.seen(now, number, true);
    }

    fn seen(&mut self, now: Moment, number: Number, broken: bool) {
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
    pub fn owner(&mut self, now: Moment, number: Number, owner: Option<&str>, works: bool) {
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
    pub fn moved(&mut self, now: Moment, number: Number, phase: Phase, out: &mut Vec<Order>) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let before = std::mem::replace(&mut entry.phase, phase);
        self.held += usize::from(is_held(phase));
        self.held -= usize::from(is_held(before));
        if !is_held(phase) && std::mem::take(&mut entry.leaving) {
            self.leaving -= 1;
        }
        if phase == Phase::Stopped {
            self.forget(number, out);
        } else {
            self.note_free(now, number);
        }
    }

    fn forget(&mut self, number: Number, out: &mut Vec<Order>) {
        let Some(entry) = self.entries.remove(&number) else { return };
        self.unseen -= usize::from(!entry.seen);
        self.claiming -= usize::from(entry.claiming);
        self.leaving -= usize::from(entry.leaving);
        self.free -= usize::from(entry.free_since.is_some());
        self.numbers.remove(&entry.shard);
        if entry.gone == Some(true) {
            self.add(entry.shard, entry.paused, out);
        }
    }

    // ---- what follows ----

    /// When to come back; `None` when only an event can change anything.
    pub fn wake_at(&self) -> Option<Moment> {
        let plan_at = self.plan_at.filter(|_| self.can_plan());
        let look_again = self.look_again.map(|(at, _)| at).filter(|_| self.free > 0);
        let adopted_until = self.adopted_until.filter(|_| self.can_plan());
        [plan_at, look_again, adopted_until].into_iter().flatten().min()
    }

    /// Adds what is to be done now to `out`.
    pub fn act(&mut self, now: Moment, out: &mut Vec<Order>) {
        match self.look_again {
            Some((at, pause)) if self.free > 0 && now >= at => {
                self.look_again = Some((now + pause, (pause * 2).min(self.ttl)));
                self.plan_at.get_or_insert(now);
            }
            _ => {}
        }
        if self.adopted_until.is_some_and(|at| now >= at) {
            self.adopted_until = None;
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

    /// Where things stand.
    pub fn coverage(&self, now: Moment) -> Coverage {
        let mut coverage = Coverage { free: self.free, ..Coverage::default() };
        for entry in self.entries.values() {
            coverage.shards += usize::from(entry.gone != Some(false));
            coverage.paused += usize::from(entry.paused);
            coverage.mine += usize::from(entry.phase == Phase::Leading);
            let overdue = entry.free_since.is_some_and(|since| now.since(since) > self.ttl);
            coverage.unowned += usize::from(overdue);
        }
        coverage
    }

    /// Those nobody has owned for longer than a TTL, or can own at all; at most `most`.
    pub fn unowned(&self, now: Moment, most: usize) -> Vec<Shard> {
        let overdue = self
            .entries
            .values()
            .filter(|entry| entry.free_since.is_some_and(|since| now.since(since) > self.ttl));
        overdue.take(most).map(|entry| entry.shard.clone()).collect()
    }

    /// Whether nothing of any term is left.
    pub fn holds_nothing(&self) -> bool {
        self.held == 0
    }

    /// All the shards it knows of.
    pub fn numbers(&self) -> impl Iterator<Item = Number> {
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

    /// The members to plan with: as seen, and ourselves exactly as long as we hold our own lease.
    fn present(&self) -> BTreeMap<CandidateId, bool> {
        let mut present = self.members.clone().unwrap_or_default();
        if self.takes_part() {
            present.entry(self.me.clone()).or_insert(false);
        } else {
            present.remove(&self.me);
        }
        present
    }

    fn plan(&mut self, now: Moment) {
        let present = self.present();
        let members: Vec<placement::Member<'_>> = present
            .iter()
            .map(|(id, drained)| placement::Member { id: id.as_str(), drained: *drained })
            .collect();
        let ids: Vec<Id> = present.keys().map(|id| self.ids.of(id.as_str())).collect();
        let mut index = vec![None; self.ids.names.len()];
        for (at, id) in (0..).zip(&ids) {
            index[*id as usize] = Some(at);
        }
        let counted = || self.entries.values().filter(|entry| entry.counts());
        let items: Vec<Item> = counted()
            .map(|entry| Item {
                hash: entry.hash,
                owner: entry.owner.and_then(|owner| index[owner as usize]),
                adopted: entry.adopted.is_some(),
            })
            .collect();
        let mut planned = placement::plan_hashed(&members, &items).into_iter();
        let me = ME;
        let mine = index[me as usize].filter(|at| !members[*at as usize].drained);
        self.adopted_until = None;
        for entry in self.entries.values_mut() {
            let before = entry.planned.take();
            if !entry.counts() {
                continue;
            }
            let target = planned.next().flatten().map(|target| ids[target as usize]);
            if target != before && entry.adopted.is_none() {
                entry.offered = now;
            }
            entry.planned = target;
            entry.adopted = entry.adopted.filter(|until| now < *until);
            let Some(mine) = mine.filter(|_| entry.planned != Some(me)) else { continue };
            // Whoever should have it has not taken it for so long that it may not know of it.
            // Before it was offered to them, or before we could have taken it ourselves, nobody was to blame.
            let offered = entry.offered.max(self.seated_at);
            let waited =
                entry.free_since.map_or(0, |since| waits(now.since(since.max(offered)), self.ttl));
            // Who had to take it before does so again without letting those go first that did not.
            let rank = || placement::rank(&members, entry.hash, mine);
            let next =
                waited > 0 && (entry.adoptions > 0 || rank().is_some_and(|rank| rank <= waited));
            if next && entry.adopted.is_none() {
                let doubled = ADOPTED_FOR << entry.adoptions.min(ADOPTED_DOUBLES);
                entry.adopted = Some(now + self.ttl * doubled);
                entry.adoptions = entry.adoptions.saturating_add(1);
            }
            if next || (entry.adopted.is_some() && entry.owner == Some(me)) {
                entry.planned = Some(me);
                self.adopted_until = self.adopted_until.min(entry.adopted).or(entry.adopted);
            }
        }
    }

    /// Turns the plan into orders; claims wait in the queue.
    fn settle(&mut self, out: &mut Vec<Order>) {
        let me = ME;
        let takes_part = self.takes_part();
        let drained =
            self.members.as_ref().and_then(|members| members.get(&self.me)) == Some(&true);
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
                out.push(Order::Rest(number));
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
    fn give_away(&mut self, out: &mut Vec<Order>) {
        while self.leaving < LEAVES {
            let Some(number) = self.leaves.pop_front() else { break };
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            let Some((next, reason)) = entry.leave.take() else { continue };
            if entry.phase == Phase::Leading {
                entry.leaving = true;
                self.leaving += 1;
                let next = next.map(|next| &self.ids.names[next as usize]);
                let next = next.and_then(|next| CandidateId::new(next).ok());
                out.push(Order::Leave(number, next, reason));
            }
        }
    }

    /// Takes from the queue as many as may be under way.
    fn claim(&mut self, out: &mut Vec<Order>) {
        while self.claiming < CLAIMS {
            let Some(number) = self.queue.pop_front() else { break };
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            if std::mem::take(&mut entry.queued) {
                entry.wanted = true;
                entry.claiming = true;
                self.claiming += 1;
                out.push(Order::Claim(number));
            }
        }
    }

    // ---- what is free ----

    fn note_free_all(&mut self, now: Moment) {
        let numbers: Vec<Number> = self.entries.keys().copied().collect();
        for number in numbers {
            self.note_free(now, number);
        }
    }

    /// Notes since when nobody that is there owns a shard.
    fn note_free(&mut self, now: Moment, number: Number) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let works = entry.owner.filter(|_| entry.owner_works);
        let owned =
            works.is_some_and(|owner| self.here.contains(&owner)) || entry.phase == Phase::Leading;
        let free = entry.seen && !owned && !entry.paused && entry.gone.is_none();
        match (entry.free_since, free) {
            (None, true) => {
                entry.free_since = Some(now);
                self.free += 1;
            }
            (Some(_), false) => {
                entry.free_since = None;
                self.free -= 1;
            }
            _ => {}
        }
    }
}

/// Whether there may be work, or a lease to give back.
fn is_held(phase: Phase) -> bool {
    matches!(phase, Phase::Starting | Phase::Leading | Phase::Resigning)
}

/// How many whole TTLs that was.
fn waits(time: Duration, ttl: Duration) -> usize {
    usize::try_from(time.as_nanos() / ttl.as_nanos().max(1)).unwrap_or(usize::MAX)
}
