//! PURE: one lease's state machine. `step(now, event)` gives the actions; time and seeds are arguments.
//!
//! ```text
//!             ┌───────────── taken ─────────────┐
//!             ▼                                 │
//!  start → Waiting ── look ──► Acquiring ── held ──► Holding ── resign ──► (stopping, still renewing)
//!             ▲                                        │ lost                     │ work ended
//!             │                                        ▼                          ▼
//!             └───── released, or left to its TTL ── Ending ── work ended ──► Releasing
//! ```
//!
//! Four rules carry the safety, and each is in one place here: the deadline counts from before the request was
//! sent ([`Timing::deadline`]); loss is declared by the clock before any answer is looked at ([`Machine::step`]); a term
//! that ended is never revived (answers are matched by request number); nothing is released before the work has ended.

#[cfg(test)]
mod drain_record_tests;
mod event;
#[cfg(test)]
mod note_tests;
mod priority;
#[cfg(test)]
mod rank_tests;
mod same_id;
#[cfg(test)]
mod same_id_tests;
mod sightings;
#[cfg(test)]
mod store_error_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, Kind, Result};
use crate::lease::{
    Answer, CandidateId, Checkpoint, ClaimedWait, Grant, Hold, Lease, Lineage, Name, Nonce,
    Release, StartupWait, Token, WaitReason,
};
use crate::rng::Rng;
use crate::store::Change;
use crate::timing::{Timing, align_to_grid};
use same_id::SameId;
use sightings::{RoundTrip, Sightings};

/// How long others hold back when the last holder has named its successor, and how long one that has just
/// resigned lets others come first.
pub const HOLD_BACK: Duration = Duration::from_millis(500);
const BACK_OFF_FIRST: Duration = Duration::from_millis(50);
const BACK_OFF_MOST: Duration = Duration::from_secs(2);
/// A timer is never set closer than this after a known expiry, so that the look does not come a hair too early.
const AFTER_EXPIRY: Duration = Duration::from_millis(1);

/// One that only looks on reads a lease that was granted anew after this, so that many are read together.
const AFTER_HEARING: Duration = Duration::from_millis(20);

pub use event::{Effect, EndReason, Input, Phase, Request, RequestId, TermEnd, TermStart};
pub use priority::OtherCandidates;

/// One candidate's part in the election of one name.
#[derive(Debug)]
pub struct Machine {
    name: Name,
    candidate: CandidateId,
    timing: Arc<Timing>,
    /// The rank while no other candidates are known.
    rank: u32,
    rivals: Option<Arc<OtherCandidates>>,
    rng: Rng,
    memory: Sightings,
    state: State,
    requests: RequestId,
    /// Kept only while an acquire is unanswered; a new campaign has a new one.
    nonce: Option<Nonce>,
    healthy: bool,
    wanted: bool,
    drained: bool,
    drain_record: DrainRecord,
    shutdown: bool,
    /// Whom we have told to stop, if anybody asked: the next release names it.
    successor: Option<CandidateId>,
    /// Not campaigning before this.
    held_off: Moment,
    /// The lease is known to be free, and this candidate claims it no earlier than this; `None` while the lease is held or
    /// its state is unknown.
    claim_from: Option<Moment>,
    /// Failed requests since the last answer. Boxed: a fleet member has many machines, and few of them fail.
    failing: Option<Box<FailureStreak>>,
    /// The id of the holder when this candidate last observed the lease or was notified.
    holder: Option<Arc<str>>,
    /// Whether that holder leads: it is not in its start-up wait.
    holder_leads: bool,
    /// The latest term that the store told of, however it did.
    heard: Option<Token>,
    same_id: SameId,
    /// The lease grants no right, so no earlier holder can be at work: there is no start-up wait.
    grants_no_right: bool,
    warned_other_ttl: bool,
    /// The note has changed since it was last sent.
    note_changed: bool,
    /// The renewal in flight carries a changed note.
    note_in_flight: bool,
    last_step: Moment,
}

/// What this candidate knows of the drain that the store keeps for its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainRecord {
    /// It is being read: the candidate does nothing before.
    Pending,
    /// The store did not answer: the candidate observes the lease and does not campaign.
    Unavailable,
    /// It was read, or there is none.
    Read,
}

#[derive(Debug)]
enum State {
    Waiting {
        look_at: Moment,
    },
    /// `again`: the lease changed while the request was under way, so its answer may be older than the change.
    Acquiring {
        request: RequestId,
        sent: Moment,
        again: Option<Recheck>,
    },
    Looking {
        request: RequestId,
        sent: Moment,
        again: Option<Recheck>,
    },
    Holding(Box<HeldTerm>),
    /// The lease is lost; the work has still to end.
    Ending {
        give_back: Option<Box<Hold>>,
    },
    Releasing {
        hold: Box<Hold>,
        request: RequestId,
        sent: Moment,
        until: Moment,
        try_at: Option<Moment>,
    },
    Stopped,
}

/// Failed requests since the last answer of the store.
#[derive(Debug)]
struct FailureStreak {
    since: Moment,
    count: u32,
    /// The error that was reported last. One that the store itself answered takes precedence over a missing answer.
    reported: Error,
}

/// When to look again, unless a term with this token has been seen by then.
#[derive(Clone, Copy, Debug)]
struct Recheck {
    at: Moment,
    unless: Option<Token>,
}

#[derive(Debug)]
struct HeldTerm {
    hold: Hold,
    checkpoint: Option<Checkpoint>,
    deadline: Moment,
    lead_from: Moment,
    /// Set until the store has recorded a start-up wait that this candidate's own observations require.
    unrecorded_wait: Option<WaitReason>,
    part: Stage,
    renewal: Option<(RequestId, Moment)>,
    renew_at: Moment,
}

/// What the holder does with its lease.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// In its start-up wait: an earlier leader may still be at work.
    Starting,
    Leading,
    /// The work was told to stop; the lease is renewed until it has.
    Stopping,
}

impl Machine {
    /// A candidate that has not begun; its first [`Event::Woke`] begins. `rank` 0 comes first on a free lease.
    pub fn new(
        name: Name,
        candidate: CandidateId,
        timing: impl Into<Arc<Timing>>,
        rank: u32,
        seed: u128,
        now: Moment,
    ) -> Self {
        Machine {
            name,
            candidate,
            timing: timing.into(),
            rank,
            rivals: None,
            rng: Rng::new(seed),
            memory: Sightings::default(),
            state: State::Waiting { look_at: now },
            requests: 0,
            nonce: None,
            healthy: true,
            wanted: true,
            drained: false,
            drain_record: DrainRecord::Read,
            shutdown: false,
            successor: None,
            held_off: Moment::NEVER,
            claim_from: None,
            failing: None,
            holder: None,
            holder_leads: false,
            heard: None,
            same_id: SameId::default(),
            grants_no_right: false,
            warned_other_ttl: false,
            note_changed: false,
            note_in_flight: false,
            last_step: now,
        }
    }

    /// Does not campaign before an [`Event::Health`] says that it is fit.
    pub fn begin_unfit(&mut self) {
        self.healthy = false;
    }

    /// Looks on, and does not campaign before an [`Event::Wanted`] says that it should.
    pub fn begin_unwanted(&mut self) {
        self.wanted = false;
    }

    /// Does nothing before an [`Event::DrainRecord`] says whether it is drained.
    pub fn begin_before_drain_record(&mut self) {
        self.drain_record = DrainRecord::Pending;
    }

    /// Leads as soon as the lease is granted: for a lease that grants no right (presence, membership).
    pub fn begin_without_right(&mut self) {
        self.grants_no_right = true;
    }

    /// Takes one event at `now` and adds what is to be done to `out`.
    pub fn step(&mut self, now: Moment, event: Input, out: &mut Vec<Effect>) {
        // The clock first: a success that comes after the time to stop revives nothing.
        self.check_clock(now, out);
        match event {
            Input::Woke => {}
            Input::Acquired(request, answer) => self.acquired(now, request, answer, out),
            Input::Renewed(request, answer) => self.renewed(now, request, answer, out),
            Input::Released(request, answer) => self.released(now, request, answer, out),
            Input::Observed(request, answer) => self.observed(now, request, answer, out),
            Input::Changed(change) => self.changed(now, &change, out),
            Input::Asked(Request::Resign(next)) => self.resign(now, EndReason::Asked, next, out),
            Input::Resign(next) => self.resign(now, EndReason::Resigned, next, out),
            Input::Wanted(wanted) => self.wanted(now, wanted, out),
            Input::Asked(Request::Drain) => {
                self.drain_record = DrainRecord::Read;
                self.drained = true;
                self.resign(now, EndReason::Drained, None, out);
            }
            Input::Asked(Request::Undrain) => {
                self.drain_record = DrainRecord::Read;
                self.drained = false;
                self.look_soon(now);
            }
            Input::DrainRecord(drained) => self.drain_record_read(now, drained),
            Input::Health(healthy) => self.health(now, healthy, out),
            Input::NoteChanged => self.note_changed(now),
            Input::Rivals(rivals) => self.rivals = Some(rivals),
            Input::WorkEnded => self.work_ended(now, out),
            Input::Stop => self.stop(now, out),
        }
        self.act(now, out);
        self.last_step = now;
    }

    /// When to come back with [`Event::Woke`]; `None` when only an event can move it.
    pub fn wake_at(&self) -> Option<Moment> {
        match &self.state {
            State::Waiting { .. } if self.drain_record == DrainRecord::Pending => None,
            State::Waiting { look_at } => Some((*look_at).max(self.held_off_until())),
            State::Acquiring { sent, .. } | State::Looking { sent, .. } => {
                Some(self.gives_up(*sent))
            }
            State::Holding(term) => Some(self.term_wakes_at(term)),
            State::Releasing { sent, try_at, .. } => Some(try_at.unwrap_or(self.gives_up(*sent))),
            State::Ending { .. } | State::Stopped => None,
        }
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        match &self.state {
            State::Waiting { .. } | State::Acquiring { .. } | State::Looking { .. } => {
                Phase::Waiting
            }
            State::Holding(term) => match term.part {
                Stage::Starting => Phase::Starting,
                Stage::Leading => Phase::Leading,
                Stage::Stopping => Phase::Resigning,
            },
            State::Ending { .. } | State::Releasing { .. } => Phase::Resigning,
            State::Stopped => Phase::Stopped,
        }
    }

    /// The id of the leader when this candidate last observed the lease or was notified.
    pub fn leader(&self) -> Option<&str> {
        self.holder.as_deref().filter(|_| self.holder_leads)
    }

    /// Whether it was told not to campaign.
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// Of what.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Who.
    pub fn candidate(&self) -> &CandidateId {
        &self.candidate
    }

    /// The durations it goes by.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    // ---- the clock ----

    fn gives_up(&self, sent: Moment) -> Moment {
        sent + self.timing.try_for()
    }

    /// Drained and unfit candidates look as often as others; the hold-back is for those that want the lease.
    fn held_off_until(&self) -> Moment {
        if self.campaigns() { self.held_off } else { Moment::NEVER }
    }

    fn campaigns(&self) -> bool {
        let may = self.drain_record == DrainRecord::Read && !self.drained;
        self.healthy && self.wanted && may && !self.shutdown
    }

    fn term_wakes_at(&self, term: &HeldTerm) -> Moment {
        let request = match term.renewal {
            Some((_, sent)) => self.gives_up(sent),
            None => term.renew_at,
        };
        let clock = match term.part {
            Stage::Starting => term.lead_from.min(term.deadline),
            Stage::Leading => self.stop_at(term),
            Stage::Stopping => term.deadline,
        };
        // A term past its start-up wait whose deadline is too close waits for a renewal.
        if term.part == Stage::Starting && term.lead_from <= self.last_step {
            return request.min(term.deadline);
        }
        request.min(clock)
    }

    /// When a leader is told to stop: before the deadline, or earlier if a grace is set and renewals keep failing.
    fn stop_at(&self, term: &HeldTerm) -> Moment {
        let stop_at = self.timing.stop_at(term.deadline);
        match (self.timing.grace, &self.failing) {
            (Some(grace), Some(failing)) => stop_at.min(failing.since + grace),
            _ => stop_at,
        }
    }

    fn check_clock(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let State::Holding(term) = &self.state else {
            return;
        };
        match term.part {
            Stage::Leading if now >= self.stop_at(term) => {
                let why = match &self.failing {
                    Some(failing) if failing.reported.kind() == Kind::Unavailable => {
                        EndReason::Unreachable(failing.since)
                    }
                    Some(failing) => EndReason::StoreError(failing.reported.clone()),
                    None => EndReason::Paused(now.since(self.last_step)),
                };
                let deadline = term.deadline;
                self.lose(now, why, deadline, out);
            }
            // Never led, or told to stop before: there is nothing to tell, and the lease may be somebody else's.
            Stage::Starting if now >= term.deadline => self.give_back(now, out),
            Stage::Stopping if now >= term.deadline => {
                self.state = State::Ending { give_back: Some(Box::new(term.hold.clone())) };
            }
            _ => {}
        }
    }

    // ---- what is due ----

    fn act(&mut self, now: Moment, out: &mut Vec<Effect>) {
        match &mut self.state {
            State::Waiting { .. } | State::Looking { .. } if self.shutdown => {
                self.state = State::Stopped;
            }
            State::Waiting { .. } if self.drain_record == DrainRecord::Pending => {}
            State::Waiting { look_at } if now >= *look_at => self.look(now, out),
            State::Acquiring { sent, .. } if now >= *sent + self.timing.try_for() => {
                self.failed(now, timed_out(&self.name), out);
            }
            State::Looking { sent, .. } if now >= *sent + self.timing.try_for() => {
                self.failed(now, timed_out(&self.name), out);
            }
            State::Holding(_) => self.keep(now, out),
            State::Releasing { sent, try_at, .. } => match *try_at {
                Some(at) if now >= at => self.release_again(now, out),
                None if now >= *sent + self.timing.try_for() => self.release_failed(now),
                _ => {}
            },
            _ => {}
        }
    }

    /// A waiter looks by trying: the answer to a claim says all that a look would. A candidate that gives way to others
    /// observes instead, because a claim could be granted.
    fn look(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let campaigns = self.campaigns();
        if campaigns && now < self.held_off {
            return;
        }
        if !campaigns || self.gives_way(now) {
            let request = self.request();
            self.nonce = None;
            self.state = State::Looking { request, sent: now, again: None };
            out.push(Effect::Observe(request));
        } else {
            let request = self.request();
            let nonce = *self.nonce.get_or_insert_with(|| Nonce::from_bits(self.rng.next_u128()));
            self.state = State::Acquiring { request, sent: now, again: None };
            self.note_changed = false;
            out.push(Effect::Acquire(request, nonce, self.claimed_wait()));
        }
    }

    fn claimed_wait(&self) -> ClaimedWait {
        match self.grants_no_right {
            true => ClaimedWait::Never,
            false => ClaimedWait::AsRequired,
        }
    }

    /// The holder sends its new note with the next renewal, which is due now. Only a lease that grants no right has a note
    /// that changes: the claim that carries it would be granted anew if the lease had expired.
    fn note_changed(&mut self, now: Moment) {
        if !self.grants_no_right {
            return;
        }
        self.note_changed = true;
        if let State::Holding(term) = &mut self.state {
            term.renew_at = term.renew_at.min(now);
        }
    }

    /// Leads when it may, renews when it is due.
    fn keep(&mut self, now: Moment, out: &mut Vec<Effect>) {
        self.lead_if_due(now, out);
        let try_for = self.timing.try_for();
        let request = self.requests + 1;
        let claimed_wait = self.claimed_wait();
        let State::Holding(term) = &mut self.state else {
            return;
        };
        match term.renewal {
            Some((_, sent)) if now >= sent + try_for => {
                term.renewal = None;
                self.renewal_failed(now, sent, timed_out(&self.name), out);
            }
            None if now >= term.renew_at => {
                term.renewal = Some((request, now));
                self.requests = request;
                let unrecorded_wait = term.unrecorded_wait.filter(|_| term.part == Stage::Starting);
                self.note_in_flight = std::mem::take(&mut self.note_changed);
                // The same claim again, which the store answers alike and extends: it records the wait and the note.
                out.push(match unrecorded_wait {
                    Some(reason) => {
                        let wait = StartupWait { left: term.lead_from.since(now), reason };
                        Effect::Acquire(request, term.hold.nonce, ClaimedWait::AtLeast(wait))
                    }
                    None if self.note_in_flight => {
                        Effect::Acquire(request, term.hold.nonce, claimed_wait)
                    }
                    None => Effect::Renew(request, term.hold.clone()),
                });
            }
            _ => {}
        }
    }

    /// The start-up wait is over, or there was none, and the lease lasts long enough to begin.
    fn lead_if_due(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let State::Holding(term) = &mut self.state else {
            return;
        };
        let due = now >= term.lead_from && now < self.timing.stop_at(term.deadline);
        if term.part != Stage::Starting || !due {
            return;
        }
        term.part = Stage::Leading;
        let lead = TermStart {
            hold: term.hold.clone(),
            checkpoint: term.checkpoint.take(),
            deadline: term.deadline,
        };
        // Shared: a member of a fleet leads a hundred thousand of them.
        self.set_holder(Some(self.candidate.shared()), true, out);
        out.push(Effect::Lead(Box::new(lead)));
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        self.requests
    }

    // ---- answers ----

    fn acquired(
        &mut self,
        now: Moment,
        request: RequestId,
        answer: Result<Answer<Grant>>,
        out: &mut Vec<Effect>,
    ) {
        let State::Acquiring { request: ours, sent, again } = self.state else {
            return self.wait_recorded(now, request, answer, out);
        };
        if request != ours {
            return;
        }
        let trip = RoundTrip { sent, back: now };
        match answer {
            Err(error) => self.failed(now, error, out),
            Ok(Answer::Taken(lease)) => {
                self.answered(out);
                self.report_same_id(trip, &lease, out);
                self.nonce = None;
                self.wait_for(trip, &lease, out);
                self.look_again(again);
            }
            Ok(Answer::Held(grant)) => {
                self.answered(out);
                self.nonce = None;
                self.same_id = SameId::default();
                self.granted(trip, grant, out);
            }
        }
    }

    fn granted(&mut self, trip: RoundTrip, grant: Grant, out: &mut Vec<Effect>) {
        self.doubt(trip, Some(grant.lineage));
        let lead_from = match self.memory.lead_from(trip, &grant, &self.timing) {
            // The token is checked, and then there is nothing to wait for.
            Ok(_) if self.grants_no_right => trip.back,
            Ok(from) => from,
            Err(greatest) => {
                out.push(Effect::Warn(format!(
                    "'{}' was granted token {} although {greatest} was seen before: the store has gone back in time \
                     (a restored backup?), so this term is not led",
                    self.name, grant.hold.token
                )));
                self.held_off = trip.back + self.timing.ttl;
                return self.release(trip.back, grant.hold, out);
            }
        };
        let waits = lead_from.since(trip.back);
        let required = grant.wait.map_or(Duration::ZERO, |wait| wait.left);
        // What this candidate itself requires beyond the store is known to the store only if it is told.
        let unrecorded_wait = (waits > required).then_some(WaitReason::Observed);
        if !waits.is_zero() {
            let reason = match (unrecorded_wait, grant.wait) {
                (Some(reason), _) => reason,
                (None, wait) => wait.map_or(WaitReason::Observed, |wait| wait.reason),
            };
            let wait = StartupWait { left: waits, reason };
            out.push(Effect::Starting(grant.hold.token, wait));
            self.set_holder(Some(self.candidate.shared()), false, out);
        }
        self.state = State::Holding(Box::new(HeldTerm {
            hold: grant.hold,
            checkpoint: grant.checkpoint,
            deadline: self.timing.deadline(trip.sent),
            lead_from,
            unrecorded_wait,
            part: Stage::Starting,
            renewal: None,
            renew_at: match unrecorded_wait.is_some() || self.note_changed {
                true => trip.back,
                false => self.timing.renew_at(trip.sent),
            },
        }));
        if !self.campaigns() {
            self.give_back(trip.back, out);
        }
    }

    /// The answer to a repeated claim: a renewal that also recorded a start-up wait or a changed note.
    fn wait_recorded(
        &mut self,
        now: Moment,
        request: RequestId,
        answer: Result<Answer<Grant>>,
        out: &mut Vec<Effect>,
    ) {
        if let State::Holding(term) = &mut self.state
            && let Some((ours, _)) = term.renewal
            && request == ours
            && let Ok(Answer::Held(grant)) = &answer
        {
            term.unrecorded_wait = None;
            if self.grants_no_right {
                // Where the lease had expired, this is the next term.
                term.hold.token = grant.hold.token;
            }
        }
        let answer = answer.map(|answer| match answer {
            Answer::Held(_) => Answer::Held(()),
            Answer::Taken(lease) => Answer::Taken(lease),
        });
        self.renewed(now, request, answer, out);
    }

    fn renewed(
        &mut self,
        now: Moment,
        request: RequestId,
        answer: Result<Answer>,
        out: &mut Vec<Effect>,
    ) {
        let State::Holding(term) = &mut self.state else {
            return;
        };
        let Some((ours, sent)) = term.renewal else {
            return;
        };
        if request != ours {
            return;
        }
        term.renewal = None;
        match answer {
            Ok(Answer::Held(())) => {
                term.deadline = self.timing.deadline(sent);
                term.renew_at = match self.note_changed {
                    true => now,
                    false => self.timing.renew_at(sent),
                };
                if term.part != Stage::Starting {
                    out.push(Effect::Extend(term.deadline));
                }
                self.answered(out);
            }
            Ok(Answer::Taken(lease)) => {
                self.answered(out);
                self.refused(RoundTrip { sent, back: now }, &lease, out);
            }
            Err(error) if error.kind() == Kind::Corrupt => self.damaged(now, sent, error, out),
            Err(error) => self.renewal_failed(now, sent, error, out),
        }
    }

    /// The store answered that the record is not a lease any more. Nothing in the store protects this term now: once the
    /// damaged record is removed, another candidate may be granted the lease. So the term ends at once, as after a refusal.
    fn damaged(&mut self, now: Moment, sent: Moment, error: Error, out: &mut Vec<Effect>) {
        let pause = self.timing.retry;
        self.count_failure(sent, error.clone(), out);
        self.not_held(now, EndReason::StoreError(error), out);
        if let State::Waiting { look_at } = &mut self.state {
            *look_at = now + self.rng.jittered(pause);
        }
    }

    fn refused(&mut self, trip: RoundTrip, lease: &Lease, out: &mut Vec<Effect>) {
        let by = lease.holder.as_ref().map(|holder| holder.id.clone());
        self.not_held(trip.back, EndReason::Refused(by), out);
        self.saw(trip, lease, out);
    }

    /// The store does not have this term's lease any more.
    fn not_held(&mut self, now: Moment, why: EndReason, out: &mut Vec<Effect>) {
        let State::Holding(term) = &self.state else {
            return;
        };
        match term.part {
            Stage::Leading => self.lose(now, why, Moment::NEVER, out),
            // Its work is stopping already, but it must not have effects any more.
            Stage::Stopping => {
                out.push(Effect::Extend(Moment::NEVER));
                self.state = State::Ending { give_back: None };
            }
            Stage::Starting => self.state = State::Waiting { look_at: now },
        }
    }

    /// Tries again soon: three tries fit before it is time to stop.
    fn renewal_failed(&mut self, now: Moment, sent: Moment, error: Error, out: &mut Vec<Effect>) {
        self.note_changed |= std::mem::take(&mut self.note_in_flight);
        self.count_failure(sent, error, out);
        let pause = self.rng.jittered(self.timing.try_for() / 8);
        if let State::Holding(term) = &mut self.state {
            term.renew_at = now + pause;
        }
    }

    fn observed(
        &mut self,
        now: Moment,
        request: RequestId,
        answer: Result<Option<Lease>>,
        out: &mut Vec<Effect>,
    ) {
        let State::Looking { request: ours, sent, again } = self.state else {
            return;
        };
        if request != ours {
            return;
        }
        match answer {
            Err(error) => self.failed(now, error, out),
            Ok(lease) => {
                self.answered(out);
                let trip = RoundTrip { sent, back: now };
                if self.campaigns() {
                    self.observed_campaigning(trip, lease.as_ref(), out);
                    return self.look_again(again);
                }
                // It wants nothing, so it is in no hurry: neither when the lease is free nor when it runs out.
                let mut look_at = align_to_grid(now + self.timing.retry, self.timing.retry);
                if let Some(lease) = lease {
                    look_at = look_at.min(leads_at(trip, &lease));
                    self.saw(trip, &lease, out);
                }
                self.state = State::Waiting { look_at };
                self.look_again(again);
            }
        }
    }

    fn released(
        &mut self,
        now: Moment,
        request: RequestId,
        answer: Result<()>,
        out: &mut Vec<Effect>,
    ) {
        let State::Releasing { request: ours, hold, .. } = &self.state else {
            return;
        };
        if request != *ours {
            return;
        }
        let token = hold.token;
        match answer {
            Ok(()) => {
                self.answered(out);
                out.push(Effect::Released(token));
                self.back_to_waiting(now);
            }
            Err(_) => self.release_failed(now),
        }
    }

    // ---- waiting ----

    /// Somebody has it: come back when its time runs out, or after the retry period if that is sooner.
    fn wait_for(&mut self, trip: RoundTrip, lease: &Lease, out: &mut Vec<Effect>) {
        self.saw(trip, lease, out);
        let jitter = self.rng.below((self.timing.ttl / 100).min(Duration::from_millis(10)));
        let expiry = trip.back + lease.left + AFTER_EXPIRY + jitter;
        let at_the_latest = trip.back + self.timing.retry;
        // A look just before the expiry would be one for nothing.
        let soon_after = at_the_latest + self.timing.ttl / 10;
        let look_at = if expiry <= soon_after { expiry } else { at_the_latest };
        self.state = State::Waiting { look_at: look_at.min(leads_at(trip, lease)) };
    }

    fn changed(&mut self, now: Moment, change: &Change, out: &mut Vec<Effect>) {
        if self.hear(now, change, out) {
            return;
        }
        // See who holds it now, or what was missed; not all at the same instant.
        let stirred = now + self.rng.below(Duration::from_millis(5));
        let soon = match change {
            Change::Look => Recheck { at: stirred, unless: None },
            Change::Granted { token, .. } => {
                self.claim_from = None;
                Recheck { at: stirred, unless: Some(*token) }
            }
            Change::Freed { next, .. } => {
                Recheck { at: self.freed(now, next.as_ref()), unless: None }
            }
        };
        match &mut self.state {
            // Until then a look would show nothing new, and a claim would come too early.
            State::Waiting { look_at } if matches!(change, Change::Freed { .. }) => {
                *look_at = soon.at;
            }
            State::Waiting { .. } => self.look_again(Some(soon)),
            State::Acquiring { again, .. } | State::Looking { again, .. }
                if again.is_none_or(|again| soon.at <= again.at || again.unless.is_some()) =>
            {
                *again = Some(soon);
            }
            _ => {}
        }
    }

    /// One that only looks on takes the store's word for who has it now, and does not read each of many leases that are
    /// granted. Whether that is what was said need not be known: it claims nothing by it, and looks by itself in time. If it
    /// has seen the one before, it looks soon: it would not know otherwise how that one's term has ended, and wait for it.
    fn hear(&mut self, now: Moment, change: &Change, out: &mut Vec<Effect>) -> bool {
        if self.campaigns() || !matches!(self.state, State::Waiting { .. }) {
            return false;
        }
        let (token, holder) = match change {
            Change::Granted { token, holder: Some(holder), .. } => (token, holder),
            // It knows of nobody who has it.
            Change::Freed { .. } => return self.holder.is_none(),
            _ => return false,
        };
        if Some(*token) > self.heard {
            self.heard = Some(*token);
            if let State::Waiting { look_at } = &mut self.state
                && self.memory.lags_behind(*token)
            {
                *look_at = (*look_at).min(now + AFTER_HEARING);
            }
            self.set_holder(Some(holder.shared()), true, out);
        }
        true
    }

    fn look_again(&mut self, again: Option<Recheck>) {
        let Some(Recheck { at, unless }) = again else {
            return;
        };
        if let State::Waiting { look_at } = &mut self.state
            && !unless.is_some_and(|token| self.memory.knows(token))
        {
            *look_at = (*look_at).min(at);
        }
    }

    fn look_soon(&mut self, now: Moment) {
        match &mut self.state {
            State::Waiting { look_at } => *look_at = now,
            // It looks because it wanted nothing; now it does, and must not sleep on what it sees.
            State::Looking { again, .. } => *again = Some(Recheck { at: now, unless: None }),
            _ => {}
        }
    }

    fn saw(&mut self, trip: RoundTrip, lease: &Lease, out: &mut Vec<Effect>) {
        self.doubt(trip, lease.lineage);
        self.memory.saw(trip, lease, &self.timing);
        self.learn(lease, out);
    }

    fn doubt(&mut self, trip: RoundTrip, lineage: Option<Lineage>) {
        if let Some(lineage) = lineage
            && !self.grants_no_right
        {
            self.memory.doubt(trip, lineage.origin, self.heard, &self.timing);
        }
    }

    fn learn(&mut self, lease: &Lease, out: &mut Vec<Effect>) {
        self.heard = self.heard.max(lease.token);
        let holder = lease.holder.as_ref().map(|holder| Arc::from(holder.id.as_str()));
        self.set_holder(holder, lease.wait.is_none(), out);
        self.warn_other_ttl(lease, out);
    }

    fn set_holder(&mut self, holder: Option<Arc<str>>, leads: bool, out: &mut Vec<Effect>) {
        let leads = leads && holder.is_some();
        if holder.is_some() {
            self.claim_from = None;
        }
        if (&holder, leads) != (&self.holder, self.holder_leads) {
            out.push(Effect::HolderChanged(holder.as_deref().map(str::to_owned), leads));
            (self.holder, self.holder_leads) = (holder, leads);
        }
    }

    /// A candidate that waits for a lease which the store has lost counts its own TTL, so all should use the same.
    fn warn_other_ttl(&mut self, lease: &Lease, out: &mut Vec<Effect>) {
        let Some(holder) = lease.holder.as_ref().filter(|holder| holder.nonce.is_some()) else {
            return;
        };
        // A store may keep whole milliseconds.
        let differs = lease.ttl.abs_diff(self.timing.ttl) >= Duration::from_millis(1);
        if differs && !self.grants_no_right && !self.warned_other_ttl {
            self.warned_other_ttl = true;
            out.push(Effect::Warn(format!(
                "candidate '{}' holds '{}' with a TTL of {:?}, this one uses {:?}: give all candidates the same TTL, \
                 or two may lead after a store restart that loses the lease",
                holder.id, self.name, lease.ttl, self.timing.ttl
            )));
        }
    }

    fn report_same_id(&mut self, trip: RoundTrip, lease: &Lease, out: &mut Vec<Effect>) {
        let Some(holder) = &lease.holder else { return };
        let ours = holder.nonce.is_some_and(|nonce| Some(nonce) == self.nonce);
        if !ours && holder.id == self.candidate.as_str() && self.same_id.observe(trip, lease) {
            out.push(Effect::SameId);
        }
    }

    /// A claim or a look has no answer: again, a little later each time, with the same nonce.
    fn failed(&mut self, now: Moment, error: Error, out: &mut Vec<Effect>) {
        let patient = error.kind() != Kind::Unavailable;
        self.count_failure(now, error, out);
        let failures = self.failing.as_ref().map_or(1, |failing| failing.count);
        let most = BACK_OFF_MOST.min(self.timing.retry);
        let pause = if patient {
            self.timing.retry
        } else {
            BACK_OFF_FIRST.saturating_mul(1 << failures.min(10)).min(most)
        };
        self.state = State::Waiting { look_at: now + self.rng.jittered(pause) };
    }

    fn count_failure(&mut self, since: Moment, error: Error, out: &mut Vec<Effect>) {
        let kind = error.kind();
        match &mut self.failing {
            Some(failing) => {
                failing.count = failing.count.saturating_add(1);
                if kind == Kind::Unavailable || kind == failing.reported.kind() {
                    return;
                }
                failing.reported = error.clone();
            }
            None => {
                self.failing =
                    Some(Box::new(FailureStreak { since, count: 1, reported: error.clone() }));
            }
        }
        out.push(Effect::Unreachable(error));
    }

    fn answered(&mut self, out: &mut Vec<Effect>) {
        if self.failing.take().is_some() {
            out.push(Effect::Back);
        }
    }

    // ---- ending a term ----

    /// The term is over, and not because we wanted it: the work ends, and then what may still be ours is given back.
    fn lose(&mut self, now: Moment, why: EndReason, deadline: Moment, out: &mut Vec<Effect>) {
        let State::Holding(term) = &self.state else {
            return;
        };
        let give_back = (!why.ends_at_once()).then(|| Box::new(term.hold.clone()));
        self.state = State::Ending { give_back };
        self.held_off = now;
        out.push(Effect::End(TermEnd { why, deadline }));
        self.not_me(out);
    }

    /// Whoever leads next, we do not know it yet.
    fn not_me(&mut self, out: &mut Vec<Effect>) {
        if self.holder.as_deref() == Some(self.candidate.as_str()) {
            self.set_holder(None, false, out);
        }
    }

    /// The term is over because we want it: the work is told to stop, and the lease is kept until it has.
    fn resign(
        &mut self,
        now: Moment,
        why: EndReason,
        next: Option<CandidateId>,
        out: &mut Vec<Effect>,
    ) {
        // Others first, for a moment; the one named by itself means: go on.
        if next.as_ref() == Some(&self.candidate) {
            return;
        }
        match &mut self.state {
            State::Holding(term) if term.part == Stage::Leading => {
                term.part = Stage::Stopping;
                let deadline = term.deadline;
                self.successor = next;
                self.held_off = now + HOLD_BACK;
                out.push(Effect::End(TermEnd { why, deadline }));
            }
            State::Holding(term) if term.part == Stage::Starting => {
                self.held_off = now + HOLD_BACK;
                self.give_back(now, out);
            }
            _ => {}
        }
    }

    fn health(&mut self, now: Moment, healthy: bool, out: &mut Vec<Effect>) {
        self.healthy = healthy;
        if healthy {
            self.look_soon(now);
        } else {
            self.resign(now, EndReason::Unhealthy, None, out);
        }
    }

    /// A request that came meanwhile is newer than the record.
    fn drain_record_read(&mut self, now: Moment, drained: Option<bool>) {
        if self.drain_record == DrainRecord::Read {
            return;
        }
        match drained {
            Some(drained) => {
                self.drained = drained;
                self.drain_record = DrainRecord::Read;
            }
            None => self.drain_record = DrainRecord::Unavailable,
        }
        self.look_soon(now);
    }

    fn wanted(&mut self, now: Moment, wanted: bool, out: &mut Vec<Effect>) {
        self.wanted = wanted;
        if wanted {
            self.look_soon(now);
        } else {
            self.resign(now, EndReason::Resigned, None, out);
        }
    }

    fn stop(&mut self, now: Moment, out: &mut Vec<Effect>) {
        self.shutdown = true;
        // A claim under way is waited for: its answer may be a grant, to be given back at once.
        self.resign(now, EndReason::Shutdown, None, out);
    }

    fn work_ended(&mut self, now: Moment, out: &mut Vec<Effect>) {
        match &mut self.state {
            State::Holding(term) if term.part == Stage::Stopping => {
                let hold = term.hold.clone();
                // Others first, counted from when they can: work that took its time to stop must not use it up.
                self.held_off = self.held_off.max(now + HOLD_BACK);
                self.release(now, hold, out);
            }
            State::Ending { give_back } => match give_back.take() {
                Some(hold) => self.release(now, *hold, out),
                None => self.back_to_waiting(now),
            },
            _ => {}
        }
    }

    /// A hold without work: nothing has to end first.
    fn give_back(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if let State::Holding(term) = &self.state {
            let hold = term.hold.clone();
            self.release(now, hold, out);
        }
    }

    fn release(&mut self, now: Moment, hold: Hold, out: &mut Vec<Effect>) {
        let request = self.request();
        let until = now + self.timing.ttl;
        let release = Release { hold: hold.clone(), next: self.successor.clone() };
        let hold = Box::new(hold);
        self.state = State::Releasing { hold, request, sent: now, until, try_at: None };
        out.push(Effect::Release(request, release));
        self.not_me(out);
    }

    /// Tried until the lease has run out by itself.
    fn release_failed(&mut self, now: Moment) {
        let pause = self.rng.jittered(self.timing.try_for() / 4);
        if let State::Releasing { until, try_at, .. } = &mut self.state {
            if now + pause >= *until {
                self.back_to_waiting(now);
            } else {
                *try_at = Some(now + pause);
            }
        }
    }

    fn release_again(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let number = self.requests + 1;
        let next = self.successor.clone();
        if let State::Releasing { hold, request, sent, try_at, .. } = &mut self.state {
            (*request, *sent, *try_at) = (number, now, None);
            self.requests = number;
            out.push(Effect::Release(number, Release { hold: (**hold).clone(), next }));
        }
    }

    fn back_to_waiting(&mut self, now: Moment) {
        self.successor = None;
        let retry = self.timing.retry;
        // One that wants nothing knows what it has just given back.
        let look_at = if self.campaigns() { now } else { align_to_grid(now + retry, retry) };
        self.state = if self.shutdown { State::Stopped } else { State::Waiting { look_at } };
    }
}

/// When the holder of `lease` ends its start-up wait, so that the lease is worth another look; never, if it has none.
fn leads_at(trip: RoundTrip, lease: &Lease) -> Moment {
    match lease.wait {
        Some(wait) => trip.back + wait.left + AFTER_EXPIRY,
        None => Moment::from_nanos(u64::MAX),
    }
}

fn timed_out(name: &Name) -> Error {
    Error::unavailable(format!("no answer about '{name}' in time"))
}
