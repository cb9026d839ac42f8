//! PURE: how the machine keeps a lease: renewals, and every way in which a term is lost.

use super::sightings::RoundTrip;
use super::{Effect, EndReason, Machine, RequestId, Stage, State, TermEnd, timed_out};
use crate::clock::Moment;
use crate::error::{Error, Kind, Result};
use crate::lease::{Answer, ClaimedWait, Lease, StartupWait};

impl Machine {
    /// Starts to lead when it may, and renews when a renewal is due.
    pub(super) fn maintain(&mut self, now: Moment, out: &mut Vec<Effect>) {
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
                let unrecorded_wait =
                    term.unrecorded_wait.filter(|_| term.stage == Stage::Starting);
                self.note_in_flight = std::mem::take(&mut self.note_changed);
                // The same claim again. The store answers it as before, extends the lease, and records the wait and the note.
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

    /// Makes the next renewal, which carries the new note, due now. Only a lease that grants no right has a note that changes:
    /// the claim that carries the note would be granted as a new term if the lease had expired.
    pub(super) fn note_changed(&mut self, now: Moment) {
        if !self.grants_no_right {
            return;
        }
        self.note_changed = true;
        if let State::Holding(term) = &mut self.state {
            term.renew_at = term.renew_at.min(now);
        }
    }

    pub(super) fn renewed(
        &mut self,
        now: Moment,
        request: RequestId,
        answer: Result<Answer>,
        out: &mut Vec<Effect>,
    ) {
        let State::Holding(term) = &mut self.state else {
            return;
        };
        let Some((expected, sent)) = term.renewal else {
            return;
        };
        if request != expected {
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
                if term.stage != Stage::Starting {
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

    /// The store answered that the record is no longer a lease. Nothing in the store protects this term now: once the damaged
    /// record is removed, another candidate may be granted the lease. So the term ends at once, as after a refusal.
    pub(super) fn damaged(
        &mut self,
        now: Moment,
        sent: Moment,
        error: Error,
        out: &mut Vec<Effect>,
    ) {
        let pause = self.timing.retry;
        self.count_failure(sent, error.clone(), out);
        self.not_held(now, EndReason::StoreError(error), out);
        if let State::Waiting { poll_at } = &mut self.state {
            *poll_at = now + self.rng.jittered(pause);
        }
    }

    pub(super) fn refused(&mut self, trip: RoundTrip, lease: &Lease, out: &mut Vec<Effect>) {
        let by = lease.holder.as_ref().map(|holder| holder.id.clone());
        self.not_held(trip.back, EndReason::Refused(by), out);
        self.observe_lease(trip, lease, out);
    }

    /// The store no longer has the lease of this term.
    pub(super) fn not_held(&mut self, now: Moment, why: EndReason, out: &mut Vec<Effect>) {
        let State::Holding(term) = &self.state else {
            return;
        };
        match term.stage {
            Stage::Leading => self.lose(now, why, Moment::PAST, out),
            // The work is stopping already, but it must not have effects any more.
            Stage::Stopping => {
                out.push(Effect::Extend(Moment::PAST));
                self.state = State::Ending { to_release: None };
            }
            Stage::Starting => self.state = State::Waiting { poll_at: now },
        }
    }

    /// Retries soon: three attempts fit before it is time to stop.
    pub(super) fn renewal_failed(
        &mut self,
        now: Moment,
        sent: Moment,
        error: Error,
        out: &mut Vec<Effect>,
    ) {
        self.note_changed |= std::mem::take(&mut self.note_in_flight);
        self.count_failure(sent, error, out);
        let pause = self.rng.jittered(self.timing.try_for() / 8);
        if let State::Holding(term) = &mut self.state {
            term.renew_at = now + pause;
        }
    }

    /// The term is over involuntarily: the work ends, and then the machine releases the lease if this candidate may still hold
    /// it.
    pub(super) fn lose(
        &mut self,
        now: Moment,
        why: EndReason,
        deadline: Moment,
        out: &mut Vec<Effect>,
    ) {
        let State::Holding(term) = &self.state else {
            return;
        };
        let to_release = (!why.ends_at_once()).then(|| Box::new(term.hold.clone()));
        self.state = State::Ending { to_release };
        self.held_off = now;
        out.push(Effect::End(TermEnd { reason: why, deadline }));
        self.clear_own_holder(out);
    }

    /// Clears the holder if it is this candidate. The next holder is not known yet.
    pub(super) fn clear_own_holder(&mut self, out: &mut Vec<Effect>) {
        if self.holder.as_deref() == Some(self.candidate.as_str()) {
            self.set_holder(None, false, out);
        }
    }
}
