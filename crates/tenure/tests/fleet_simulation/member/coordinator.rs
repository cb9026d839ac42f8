//! The office: `src/fleet/office.rs`, without futures. One turn is one round of its loop; what the two do must be the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::fleet::planner::{MemberState, PlanStep, Reason};
use tenure::fleet::{ListDigest, Shard, ShardNumber};
use tenure::machine::{Input, Machine};
use tenure::{CandidateId, Moment};

use super::{Command, MEMBERSHIP, MemberEffect, Note, Process, Slot, index};
use crate::mutant::Mutant;
use crate::store::{Call, Sight};

const NOTICE: Duration = Duration::from_millis(100);
const AFTER_EXPIRY: Duration = Duration::from_millis(5);
const AGAIN: Duration = Duration::from_secs(1);
pub(super) const ANNOUNCED_AFTER: Duration = Duration::from_millis(200);

/// What wakes the office up.
pub(crate) enum CoordinatorInput {
    Woke,
    Notes,
    /// A look around has come back, or not.
    Saw(Option<Sight>),
    Read(Arc<Vec<Shard>>),
    Announced(ListDigest),
    /// A hint that members or words have changed.
    Nudge,
}

impl Process {
    pub(crate) fn office_wakes_at(&self) -> Moment {
        let look_at = Some(self.look_at).filter(|_| !self.looking);
        let acts_at = self.leave_at.or_else(|| self.steward.wake_at()).filter(|_| !self.leaves);
        let announce_at = self.is_unannounced().then_some(self.announce_at);
        let wake_at = [acts_at, look_at, announce_at].into_iter().flatten().min();
        wake_at.unwrap_or(Moment::from_nanos(u64::MAX >> 1))
    }

    pub(crate) fn decide(
        &mut self,
        now: Moment,
        news: CoordinatorInput,
        out: &mut Vec<MemberEffect>,
    ) {
        match news {
            CoordinatorInput::Woke => self.look_again |= now >= self.look_at,
            CoordinatorInput::Nudge => self.look_again = true,
            CoordinatorInput::Notes => {
                while let Some(note) = self.notes.pop_front() {
                    self.take(now, note);
                }
            }
            CoordinatorInput::Saw(sight) => self.saw(now, sight),
            CoordinatorInput::Announced(list) => self.announced = Some(list),
            CoordinatorInput::Read(shards) => {
                if self.shards.as_ref() != Some(&shards) {
                    self.look_after = ANNOUNCED_AFTER;
                    self.look_at = self.look_at.min(now + ANNOUNCED_AFTER);
                    self.shards = Some(shards);
                    self.shards_changed(now);
                }
            }
        }
        self.carry_on(now, out);
        if let Some(hold) = self.membership.clone().filter(|_| self.is_unannounced())
            && now >= self.announce_at
        {
            self.announce_at = now + AGAIN;
            self.announcements += 1;
            let list = self.steward.list().clone();
            out.push(MemberEffect::Call(Call::Announce(hold, self.announcements, list)));
        }
        if !self.looking && std::mem::take(&mut self.look_again) {
            self.looking = true;
            self.look_at = now + self.timing.retry;
            out.push(MemberEffect::Call(Call::Look(now)));
        }
    }

    /// As `look_again_in` of the library's office.
    fn look_again_in(&mut self, sight: &Sight, changed: bool) -> Duration {
        let own = self.steward.list();
        if sight.members.iter().all(|(_, _, list)| list == own) {
            self.look_after = ANNOUNCED_AFTER;
            return self.timing.retry;
        }
        if changed {
            self.look_after = ANNOUNCED_AFTER;
        }
        let look_after = self.look_after.min(self.timing.retry);
        self.look_after = 2 * look_after;
        look_after
    }

    fn is_unannounced(&self) -> bool {
        self.announced.as_ref() != Some(self.steward.list()) && self.membership.is_some()
    }

    fn take(&mut self, now: Moment, note: Note) {
        match note {
            Note::Seated => {
                (self.announced, self.announce_at) = (None, now);
                self.steward.seated(now);
            }
            Note::Unseated if self.mutant == Mutant::IgnoresUnseated => {}
            Note::Unseated => self.steward.unseated(now, Reason::Expired),
            Note::Owner(number, owner, works) => {
                self.steward.owner(now, number, owner.as_deref(), works);
            }
            Note::Moved(number, phase) => {
                self.steward.moved(now, number, phase, &mut self.orders);
            }
            Note::Answered(number) => self.steward.answered(now, number),
            Note::Broken(number) => self.steward.broken(now, number),
            Note::Leave => {
                self.tell(MEMBERSHIP, Input::Stop);
                self.leave_at.get_or_insert(now + NOTICE);
            }
        }
    }

    fn carry_on(&mut self, now: Moment, out: &mut Vec<MemberEffect>) {
        if self.leaves || self.leave_at.is_some_and(|at| now < at) {
            return;
        }
        self.departs |= self.leave_at.take().is_some();
        self.steward.act(now, &mut self.orders);
        for order in std::mem::take(&mut self.orders) {
            self.carry_out(now, order, out);
        }
        if self.departs && self.steward.holds_nothing() {
            self.leaves = true;
            let all: Vec<ShardNumber> = self.steward.numbers().collect();
            for number in all {
                self.tell(number, Input::Stop);
            }
            self.commands.push_back(Command::Close);
        }
    }

    fn carry_out(&mut self, now: Moment, order: PlanStep, out: &mut Vec<MemberEffect>) {
        match order {
            PlanStep::Add(number, shard) => {
                let machine = self.looks_on(now, &shard);
                let shard = Some(index(&shard));
                self.slots.insert(number, Slot { shard, expected: true, work: None });
                self.commands.push_back(Command::Add(number, Box::new(machine)));
            }
            PlanStep::Claim(number) => {
                if self.mutant == Mutant::PlanIsRight {
                    self.presumes(now, number, out);
                }
                if let Some(slot) = self.slots.get_mut(&number) {
                    slot.expected = true;
                }
                self.tell(number, Input::Wanted(true));
            }
            PlanStep::Rest(number) => self.tell(number, Input::Wanted(false)),
            PlanStep::Leave(number, next, _) => {
                self.tell(number, Input::Resign(next));
                if self.mutant == Mutant::LeaveWithoutWaiting {
                    self.tell(number, Input::WorkEnded);
                }
                self.tell(number, Input::Wanted(false));
            }
            PlanStep::Drop(number, _) => self.tell(number, Input::Stop),
        }
    }

    fn looks_on(&mut self, now: Moment, shard: &Shard) -> Machine {
        let name = shard.lease(&self.fleet);
        let mut machine = self.machine(name, now);
        machine.begin_unwanted();
        machine
    }

    fn tell(&mut self, place: ShardNumber, event: Input) {
        self.commands.push_back(Command::Tell(place, event));
    }

    fn saw(&mut self, now: Moment, sight: Option<Sight>) {
        self.looking = false;
        let Some(sight) = sight else {
            self.look_at = now + AGAIN;
            return;
        };
        let drained = |id: &CandidateId| sight.control.drained.contains(id);
        let own = self.steward.list();
        let state = |id: &CandidateId, list: &ListDigest| MemberState {
            drained: drained(id),
            list: if self.mutant == Mutant::IgnoresLists { own } else { list }.clone(),
        };
        let mut members: BTreeMap<CandidateId, MemberState> =
            sight.members.iter().map(|(id, _, list)| (id.clone(), state(id, list))).collect();
        if drained(&self.me) {
            members.entry(self.me.clone()).or_default().drained = true;
        }
        let changed = self.sight_members.as_ref().is_none_or(|before| *before != lists(&sight));
        self.steward.members(now, members);
        let until =
            sight.members.iter().map(|(_, left, _)| sight.sent + *left + AFTER_EXPIRY).min();
        let look_at = now + self.look_again_in(&sight, changed);
        self.sight_members = Some(lists(&sight));
        self.look_at = until.map_or(look_at, |until| look_at.min(until.max(now + AFTER_EXPIRY)));
        let paused = self.control.as_ref().map(|before| &before.paused);
        let changed = paused != Some(&sight.control.paused);
        self.control = Some(sight.control);
        if changed {
            self.shards_changed(now);
        }
    }

    /// Nobody takes a shard before it is known whether somebody has paused it.
    fn shards_changed(&mut self, now: Moment) {
        let (Some(shards), Some(control)) = (&self.shards, &self.control) else { return };
        let paused = |shard: &Shard| control.paused.contains(shard);
        self.steward.shards(now, shards, paused, &mut self.orders);
        if !std::mem::replace(&mut self.joins, true) {
            self.tell(MEMBERSHIP, Input::Wanted(true));
        }
    }
}

/// The list of each member.
fn lists(sight: &Sight) -> BTreeMap<CandidateId, ListDigest> {
    sight.members.iter().map(|(id, _, list)| (id.clone(), list.clone())).collect()
}
