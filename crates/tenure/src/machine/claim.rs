//! PURE: how the machine claims a lease, and what a grant starts: a start-up wait, or a term.

use std::time::Duration;

use super::same_id::SameId;
use super::sightings::RoundTrip;
use super::{Effect, HeldTerm, Machine, RequestId, Stage, State, TermStart};
use crate::clock::Moment;
use crate::error::Result;
use crate::lease::{Answer, ClaimedWait, Grant, StartupWait, WaitReason};

impl Machine {
    pub(super) fn acquired(
        &mut self,
        now: Moment,
        request: RequestId,
        answer: Result<Answer<Grant>>,
        out: &mut Vec<Effect>,
    ) {
        let State::Acquiring { request: expected, sent, recheck } = self.state else {
            return self.wait_recorded(now, request, answer, out);
        };
        if request != expected {
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
                self.schedule_recheck(recheck);
            }
            Ok(Answer::Held(grant)) => {
                self.answered(out);
                self.nonce = None;
                self.same_id = SameId::default();
                self.granted(trip, grant, out);
            }
        }
    }

    pub(super) fn granted(&mut self, trip: RoundTrip, grant: Grant, out: &mut Vec<Effect>) {
        self.check_origin(trip, Some(grant.lineage));
        let lead_from = match self.sightings.lead_from(trip, &grant, &self.timing) {
            // The token has been checked. A lease that grants no right needs no wait.
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
        // A session that many leases share was kept alive before this request.
        let counts_from = grant.counts_from.map_or(trip.sent, |from| from.min(trip.sent));
        let waits = lead_from.since(trip.back);
        let required = grant.wait.map_or(Duration::ZERO, |wait| wait.left);
        // The store knows a wait that this candidate requires beyond the store's own only after the candidate records it there.
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
            deadline: self.timing.deadline(counts_from),
            lead_from,
            unrecorded_wait,
            stage: Stage::Starting,
            renewal: None,
            renew_at: match unrecorded_wait.is_some() || self.note_changed {
                true => trip.back,
                false => self.timing.renew_at(counts_from),
            },
        }));
        if !self.campaigns() {
            self.release_now(trip.back, out);
        }
    }

    /// The answer to a repeated claim: a renewal that also recorded a start-up wait or a changed note.
    pub(super) fn wait_recorded(
        &mut self,
        now: Moment,
        request: RequestId,
        answer: Result<Answer<Grant>>,
        out: &mut Vec<Effect>,
    ) {
        if let State::Holding(term) = &mut self.state
            && let Some((expected, _)) = term.renewal
            && request == expected
            && let Ok(Answer::Held(grant)) = &answer
        {
            term.unrecorded_wait = None;
            if self.grants_no_right {
                // If the lease had expired, the store granted a new term.
                term.hold.token = grant.hold.token;
            }
        }
        let answer = answer.map(|answer| match answer {
            Answer::Held(_) => Answer::Held(()),
            Answer::Taken(lease) => Answer::Taken(lease),
        });
        self.renewed(now, request, answer, out);
    }

    /// Starts the term if the start-up wait is over, or there was none, and the lease lasts long enough.
    pub(super) fn lead_if_due(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let State::Holding(term) = &mut self.state else {
            return;
        };
        let due = now >= term.lead_from && now < self.timing.stop_at(term.deadline);
        if term.stage != Stage::Starting || !due {
            return;
        }
        term.stage = Stage::Leading;
        let lead = TermStart {
            hold: term.hold.clone(),
            checkpoint: term.checkpoint.take(),
            deadline: term.deadline,
        };
        // Shared: one member of a fleet may lead a hundred thousand shards.
        self.set_holder(Some(self.candidate.shared()), true, out);
        out.push(Effect::Lead(Box::new(lead)));
    }

    pub(super) fn claimed_wait(&self) -> ClaimedWait {
        match self.grants_no_right {
            true => ClaimedWait::Never,
            false => ClaimedWait::AsRequired,
        }
    }
}
