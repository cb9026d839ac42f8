//! The state of this candidate, for the handlers. Reading it takes a lock or two and never waits for the store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::presence::Node;
use tenure::{Clock, Election, Event, Moment};

use super::event_body;
use super::events::EventLog;
use super::leadership_time::LeadershipTime;
use super::run_stats::RunStats;
use super::status::StatusBody;
use super::validity::Validity;

/// One candidate and its work.
#[derive(Debug)]
pub(crate) struct HttpCandidate {
    pub(super) election: Arc<Election>,
    pub(super) clock: Clock,
    pub(super) event_log: Arc<EventLog>,
    work: Arc<RunStats>,
    validity: Validity,
    leadership_time: Mutex<LeadershipTime>,
    /// The candidates that were present when presence was last read.
    candidates: Mutex<Option<Vec<Node>>>,
}

impl HttpCandidate {
    /// `answer_for` is the longest time for which clients may rely on a positive answer; `None` means as long as the lease
    /// certainly belongs to this candidate.
    ///
    /// This holds the election: the election's last event comes only after this and the server are dropped.
    pub(crate) fn new(
        election: Arc<Election>,
        work: Arc<RunStats>,
        answer_for: Option<Duration>,
    ) -> Arc<HttpCandidate> {
        let clock = Clock::boot();
        Arc::new(HttpCandidate {
            election,
            event_log: Arc::default(),
            work,
            validity: Validity::new(clock.clone(), answer_for),
            leadership_time: Mutex::new(LeadershipTime::new(clock.now())),
            candidates: Mutex::default(),
            clock,
        })
    }

    /// Whether this candidate leads, computed now.
    pub(crate) fn is_leader(&self) -> bool {
        self.election.is_leader()
    }

    /// From now on no answer says that this candidate leads.
    pub(crate) fn answer_no(&self) {
        self.validity.answer_no();
    }

    /// Until when a client may act on a `validForMs` that it received. The lease must not be released before.
    ///
    /// Read it after [`HttpCandidate::answer_no`], or after the election has lost its term: then it does not grow any more.
    pub(crate) fn answers_valid_until(&self) -> Moment {
        self.validity.until()
    }

    /// Returns when no client may act on a positive answer any more, which is always before the deadline of the lease.
    ///
    /// Await it after [`HttpCandidate::answer_no`], or after the election has lost its term; otherwise there may be another
    /// positive answer.
    pub(crate) async fn answers_expired(&self) {
        self.clock.sleep_until(self.answers_valid_until()).await;
    }

    /// Sets the candidates that are present.
    pub(crate) fn set_candidates(&self, candidates: Vec<Node>) {
        *self.nodes() = Some(candidates);
    }

    /// How many candidates are present; `None` before presence was first read.
    pub(super) fn candidates(&self) -> Option<u64> {
        let candidates = self.nodes().as_ref().map(Vec::len)?;
        Some(u64::try_from(candidates).unwrap_or(u64::MAX))
    }

    fn nodes(&self) -> MutexGuard<'_, Option<Vec<Node>>> {
        self.candidates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of `/status`. Sending it commits this candidate to its `validForMs`.
    pub(super) fn status(&self) -> StatusBody {
        let nodes = self.nodes().clone();
        StatusBody::new(self.validity.commit(&self.election), &self.work.read(), nodes.as_deref())
    }

    pub(super) fn note(&self, event: &Event) {
        self.lock_leadership_time().record(event, self.clock.now());
        let (name, me) = (self.election.name().as_str(), self.election.candidate_id());
        event_body::publish_candidate_event(&self.event_log, name, me, event);
    }

    pub(super) fn leadership_time(&self) -> LeadershipTime {
        self.lock_leadership_time().clone()
    }

    pub(super) fn work(&self) -> &RunStats {
        &self.work
    }

    fn lock_leadership_time(&self) -> MutexGuard<'_, LeadershipTime> {
        self.leadership_time.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
