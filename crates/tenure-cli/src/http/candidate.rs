//! What the handlers know of this candidate. Reading it costs a lock or two and never waits for the store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::presence::Node;
use tenure::{Clock, Election, Event, Moment};

use super::events::EventLog;
use super::leadership_time::LeadershipTime;
use super::run_stats::RunStats;
use super::status::StatusBody;
use super::told;
use super::validity::Validity;

/// One candidate and its work, as they are shown.
#[derive(Debug)]
pub(crate) struct HttpCandidate {
    pub(super) election: Arc<Election>,
    pub(super) clock: Clock,
    pub(super) news: Arc<EventLog>,
    work: Arc<RunStats>,
    answers: Validity,
    tally: Mutex<LeadershipTime>,
    /// The candidates that were present when presence was last read.
    candidates: Mutex<Option<Vec<Node>>>,
}

impl HttpCandidate {
    /// `answer_for`: the longest for which others may rely on a yes; `None`: as long as the lease is certainly ours.
    ///
    /// It keeps the election: its last event comes when this and the server are dropped too.
    pub(crate) fn new(
        election: Arc<Election>,
        work: Arc<RunStats>,
        answer_for: Option<Duration>,
    ) -> Arc<HttpCandidate> {
        let clock = Clock::boot();
        Arc::new(HttpCandidate {
            election,
            news: Arc::default(),
            work,
            answers: Validity::new(clock.clone(), answer_for),
            tally: Mutex::new(LeadershipTime::new(clock.now())),
            candidates: Mutex::default(),
            clock,
        })
    }

    /// Whether this candidate leads, computed now.
    pub(crate) fn is_leader(&self) -> bool {
        self.election.is_leader()
    }

    /// From now on nobody is told that we lead.
    pub(crate) fn answer_no(&self) {
        self.answers.no();
    }

    /// Until then somebody may act on a `validForMs` that was given out; the lease must not be given back before.
    ///
    /// To be read after [`Instance::answer_no`], or after the election has lost: then it grows no more.
    pub(crate) fn given_out_until(&self) -> Moment {
        self.answers.until()
    }

    /// Returns when nobody may act on a yes of ours any more. That is before the deadline of the lease, always.
    ///
    /// To be awaited after [`Instance::answer_no`], or after the election has lost; else there may be another yes.
    pub(crate) async fn answers_run_out(&self) {
        self.clock.sleep_until(self.given_out_until()).await;
    }

    /// These candidates are present.
    pub(crate) fn set_candidates(&self, candidates: Vec<Node>) {
        *self.nodes() = Some(candidates);
    }

    /// How many candidates are present, once presence was read.
    pub(super) fn candidates(&self) -> Option<u64> {
        let candidates = self.nodes().as_ref().map(Vec::len)?;
        Some(u64::try_from(candidates).unwrap_or(u64::MAX))
    }

    fn nodes(&self) -> MutexGuard<'_, Option<Vec<Node>>> {
        self.candidates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of `/status`. Giving it out commits us to its `validForMs`.
    pub(super) fn status(&self) -> StatusBody {
        let nodes = self.nodes().clone();
        StatusBody::new(self.answers.give(&self.election), &self.work.read(), nodes.as_deref())
    }

    pub(super) fn note(&self, event: &Event) {
        self.tally_mut().note(event, self.clock.now());
        let (name, me) = (self.election.name().as_str(), self.election.candidate_id());
        told::of_candidate(&self.news, name, me, event);
    }

    pub(super) fn tally(&self) -> LeadershipTime {
        self.tally_mut().clone()
    }

    pub(super) fn work(&self) -> &RunStats {
        &self.work
    }

    fn tally_mut(&self) -> MutexGuard<'_, LeadershipTime> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
