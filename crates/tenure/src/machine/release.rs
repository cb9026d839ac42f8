//! PURE: how a term ends in order: the work stops first, then the lease is released, and a release that fails is repeated.

use super::{Effect, EndReason, HOLD_BACK, Machine, RequestId, Stage, State, TermEnd};
use crate::clock::Moment;
use crate::error::Result;
use crate::lease::{CandidateId, Hold, Release, Token};
use crate::timing::align_to_grid;

impl Machine {
    /// Ends the term voluntarily: the work is notified to stop, and the lease is kept until the work has ended.
    pub(super) fn resign(
        &mut self,
        now: Moment,
        why: EndReason,
        next: Option<CandidateId>,
        out: &mut Vec<Effect>,
    ) {
        // A request that names this candidate itself as the successor means: keep leading.
        if next.as_ref() == Some(&self.candidate) {
            return;
        }
        match &mut self.state {
            State::Holding(term) if term.stage == Stage::Leading => {
                term.stage = Stage::Stopping;
                let deadline = term.deadline;
                self.successor = next;
                self.held_off = now + HOLD_BACK;
                out.push(Effect::End(TermEnd { reason: why, deadline }));
            }
            State::Holding(term) if term.stage == Stage::Starting => {
                self.held_off = now + HOLD_BACK;
                self.release_now(now, out);
            }
            _ => {}
        }
    }

    pub(super) fn wanted(&mut self, now: Moment, wanted: bool, out: &mut Vec<Effect>) {
        self.wanted = wanted;
        if wanted {
            self.poll_soon(now);
        } else {
            self.resign(now, EndReason::Resigned, None, out);
        }
    }

    pub(super) fn stop(&mut self, now: Moment, out: &mut Vec<Effect>) {
        self.shutdown = true;
        // A claim in flight is awaited: its answer may be a grant, which the candidate releases at once.
        self.resign(now, EndReason::Shutdown, None, out);
    }

    /// No handle of the term `token` is left. Of a term that has ended meanwhile, nothing is left to end.
    pub(super) fn dropped(&mut self, now: Moment, token: Token, out: &mut Vec<Effect>) {
        if matches!(&self.state, State::Holding(term) if term.hold.token == token) {
            self.resign(now, EndReason::Dropped, None, out);
        }
    }

    pub(super) fn work_ended(&mut self, now: Moment, out: &mut Vec<Effect>) {
        match &mut self.state {
            State::Holding(term) if term.stage == Stage::Stopping => {
                let hold = term.hold.clone();
                // The other candidates claim first. The delay counts from the release, so that work which stops slowly does not
                // use it up.
                self.held_off = self.held_off.max(now + HOLD_BACK);
                self.release(now, hold, out);
            }
            State::Ending { to_release } => match to_release.take() {
                Some(hold) => self.release(now, *hold, out),
                None => self.back_to_waiting(now),
            },
            _ => {}
        }
    }

    /// Releases a lease without work: nothing has to end first.
    pub(super) fn release_now(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if let State::Holding(term) = &self.state {
            let hold = term.hold.clone();
            self.release(now, hold, out);
        }
    }

    pub(super) fn release(&mut self, now: Moment, hold: Hold, out: &mut Vec<Effect>) {
        let request = self.request();
        let until = now + self.timing.ttl;
        let release = Release { hold: hold.clone(), next: self.successor.clone() };
        let hold = Box::new(hold);
        self.state = State::Releasing { hold, request, sent: now, until, try_at: None };
        out.push(Effect::Release(request, release));
        self.clear_own_holder(out);
    }

    pub(super) fn released(
        &mut self,
        now: Moment,
        request: RequestId,
        answer: Result<()>,
        out: &mut Vec<Effect>,
    ) {
        let State::Releasing { request: expected, hold, .. } = &self.state else {
            return;
        };
        if request != *expected {
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

    /// Retries the release until the lease has expired by itself.
    pub(super) fn release_failed(&mut self, now: Moment) {
        let pause = self.rng.jittered(self.timing.try_for() / 4);
        if let State::Releasing { until, try_at, .. } = &mut self.state {
            if now + pause >= *until {
                self.back_to_waiting(now);
            } else {
                *try_at = Some(now + pause);
            }
        }
    }

    pub(super) fn release_again(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let number = self.requests + 1;
        let next = self.successor.clone();
        if let State::Releasing { hold, request, sent, try_at, .. } = &mut self.state {
            (*request, *sent, *try_at) = (number, now, None);
            self.requests = number;
            out.push(Effect::Release(number, Release { hold: (**hold).clone(), next }));
        }
    }

    pub(super) fn back_to_waiting(&mut self, now: Moment) {
        self.successor = None;
        let retry = self.timing.retry;
        // A candidate that does not campaign knows the state of the lease that it has just released.
        let poll_at = if self.campaigns() { now } else { align_to_grid(now + retry, retry) };
        self.state = if self.shutdown { State::Stopped } else { State::Waiting { poll_at } };
    }
}
