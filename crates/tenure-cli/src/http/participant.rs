//! The participant that the server answers for: a candidate of one election, or a member of a fleet. Paths, limits,
//! authorization and secret are the same for both; this file holds the differences.
//!
//! Reading the state of a participant takes a lock or two and never waits for the store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use tenure::fleet::source::Shards;
use tenure::presence::Node;
use tenure::{Clock, Election, Error, Event, Fleet, Moment, Name, Pulse, Store, fleet};

use super::events::{self, EventLog};
use super::metrics::{self, LeadershipTime};
use super::status::{
    MemberStatusBody, ParticipantStatus, RunStats, RunStatsData, StatusBody, Validity,
};

/// How far the renewing loop or the work may be behind before a health probe fails. A process that was stopped for a moment and
/// continues should not be killed.
const TOLERANCE: Duration = Duration::from_secs(1);

/// A candidate or a member.
#[derive(Clone, Debug)]
pub(crate) enum Participant {
    Candidate(Arc<HttpCandidate>),
    Member(Arc<HttpMember>),
}

impl From<Arc<HttpCandidate>> for Participant {
    fn from(instance: Arc<HttpCandidate>) -> Participant {
        Participant::Candidate(instance)
    }
}

impl From<Arc<HttpMember>> for Participant {
    fn from(member: Arc<HttpMember>) -> Participant {
        Participant::Member(member)
    }
}

impl Participant {
    pub(super) fn clock(&self) -> &Clock {
        match self {
            Participant::Candidate(instance) => &instance.clock,
            Participant::Member(member) => &member.clock,
        }
    }

    pub(super) fn name(&self) -> &Name {
        match self {
            Participant::Candidate(instance) => instance.election.name(),
            Participant::Member(member) => member.fleet.name(),
        }
    }

    pub(super) fn event_log(&self) -> &Arc<EventLog> {
        match self {
            Participant::Candidate(instance) => &instance.event_log,
            Participant::Member(member) => &member.event_log,
        }
    }

    pub(super) fn status(&self) -> ParticipantStatus {
        match self {
            Participant::Candidate(instance) => {
                ParticipantStatus::Candidate(Box::new(instance.status()))
            }
            Participant::Member(member) => ParticipantStatus::Member(Box::new(member.status())),
        }
    }

    pub(super) fn metrics(&self) -> String {
        match self {
            Participant::Candidate(instance) => metrics::of_candidate(instance),
            Participant::Member(member) => metrics::of_member(member),
        }
    }

    /// The reason why a health probe should have this process restarted, if there is one.
    pub(super) fn failure(&self) -> Option<String> {
        match self {
            Participant::Candidate(instance) => {
                pulse_failure("election", instance.election.pulse())
            }
            Participant::Member(member) => pulse_failure("fleet", member.fleet.pulse()),
        }
    }

    /// Publishes the events of a candidate. A member's events have one receiver, the supervisor of its work, which calls
    /// [`HttpMember::note`].
    pub(super) async fn follow(self) {
        if let Participant::Candidate(instance) = self {
            let mut events = instance.election.events();
            while let Some(event) = events.next().await {
                instance.note(&event);
            }
        }
    }
}

fn pulse_failure(what: &str, pulse: Pulse) -> Option<String> {
    let late = crate::duration::shown(pulse.late);
    let overrun = crate::duration::shown(pulse.overrun);
    match () {
        () if pulse.ended => Some(format!("the {what} has ended, nothing is renewed any more")),
        () if pulse.overrun > TOLERANCE => {
            Some(format!("the work has gone on for {overrun} after its time was over"))
        }
        () if pulse.late > TOLERANCE => {
            Some(format!("the loop that renews should have done something {late} ago"))
        }
        () => None,
    }
}

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
        events::publish_candidate_event(&self.event_log, name, me, event);
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

/// One member and its work.
#[derive(Debug)]
pub(crate) struct HttpMember {
    pub(super) fleet: Arc<Fleet>,
    pub(super) clock: Clock,
    pub(super) event_log: Arc<EventLog>,
    store: Arc<dyn Store>,
    work: Arc<RunStats>,
    last_error: Mutex<Option<Error>>,
}

impl HttpMember {
    /// `store` is the fleet's store. It is only named, not read.
    pub(crate) fn new(
        fleet: Arc<Fleet>,
        work: Arc<RunStats>,
        store: &Arc<dyn Store>,
    ) -> Arc<HttpMember> {
        Arc::new(HttpMember {
            fleet,
            clock: Clock::boot(),
            event_log: Arc::default(),
            store: Arc::clone(store),
            work,
            last_error: Mutex::default(),
        })
    }

    /// Publishes an event to the subscribers of `/events`. The caller passes every event of [`Fleet::next`], in that order. It
    /// never blocks.
    pub(crate) fn note(&self, event: &fleet::FleetEvent) {
        if let fleet::FleetEvent::StoreUnreachable(error) = event {
            *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
        }
        events::publish_member_event(&self.event_log, self.fleet.name().as_str(), event);
    }

    /// Whether an operator has drained this member, as far as is known here.
    pub(super) fn is_drained(&self) -> bool {
        let me = self.fleet.member_id();
        self.fleet.members().iter().any(|member| member.id == *me && member.drained)
    }

    /// The fleet's name and the shards of its source, for a snapshot.
    pub(super) fn name_and_shards(&self) -> (Name, Arc<Shards>) {
        (self.fleet.name().clone(), self.fleet.shards())
    }

    pub(super) fn work(&self) -> RunStatsData {
        self.work.read()
    }

    pub(super) fn status(&self) -> MemberStatusBody {
        let last_error = self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (run_stats, drained) = (self.work.read(), self.is_drained());
        MemberStatusBody::new(&self.fleet, &*self.store, &run_stats, drained, last_error)
    }
}
