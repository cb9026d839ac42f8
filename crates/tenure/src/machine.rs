//! PURE: the state machine of one lease. `step(now, input)` returns effects; time and random seeds are arguments.
//!
//! ```text
//!             ┌───────────── taken ─────────────┐
//!             ▼                                 │
//!  start → Waiting ── claim ─► Acquiring ── held ──► Holding ── resign ──► (stopping, still renewing)
//!             ▲                                        │ lost                     │ work ended
//!             │                                        ▼                          ▼
//!             └──── released, or left to its TTL ─── Ending ── work ended ──► Releasing
//! ```
//!
//! Safety rests on four rules. Each is implemented in one place in this module:
//!
//! - The deadline counts from the clock before the request was sent ([`Timing::deadline`]).
//! - The clock declares the loss of a lease before the machine processes an answer ([`Machine::step`]).
//! - A term that ended is never revived: the machine matches each answer with its request number.
//! - The machine releases a lease only after the work has ended.

mod claim;
#[cfg(test)]
mod drain_record_tests;
mod event;
#[cfg(test)]
mod note_tests;
mod observe;
mod priority;
#[cfg(test)]
mod priority_tests;
mod release;
mod renew;
mod same_id;
#[cfg(test)]
mod same_id_tests;
mod sightings;
#[cfg(test)]
mod startup_wait_tests;
#[cfg(test)]
mod store_error_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, Kind};
use crate::lease::{CandidateId, Checkpoint, Hold, Lease, Name, Nonce, Token, WaitReason};
use crate::rng::Rng;
use crate::timing::Timing;
use same_id::SameId;
use sightings::{RoundTrip, Sightings};

/// How long the other candidates delay their claims if the last holder named a successor, and how long a candidate that has
/// just resigned lets the other candidates claim first.
pub const HOLD_BACK: Duration = Duration::from_millis(500);
const INITIAL_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// The machine polls at least this long after a known expiry, so that it does not poll just before the lease expires.
const AFTER_EXPIRY_DELAY: Duration = Duration::from_millis(1);

/// A passive observer reads a lease this long after it was notified of a new grant, so that many leases are read in one batch.
const HINT_OBSERVE_DELAY: Duration = Duration::from_millis(20);

pub use event::{Effect, EndReason, Input, Phase, Request, RequestId, TermEnd, TermStart};
pub use priority::OtherCandidates;

/// How a machine starts: for which candidate and lease, and what holds until an [`Input`] says otherwise. Created by
/// [`MachineConfig::new`]; then set the fields that differ.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MachineConfig {
    /// The name of the lease.
    pub name: Name,
    /// The id of the candidate.
    pub candidate: CandidateId,
    /// The durations of the election.
    pub timing: Arc<Timing>,
    /// Candidates with rank 0 claim a free lease first, while no other candidates are known.
    pub rank: u32,
    /// The seed of the random numbers for jitter and nonces.
    pub seed: u128,
    /// Whether the candidate counts as healthy before the first [`Input::Health`].
    pub healthy: bool,
    /// Whether the candidate campaigns before the first [`Input::Wanted`]. Until it does, it is a passive observer.
    pub campaigns: bool,
    /// Whether the machine does nothing before an [`Input::DrainRecord`] says whether the candidate is drained.
    pub awaits_drain_record: bool,
    /// Whether the lease grants no right (presence, membership). Then the machine leads as soon as the lease is granted.
    pub grants_no_right: bool,
}

impl MachineConfig {
    /// A healthy candidate that campaigns at once for a lease that grants a right.
    pub fn new(
        name: Name,
        candidate: CandidateId,
        timing: impl Into<Arc<Timing>>,
        seed: u128,
    ) -> Self {
        MachineConfig {
            name,
            candidate,
            timing: timing.into(),
            rank: 0,
            seed,
            healthy: true,
            campaigns: true,
            awaits_drain_record: false,
            grants_no_right: false,
        }
    }
}

/// The state of one candidate in the election of one name.
#[derive(Debug)]
pub struct Machine {
    name: Name,
    candidate: CandidateId,
    timing: Arc<Timing>,
    /// The rank while no other candidates are known.
    rank: u32,
    rivals: Option<Arc<OtherCandidates>>,
    rng: Rng,
    sightings: Sightings,
    state: State,
    requests: RequestId,
    /// Set only while a claim is unanswered. Each campaign uses a new nonce.
    nonce: Option<Nonce>,
    healthy: bool,
    wanted: bool,
    drained: bool,
    drain_record: DrainRecord,
    shutdown: bool,
    /// The preferred successor that a resign request named. The next release carries it.
    successor: Option<CandidateId>,
    /// The candidate does not campaign before this moment.
    held_off: Moment,
    /// When this candidate may claim the lease, which is known to be free. `None` while the lease is held or its state is
    /// unknown.
    claim_from: Option<Moment>,
    /// Failed requests since the last answer. Boxed: a fleet member has many machines, and few of them fail.
    failing: Option<Box<FailureStreak>>,
    /// The id of the holder when this candidate last observed the lease or was notified.
    holder: Option<Arc<str>>,
    /// Whether that holder leads: it is not in its start-up wait.
    holder_leads: bool,
    /// The greatest token that this candidate knows, from an observation or from a notification.
    latest_token: Option<Token>,
    same_id: SameId,
    /// The lease grants no right, so no earlier holder can be working: there is no start-up wait.
    grants_no_right: bool,
    warned_other_ttl: bool,
    /// The note has changed since the last request that carried it.
    note_changed: bool,
    /// The renewal in flight carries a changed note.
    note_in_flight: bool,
    last_step: Moment,
}

/// What this candidate knows about the drain that the store records for its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainRecord {
    /// The driver is reading it. The candidate does nothing until then.
    Pending,
    /// The store did not answer. The candidate observes the lease and does not campaign.
    Unavailable,
    /// The driver has read it, or there is none.
    Read,
}

#[derive(Debug)]
enum State {
    Waiting {
        poll_at: Moment,
    },
    /// `recheck`: the lease changed while the request was in flight, so its answer may be older than the change.
    Acquiring {
        request: RequestId,
        sent: Moment,
        recheck: Option<Recheck>,
    },
    Observing {
        request: RequestId,
        sent: Moment,
        recheck: Option<Recheck>,
    },
    Holding(Box<HeldTerm>),
    /// The lease is lost; the work has not ended yet.
    Ending {
        to_release: Option<Box<Hold>>,
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
    /// The last error that was reported. An error that the store itself answered takes precedence over a missing answer.
    reported: Error,
}

/// When to poll again, unless the candidate has observed a term with this token by then.
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
    stage: Stage,
    renewal: Option<(RequestId, Moment)>,
    renew_at: Moment,
}

/// What the holder does with its lease.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// In its start-up wait: an earlier leader may still be working.
    Starting,
    Leading,
    /// The work was notified to stop. The lease is renewed until the work has ended.
    Stopping,
}

impl Machine {
    /// Creates a machine. Its first [`Input::Woke`] starts it.
    pub fn new(config: MachineConfig, now: Moment) -> Self {
        Machine {
            name: config.name,
            candidate: config.candidate,
            timing: config.timing,
            rank: config.rank,
            rivals: None,
            rng: Rng::new(config.seed),
            sightings: Sightings::default(),
            state: State::Waiting { poll_at: now },
            requests: 0,
            nonce: None,
            healthy: config.healthy,
            wanted: config.campaigns,
            drained: false,
            drain_record: match config.awaits_drain_record {
                true => DrainRecord::Pending,
                false => DrainRecord::Read,
            },
            shutdown: false,
            successor: None,
            held_off: Moment::PAST,
            claim_from: None,
            failing: None,
            holder: None,
            holder_leads: false,
            latest_token: None,
            same_id: SameId::default(),
            grants_no_right: config.grants_no_right,
            warned_other_ttl: false,
            note_changed: false,
            note_in_flight: false,
            last_step: now,
        }
    }

    /// Processes one input at `now` and appends the effects to `out`.
    pub fn step(&mut self, now: Moment, event: Input, out: &mut Vec<Effect>) {
        // The clock first: a success that arrives after the time to stop does not revive the term.
        self.check_clock(now, out);
        match event {
            Input::Woke => {}
            Input::Acquired(request, answer) => self.acquired(now, request, answer, out),
            Input::Renewed(request, answer) => self.renewed(now, request, answer, out),
            Input::Released(request, answer) => self.released(now, request, answer, out),
            Input::Observed(request, answer) => self.observed(now, request, answer, out),
            Input::Changed(change) => self.changed(now, &change, out),
            Input::Requested(Request::Resign(next)) => {
                self.resign(now, EndReason::Asked, next, out)
            }
            Input::Resign(next) => self.resign(now, EndReason::Resigned, next, out),
            Input::Wanted(wanted) => self.wanted(now, wanted, out),
            Input::Requested(Request::Drain) => {
                self.drain_record = DrainRecord::Read;
                self.drained = true;
                self.resign(now, EndReason::Drained, None, out);
            }
            Input::Requested(Request::Undrain) => {
                self.drain_record = DrainRecord::Read;
                self.drained = false;
                self.poll_soon(now);
            }
            Input::DrainRecord(drained) => self.drain_record_read(now, drained),
            Input::Health(healthy) => self.health(now, healthy, out),
            Input::NoteChanged => self.note_changed(now),
            Input::Rivals(rivals) => self.rivals = Some(rivals),
            Input::WorkEnded => self.work_ended(now, out),
            Input::Dropped(token) => self.dropped(now, token, out),
            Input::Stop => self.stop(now, out),
        }
        self.act(now, out);
        self.last_step = now;
    }

    /// When the caller must send the next [`Input::Woke`]. `None` if only another input can change the state.
    pub fn wake_at(&self) -> Option<Moment> {
        match &self.state {
            State::Waiting { .. } if self.drain_record == DrainRecord::Pending => None,
            State::Waiting { poll_at } => Some((*poll_at).max(self.held_off_until())),
            State::Acquiring { sent, .. } | State::Observing { sent, .. } => {
                Some(self.times_out_at(*sent))
            }
            State::Holding(term) => Some(self.term_wakes_at(term)),
            State::Releasing { sent, try_at, .. } => {
                Some(try_at.unwrap_or(self.times_out_at(*sent)))
            }
            State::Ending { .. } | State::Stopped => None,
        }
    }

    /// The current phase, as the status reports it.
    pub fn phase(&self) -> Phase {
        match &self.state {
            State::Waiting { .. } | State::Acquiring { .. } | State::Observing { .. } => {
                Phase::Waiting
            }
            State::Holding(term) => match term.stage {
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

    /// Whether this candidate is drained: it must not campaign.
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// The name of the lease.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The id of this candidate.
    pub fn candidate(&self) -> &CandidateId {
        &self.candidate
    }

    /// The validated durations that this machine uses.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    // ---- the clock ----

    fn times_out_at(&self, sent: Moment) -> Moment {
        sent + self.timing.try_for()
    }

    /// Drained and unhealthy candidates poll as often as the others. The delay applies only to candidates that campaign.
    fn held_off_until(&self) -> Moment {
        if self.campaigns() { self.held_off } else { Moment::PAST }
    }

    fn campaigns(&self) -> bool {
        let may = self.drain_record == DrainRecord::Read && !self.drained;
        self.healthy && self.wanted && may && !self.shutdown
    }

    fn term_wakes_at(&self, term: &HeldTerm) -> Moment {
        let request = match term.renewal {
            Some((_, sent)) => self.times_out_at(sent),
            None => term.renew_at,
        };
        let clock = match term.stage {
            Stage::Starting => term.lead_from.min(term.deadline),
            Stage::Leading => self.stop_at(term),
            Stage::Stopping => term.deadline,
        };
        // A term past its start-up wait whose deadline is too close waits for a renewal.
        if term.stage == Stage::Starting && term.lead_from <= self.last_step {
            return request.min(term.deadline);
        }
        request.min(clock)
    }

    /// When a leader is notified to stop: before the deadline, or earlier if a grace is configured and renewals keep failing.
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
        match term.stage {
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
            // This candidate never led, or its work was notified before. There is nothing to report, and another candidate may
            // hold the lease.
            Stage::Starting if now >= term.deadline => self.release_now(now, out),
            Stage::Stopping if now >= term.deadline => {
                self.state = State::Ending { to_release: Some(Box::new(term.hold.clone())) };
            }
            _ => {}
        }
    }

    // ---- actions that are due ----

    fn act(&mut self, now: Moment, out: &mut Vec<Effect>) {
        match &mut self.state {
            State::Waiting { .. } | State::Observing { .. } if self.shutdown => {
                self.state = State::Stopped;
            }
            State::Waiting { .. } if self.drain_record == DrainRecord::Pending => {}
            State::Waiting { poll_at } if now >= *poll_at => self.poll(now, out),
            State::Acquiring { sent, .. } if now >= *sent + self.timing.try_for() => {
                self.failed(now, timed_out(&self.name), out);
            }
            State::Observing { sent, .. } if now >= *sent + self.timing.try_for() => {
                self.failed(now, timed_out(&self.name), out);
            }
            State::Holding(_) => self.maintain(now, out),
            State::Releasing { sent, try_at, .. } => match *try_at {
                Some(at) if now >= at => self.release_again(now, out),
                None if now >= *sent + self.timing.try_for() => self.release_failed(now),
                _ => {}
            },
            _ => {}
        }
    }

    /// Claims or observes the lease. A waiting candidate polls with a claim, because the answer to a claim contains all that an
    /// observation would show. A candidate that gives way to others observes instead, because a claim could be granted.
    fn poll(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let campaigns = self.campaigns();
        if campaigns && now < self.held_off {
            return;
        }
        if !campaigns || self.gives_way(now) {
            let request = self.request();
            self.nonce = None;
            self.state = State::Observing { request, sent: now, recheck: None };
            out.push(Effect::Observe(request));
        } else {
            let request = self.request();
            let nonce = *self.nonce.get_or_insert_with(|| Nonce::from_bits(self.rng.next_u128()));
            self.state = State::Acquiring { request, sent: now, recheck: None };
            self.note_changed = false;
            out.push(Effect::Acquire(request, nonce, self.claimed_wait()));
        }
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        self.requests
    }

    // ---- answers ----

    // ---- waiting ----

    /// A claim or an observation has no answer: retries with the same nonce, with a longer backoff each time.
    fn failed(&mut self, now: Moment, error: Error, out: &mut Vec<Effect>) {
        let patient = error.kind() != Kind::Unavailable;
        self.count_failure(now, error, out);
        let failures = self.failing.as_ref().map_or(1, |failing| failing.count);
        let most = MAX_BACKOFF.min(self.timing.retry);
        let pause = if patient {
            self.timing.retry
        } else {
            INITIAL_BACKOFF.saturating_mul(1 << failures.min(10)).min(most)
        };
        self.state = State::Waiting { poll_at: now + self.rng.jittered(pause) };
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

    fn health(&mut self, now: Moment, healthy: bool, out: &mut Vec<Effect>) {
        self.healthy = healthy;
        if healthy {
            self.poll_soon(now);
        } else {
            self.resign(now, EndReason::Unhealthy, None, out);
        }
    }

    /// Applies the drain record that was read at the start. A request that arrived in the meantime is newer than the record.
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
        self.poll_soon(now);
    }
}

/// When the holder of `lease` ends its start-up wait, so that another poll is useful. `None` if it has no start-up wait.
fn leads_at(trip: RoundTrip, lease: &Lease) -> Option<Moment> {
    lease.wait.map(|wait| trip.back + wait.left + AFTER_EXPIRY_DELAY)
}

fn timed_out(name: &Name) -> Error {
    Error::unavailable(format!("no answer about '{name}' in time"))
}
