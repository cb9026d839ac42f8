//! The driver and `MemberContext`: `src/driver.rs` and `src/fleet/member.rs` without futures.

use tenure::fleet::ShardNumber;
use tenure::machine::{Effect, EndReason, Input, Phase, TermEnd, TermStart};
use tenure::store::Change;
use tenure::{Claim, Kind, Moment};

use super::{Command, MEMBERSHIP, MemberEffect, MemberInput, Process, TimedMachine, Work};
use crate::mutant::Mutant;
use crate::store::Call;

const MAX_BATCH: usize = 1_000;

/// An input of the driver's loop.
pub(crate) enum DriverInput {
    Woke,
    Answers(Vec<(ShardNumber, Input)>),
    Changed(Vec<Change>),
    Commands,
}

impl Process {
    pub(crate) fn driver_wakes_at(&self) -> Option<Moment> {
        self.timers.first_key_value().map(|(at, _)| *at)
    }

    pub(crate) fn drive(&mut self, now: Moment, input: DriverInput, out: &mut Vec<MemberEffect>) {
        match input {
            DriverInput::Woke => self.woke(now, out),
            DriverInput::Answers(answers) => {
                for (number, event) in answers {
                    self.step(now, number, event, out);
                }
            }
            DriverInput::Changed(changes) => {
                for change in changes {
                    self.changed(now, change, out);
                    self.flush(out);
                }
            }
            DriverInput::Commands => {}
        }
        self.flush(out);
        while let Some(command) = self.commands.pop_front() {
            match command {
                Command::Tell(number, event) => self.step(now, number, event, out),
                Command::Add(number, machine) => {
                    self.names.insert(machine.name().clone(), number);
                    let phase = machine.phase();
                    self.machines
                        .insert(number, TimedMachine { machine: *machine, due: None, phase });
                    self.step(now, number, Input::Woke, out);
                }
                Command::Close => self.open = false,
            }
        }
        self.flush(out);
        if !self.open && self.machines.is_empty() {
            out.push(MemberEffect::Over);
        }
    }

    fn woke(&mut self, now: Moment, out: &mut Vec<MemberEffect>) {
        let mut due = Vec::new();
        while let Some(lot) = self.timers.first_entry().filter(|lot| *lot.key() <= now) {
            due.append(&mut lot.remove());
        }
        for number in due {
            let Some(timed) = self.machines.get_mut(&number) else { continue };
            if timed.due.is_some_and(|due| due <= now) {
                timed.due = None;
                self.step(now, number, Input::Woke, out);
            }
        }
    }

    fn changed(&mut self, now: Moment, change: Change, out: &mut Vec<MemberEffect>) {
        let number = match &change {
            Change::Granted { name, .. } | Change::Freed { name, .. } => self.names.get(name),
            _ => {
                let all: Vec<ShardNumber> = self.machines.keys().copied().collect();
                for number in all {
                    self.step(now, number, Input::Changed(Change::Look), out);
                }
                return;
            }
        };
        if let Some(&number) = number {
            self.step(now, number, Input::Changed(change), out);
        }
    }

    fn step(
        &mut self,
        now: Moment,
        number: ShardNumber,
        event: Input,
        out: &mut Vec<MemberEffect>,
    ) {
        let mut event = Some(event);
        let mut effects = Vec::new();
        while let Some(next) = event.take() {
            let Some(timed) = self.machines.get_mut(&number) else { return };
            let definite = is_definite(&next);
            self.steps += 1;
            timed.machine.step(now, next, &mut effects);
            for effect in effects.drain(..) {
                if self.act(now, number, effect, out) {
                    event = Some(Input::WorkEnded);
                }
            }
            if definite
                && let Some(slot) = self.slots.get_mut(&number)
                && std::mem::take(&mut slot.expected)
                && number != MEMBERSHIP
            {
                self.inputs.push_back(MemberInput::Answered(number));
            }
            let Some(timed) = self.machines.get_mut(&number) else { return };
            let phase = timed.machine.phase();
            let moved = std::mem::replace(&mut timed.phase, phase) != phase;
            if phase == Phase::Stopped {
                self.names.remove(timed.machine.name());
                self.machines.remove(&number);
            } else if let Some(at) = timed.machine.wake_at()
                && timed.due != Some(at)
            {
                timed.due = Some(at);
                self.timers.entry(at).or_default().push(number);
            }
            if moved {
                self.moved(number, phase);
            }
        }
    }

    fn moved(&mut self, number: ShardNumber, phase: Phase) {
        if phase == Phase::Stopped {
            self.slots.remove(&number);
        }
        if number != MEMBERSHIP {
            self.inputs.push_back(MemberInput::PhaseChanged(number, phase));
        }
    }

    /// Returns whether a term without work has ended.
    fn act(
        &mut self,
        now: Moment,
        id: ShardNumber,
        effect: Effect,
        out: &mut Vec<MemberEffect>,
    ) -> bool {
        let Some(timed) = self.machines.get(&id) else { return false };
        match effect {
            Effect::Acquire(request, nonce, wait) => {
                let (name, me) = (timed.machine.name().clone(), self.me.clone());
                let mut claim = Claim::new(name, me, nonce, self.timing.ttl);
                claim.wait = wait;
                self.batch.acquire.push((id, request, claim));
            }
            Effect::Renew(request, hold) => self.batch.renew.push((id, request, hold)),
            Effect::Release(request, release) => {
                if let Some(shard) = self.shard_of(id) {
                    out.push(MemberEffect::Releases { shard, token: release.hold.token });
                }
                self.batch.release.push((id, request, release));
            }
            Effect::Observe(request) => {
                let name = timed.machine.name().clone();
                self.batch.observe.push((id, request, name));
            }
            Effect::Lead(lead) => self.lead(now, id, &lead, out),
            Effect::Extend(deadline) => {
                let Some(slot) = self.slots.get(&id) else { return false };
                if let (Some(shard), Some(work)) = (slot.shard, &slot.work) {
                    out.push(MemberEffect::Extended { shard, token: work.token, deadline });
                }
            }
            Effect::End(ending) => return self.end(id, &ending, out),
            Effect::HolderChanged(holder, leads) if id != MEMBERSHIP => {
                self.inputs.push_back(MemberInput::Owner(id, holder, leads));
            }
            Effect::Unreachable(error) if id != MEMBERSHIP && error.kind() != Kind::Unavailable => {
                self.inputs.push_back(MemberInput::Broken(id));
            }
            _ => {}
        }
        false
    }

    fn shard_of(&self, id: ShardNumber) -> Option<usize> {
        self.slots.get(&id)?.shard
    }

    fn lead(
        &mut self,
        now: Moment,
        id: ShardNumber,
        lead: &TermStart,
        out: &mut Vec<MemberEffect>,
    ) {
        let (token, deadline) = (lead.hold.token, lead.deadline);
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let Some(shard) = slot.shard else {
            self.membership = Some(lead.hold.clone());
            out.push(MemberEffect::MembershipChanged(true));
            return self.inputs.push_back(MemberInput::MembershipAcquired);
        };
        // Otherwise the term is over already, and the driver is about to report its end.
        if now < deadline {
            slot.work = Some(Work { token, revoked: false });
            out.push(MemberEffect::Led { shard, token, deadline });
        }
    }

    fn end(&mut self, id: ShardNumber, ending: &TermEnd, out: &mut Vec<MemberEffect>) -> bool {
        let lost = matches!(
            ending.reason,
            EndReason::Unreachable(_)
                | EndReason::StoreError(_)
                | EndReason::Paused(_)
                | EndReason::Refused(_)
        );
        let is_member = self.is_member();
        let Some(slot) = self.slots.get_mut(&id) else { return true };
        let Some(shard) = slot.shard else {
            self.membership = None;
            out.push(MemberEffect::MembershipChanged(false));
            self.inputs.push_back(MemberInput::MembershipLost);
            return true;
        };
        let Some(work) = &mut slot.work else { return true };
        if self.mutant == Mutant::MembershipIsRight && lost && is_member {
            let deadline = Moment::from_nanos(u64::MAX >> 1);
            out.push(MemberEffect::Extended { shard, token: work.token, deadline });
            return false;
        }
        work.revoked = true;
        let (token, deadline) = (work.token, ending.deadline);
        out.push(MemberEffect::Revoked { number: id, shard, token, deadline, lost });
        self.mutant == Mutant::ReleaseBeforeEnd
    }

    /// Sends the batch: renewals first, each operation in as few calls as possible.
    fn flush(&mut self, out: &mut Vec<MemberEffect>) {
        let batch = std::mem::take(&mut self.batch);
        let mut send = |call| out.push(MemberEffect::Call(call));
        batch.renew.chunks(MAX_BATCH).for_each(|lot| send(Call::Renew(lot.to_vec())));
        batch.release.chunks(MAX_BATCH).for_each(|lot| send(Call::Release(lot.to_vec())));
        batch.acquire.chunks(MAX_BATCH).for_each(|lot| send(Call::Acquire(lot.to_vec())));
        batch.observe.chunks(MAX_BATCH).for_each(|lot| send(Call::Observe(lot.to_vec())));
    }

    pub(super) fn presumes(&self, now: Moment, id: ShardNumber, out: &mut Vec<MemberEffect>) {
        if let Some(shard) = self.shard_of(id) {
            out.push(MemberEffect::Presumes { shard, deadline: now + self.timing.ttl });
        }
    }
}

/// A copy of `Input::is_definite`, which is private to the library.
fn is_definite(event: &Input) -> bool {
    match event {
        Input::Acquired(_, answer) => answer.is_ok(),
        Input::Renewed(_, answer) => answer.is_ok(),
        Input::Released(_, answer) => answer.is_ok(),
        Input::Observed(_, answer) => answer.is_ok(),
        _ => false,
    }
}
