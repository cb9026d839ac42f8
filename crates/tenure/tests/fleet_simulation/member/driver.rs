//! The driver and the seat: `src/elector.rs` and `src/fleet/seat.rs`, without futures.

use tenure::fleet::ShardNumber;
use tenure::machine::{Effect, EndReason, Input, Phase, TermEnd, TermStart};
use tenure::store::Change;
use tenure::{Claim, Kind, Moment};

use super::{Command, MEMBERSHIP, MemberEffect, Note, Place, Process, Work};
use crate::mutant::Mutant;
use crate::store::Call;

const BATCH: usize = 1_000;

/// What wakes the driver up.
pub(crate) enum DriverInput {
    Woke,
    Answers(Vec<(ShardNumber, Input)>),
    Changed(Vec<Change>),
    Commands,
}

impl Process {
    pub(crate) fn driver_wakes_at(&self) -> Option<Moment> {
        self.wheel.first_key_value().map(|(at, _)| *at)
    }

    pub(crate) fn drive(&mut self, now: Moment, input: DriverInput, out: &mut Vec<MemberEffect>) {
        match input {
            DriverInput::Woke => self.woke(now, out),
            DriverInput::Answers(answers) => {
                for (place, event) in answers {
                    self.step(now, place, event, out);
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
                Command::Tell(place, event) => self.step(now, place, event, out),
                Command::Add(number, machine) => {
                    self.names.insert(machine.name().clone(), number);
                    let phase = machine.phase();
                    self.places.insert(number, Place { machine: *machine, due: None, phase });
                    self.step(now, number, Input::Woke, out);
                }
                Command::Close => self.open = false,
            }
        }
        self.flush(out);
        if !self.open && self.places.is_empty() {
            out.push(MemberEffect::Over);
        }
    }

    fn woke(&mut self, now: Moment, out: &mut Vec<MemberEffect>) {
        let mut due = Vec::new();
        while let Some(lot) = self.wheel.first_entry().filter(|lot| *lot.key() <= now) {
            due.append(&mut lot.remove());
        }
        for number in due {
            let Some(place) = self.places.get_mut(&number) else { continue };
            if place.due.is_some_and(|due| due <= now) {
                place.due = None;
                self.step(now, number, Input::Woke, out);
            }
        }
    }

    fn changed(&mut self, now: Moment, change: Change, out: &mut Vec<MemberEffect>) {
        let number = match &change {
            Change::Granted { name, .. } | Change::Freed { name, .. } => self.names.get(name),
            _ => {
                let all: Vec<ShardNumber> = self.places.keys().copied().collect();
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
        let mut actions = Vec::new();
        while let Some(next) = event.take() {
            let Some(place) = self.places.get_mut(&number) else { return };
            let definite = is_definite(&next);
            self.steps += 1;
            place.machine.step(now, next, &mut actions);
            for action in actions.drain(..) {
                if self.act(now, number, action, out) {
                    event = Some(Input::WorkEnded);
                }
            }
            if definite
                && let Some(slot) = self.slots.get_mut(&number)
                && std::mem::take(&mut slot.expected)
                && number != MEMBERSHIP
            {
                self.notes.push_back(Note::Answered(number));
            }
            let Some(place) = self.places.get_mut(&number) else { return };
            let phase = place.machine.phase();
            let moved = std::mem::replace(&mut place.phase, phase) != phase;
            if phase == Phase::Stopped {
                self.names.remove(place.machine.name());
                self.places.remove(&number);
            } else if let Some(at) = place.machine.wake_at()
                && place.due != Some(at)
            {
                place.due = Some(at);
                self.wheel.entry(at).or_default().push(number);
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
            self.notes.push_back(Note::Moved(number, phase));
        }
    }

    /// Returns whether a term ended that has no work.
    fn act(
        &mut self,
        now: Moment,
        id: ShardNumber,
        action: Effect,
        out: &mut Vec<MemberEffect>,
    ) -> bool {
        let Some(place) = self.places.get(&id) else { return false };
        match action {
            Effect::Acquire(request, nonce, wait) => {
                let (name, me) = (place.machine.name().clone(), self.me.clone());
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
                let name = place.machine.name().clone();
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
                self.notes.push_back(Note::Owner(id, holder, leads));
            }
            Effect::Unreachable(error) if id != MEMBERSHIP && error.kind() != Kind::Unavailable => {
                self.notes.push_back(Note::Broken(id));
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
            out.push(MemberEffect::Seated(true));
            return self.notes.push_back(Note::Seated);
        };
        // Otherwise it was over before it began, and the driver is about to say so.
        if now < deadline {
            slot.work = Some(Work { token, told: false });
            out.push(MemberEffect::Led { shard, token, deadline });
        }
    }

    fn end(&mut self, id: ShardNumber, ending: &TermEnd, out: &mut Vec<MemberEffect>) -> bool {
        let lost = matches!(
            ending.why,
            EndReason::Unreachable(_)
                | EndReason::StoreError(_)
                | EndReason::Paused(_)
                | EndReason::Refused(_)
        );
        let seated = self.is_seated();
        let Some(slot) = self.slots.get_mut(&id) else { return true };
        let Some(shard) = slot.shard else {
            self.membership = None;
            out.push(MemberEffect::Seated(false));
            self.notes.push_back(Note::Unseated);
            return true;
        };
        let Some(work) = &mut slot.work else { return true };
        if self.mutant == Mutant::MembershipIsRight && lost && seated {
            let deadline = Moment::from_nanos(u64::MAX >> 1);
            out.push(MemberEffect::Extended { shard, token: work.token, deadline });
            return false;
        }
        work.told = true;
        let (token, deadline) = (work.token, ending.deadline);
        out.push(MemberEffect::Told { place: id, shard, token, deadline, lost });
        self.mutant == Mutant::ReleaseBeforeEnd
    }

    /// Sends what has gathered: renewals first, and each verb in as few calls as may be.
    fn flush(&mut self, out: &mut Vec<MemberEffect>) {
        let batch = std::mem::take(&mut self.batch);
        let mut send = |call| out.push(MemberEffect::Call(call));
        batch.renew.chunks(BATCH).for_each(|lot| send(Call::Renew(lot.to_vec())));
        batch.release.chunks(BATCH).for_each(|lot| send(Call::Release(lot.to_vec())));
        batch.acquire.chunks(BATCH).for_each(|lot| send(Call::Acquire(lot.to_vec())));
        batch.observe.chunks(BATCH).for_each(|lot| send(Call::Observe(lot.to_vec())));
    }

    pub(super) fn presumes(&self, now: Moment, id: ShardNumber, out: &mut Vec<MemberEffect>) {
        if let Some(shard) = self.shard_of(id) {
            out.push(MemberEffect::Presumes { shard, deadline: now + self.timing.ttl });
        }
    }
}

/// As `Input::is_definite`, which is the library's own.
fn is_definite(event: &Input) -> bool {
    match event {
        Input::Acquired(_, answer) => answer.is_ok(),
        Input::Renewed(_, answer) => answer.is_ok(),
        Input::Released(_, answer) => answer.is_ok(),
        Input::Observed(_, answer) => answer.is_ok(),
        _ => false,
    }
}
