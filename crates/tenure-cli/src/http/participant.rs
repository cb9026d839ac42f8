//! The participant that the server answers for: a candidate of one election, or a member of a fleet. Paths, limits,
//! authorization and secret are the same for both; this file holds the differences.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde::Serialize;
use tenure::{Clock, Name, Pulse};

use super::candidate::HttpCandidate;
use super::events::EventLog;
use super::member::{self, HttpMember};
use super::metrics;
use super::status;

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

/// The body of `/status` and `/leader`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum ParticipantStatus {
    Candidate(Box<status::StatusBody>),
    Member(Box<member::MemberStatusBody>),
}

impl ParticipantStatus {
    /// Whether the candidate leads, or the member takes part.
    pub(super) fn is_leader(&self) -> bool {
        match self {
            ParticipantStatus::Candidate(body) => body.is_leader,
            ParticipantStatus::Member(body) => body.is_leader,
        }
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
