//! The coordinator: `src/fleet/coordinator.rs` without futures. One call is one round of its loop; both must behave the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::fleet::planner::{MemberState, PlanStep, Reason};
use tenure::fleet::{ListDigest, Shard, ShardNumber};
use tenure::machine::{Input, Machine};
use tenure::{CandidateId, Moment};

use super::{Command, MEMBERSHIP, MemberEffect, MemberInput, Process, Slot, index};
use crate::mutant::Mutant;
use crate::store::{Call, SimSnapshot};

const LEAVE_NOTICE: Duration = Duration::from_millis(100);
const EXPIRY_SLACK: Duration = Duration::from_millis(5);
const RETRY_DELAY: Duration = Duration::from_secs(1);
pub(super) const ANNOUNCEMENT_DELAY: Duration = Duration::from_millis(200);

/// An input of the coordinator's loop.
pub(crate) enum CoordinatorInput {
    Woke,
    Inputs,
    /// An observation of the fleet has completed; `None`: it has failed.
    Observed(Option<SimSnapshot>),
    Read(Arc<Vec<Shard>>),
    Announced(ListDigest),
    /// A hint that members or overrides have changed.
    Nudge,
}

impl Process {
    pub(crate) fn coordinator_wakes_at(&self) -> Moment {
        let observe_at = Some(self.observe_at).filter(|_| !self.observing);
        let acts_at = self.leave_at.or_else(|| self.planner.wake_at()).filter(|_| !self.closing);
        let announce_at = self.is_unannounced().then_some(self.announce_at);
        let wake_at = [acts_at, observe_at, announce_at].into_iter().flatten().min();
        wake_at.unwrap_or(Moment::from_nanos(u64::MAX >> 1))
    }

    pub(crate) fn decide(
        &mut self,
        now: Moment,
        input: CoordinatorInput,
        out: &mut Vec<MemberEffect>,
    ) {
        match input {
            CoordinatorInput::Woke => self.observe_again |= now >= self.observe_at,
            CoordinatorInput::Nudge => self.observe_again = true,
            CoordinatorInput::Inputs => {
                while let Some(input) = self.inputs.pop_front() {
                    self.handle_input(now, input);
                }
            }
            CoordinatorInput::Observed(snapshot) => self.observed(now, snapshot),
            CoordinatorInput::Announced(list) => self.announced = Some(list),
            CoordinatorInput::Read(shards) => {
                if self.shards.as_ref() != Some(&shards) {
                    self.observe_delay = ANNOUNCEMENT_DELAY;
                    self.observe_at = self.observe_at.min(now + ANNOUNCEMENT_DELAY);
                    self.shards = Some(shards);
                    self.shards_changed(now);
                }
            }
        }
        self.act_on_plan(now, out);
        if let Some(hold) = self.membership.clone().filter(|_| self.is_unannounced())
            && now >= self.announce_at
        {
            self.announce_at = now + RETRY_DELAY;
            self.announcements += 1;
            let list = self.planner.list().clone();
            out.push(MemberEffect::Call(Call::Announce(hold, self.announcements, list)));
        }
        if !self.observing && std::mem::take(&mut self.observe_again) {
            self.observing = true;
            self.observe_at = now + self.timing.retry;
            out.push(MemberEffect::Call(Call::ObserveFleet(now)));
        }
    }

    /// As `next_observe_delay` of the library's coordinator.
    fn next_observe_delay(&mut self, snapshot: &SimSnapshot, changed: bool) -> Duration {
        let own = self.planner.list();
        if snapshot.members.iter().all(|(_, _, list)| list == own) {
            self.observe_delay = ANNOUNCEMENT_DELAY;
            return self.timing.retry;
        }
        if changed {
            self.observe_delay = ANNOUNCEMENT_DELAY;
        }
        let observe_delay = self.observe_delay.min(self.timing.retry);
        self.observe_delay = 2 * observe_delay;
        observe_delay
    }

    fn is_unannounced(&self) -> bool {
        self.announced.as_ref() != Some(self.planner.list()) && self.membership.is_some()
    }

    fn handle_input(&mut self, now: Moment, input: MemberInput) {
        match input {
            MemberInput::MembershipAcquired => {
                (self.announced, self.announce_at) = (None, now);
                self.planner.membership_acquired(now);
            }
            MemberInput::MembershipLost if self.mutant == Mutant::IgnoresLostMembership => {}
            MemberInput::MembershipLost => self.planner.membership_lost(now, Reason::Expired),
            MemberInput::Owner(number, owner, works) => {
                self.planner.owner(now, number, owner.as_deref(), works);
            }
            MemberInput::PhaseChanged(number, phase) => {
                self.planner.phase_changed(now, number, phase, &mut self.plan_steps);
            }
            MemberInput::Answered(number) => self.planner.answered(now, number),
            MemberInput::Broken(number) => self.planner.broken(now, number),
            MemberInput::Leave => {
                self.send(MEMBERSHIP, Input::Stop);
                self.leave_at.get_or_insert(now + LEAVE_NOTICE);
            }
        }
    }

    fn act_on_plan(&mut self, now: Moment, out: &mut Vec<MemberEffect>) {
        if self.closing || self.leave_at.is_some_and(|at| now < at) {
            return;
        }
        self.notice_over |= self.leave_at.take().is_some();
        self.planner.act(now, &mut self.plan_steps);
        for step in std::mem::take(&mut self.plan_steps) {
            self.apply_step(now, step, out);
        }
        if self.notice_over && self.planner.holds_nothing() {
            self.closing = true;
            let all: Vec<ShardNumber> = self.planner.numbers().collect();
            for number in all {
                self.send(number, Input::Stop);
            }
            self.commands.push_back(Command::Close);
        }
    }

    fn apply_step(&mut self, now: Moment, step: PlanStep, out: &mut Vec<MemberEffect>) {
        match step {
            PlanStep::Add(number, shard) => {
                let machine = self.new_machine(now, &shard);
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
                self.send(number, Input::Wanted(true));
            }
            PlanStep::Withdraw(number) => self.send(number, Input::Wanted(false)),
            PlanStep::Release(number, next, _) => {
                self.send(number, Input::Resign(next));
                if self.mutant == Mutant::LeaveWithoutWaiting {
                    self.send(number, Input::WorkEnded);
                }
                self.send(number, Input::Wanted(false));
            }
            PlanStep::Remove(number, _) => self.send(number, Input::Stop),
        }
    }

    fn new_machine(&mut self, now: Moment, shard: &Shard) -> Machine {
        let name = shard.lease(&self.fleet);
        self.machine(name, now, false)
    }

    fn send(&mut self, number: ShardNumber, event: Input) {
        self.commands.push_back(Command::Tell(number, event));
    }

    fn observed(&mut self, now: Moment, snapshot: Option<SimSnapshot>) {
        self.observing = false;
        let Some(snapshot) = snapshot else {
            self.observe_at = now + RETRY_DELAY;
            return;
        };
        let drained = |id: &CandidateId| snapshot.overrides.drained.contains(id);
        let own = self.planner.list();
        let state = |id: &CandidateId, list: &ListDigest| MemberState {
            drained: drained(id),
            list: if self.mutant == Mutant::IgnoresLists { own } else { list }.clone(),
        };
        let mut members: BTreeMap<CandidateId, MemberState> =
            snapshot.members.iter().map(|(id, _, list)| (id.clone(), state(id, list))).collect();
        if drained(&self.me) {
            members.entry(self.me.clone()).or_default().drained = true;
        }
        let changed = self.observed_lists.as_ref().is_none_or(|before| *before != lists(&snapshot));
        self.planner.members(now, members);
        let until =
            snapshot.members.iter().map(|(_, left, _)| snapshot.sent + *left + EXPIRY_SLACK).min();
        let observe_at = now + self.next_observe_delay(&snapshot, changed);
        self.observed_lists = Some(lists(&snapshot));
        self.observe_at =
            until.map_or(observe_at, |until| observe_at.min(until.max(now + EXPIRY_SLACK)));
        let paused = self.overrides.as_ref().map(|before| &before.paused);
        let changed = paused != Some(&snapshot.overrides.paused);
        self.overrides = Some(snapshot.overrides);
        if changed {
            self.shards_changed(now);
        }
    }

    /// Passes the shards to the planner, but not before the overrides are known.
    fn shards_changed(&mut self, now: Moment) {
        let (Some(shards), Some(overrides)) = (&self.shards, &self.overrides) else { return };
        let paused = |shard: &Shard| overrides.paused.contains(shard);
        self.planner.shards(now, shards, paused, &mut self.plan_steps);
        if !std::mem::replace(&mut self.joins, true) {
            self.send(MEMBERSHIP, Input::Wanted(true));
        }
    }
}

/// The list of each member.
fn lists(snapshot: &SimSnapshot) -> BTreeMap<CandidateId, ListDigest> {
    snapshot.members.iter().map(|(id, _, list)| (id.clone(), list.clone())).collect()
}
