//! Whom the server answers for: a candidate of one election, or a member of a fleet. Paths, limits, gate and secret are the
//! same; here is where they differ.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde::Serialize;
use tenure::{Clock, Name, Pulse};

use super::instance::Instance;
use super::member::{self, Member};
use super::metrics;
use super::news::News;
use super::status;

/// As long may anything of ours be behind before a probe hears of it. A process that was stopped for a moment and goes on is
/// no reason to kill it.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Whom.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Candidate(Arc<Instance>),
    Member(Arc<Member>),
}

impl From<Arc<Instance>> for Subject {
    fn from(instance: Arc<Instance>) -> Subject {
        Subject::Candidate(instance)
    }
}

impl From<Arc<Member>> for Subject {
    fn from(member: Arc<Member>) -> Subject {
        Subject::Member(member)
    }
}

/// The body of `/status` and `/leader`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Status {
    Candidate(Box<status::Body>),
    Member(Box<member::Body>),
}

impl Status {
    /// Whether it leads, or takes part.
    pub(super) fn is_leader(&self) -> bool {
        match self {
            Status::Candidate(body) => body.is_leader,
            Status::Member(body) => body.is_leader,
        }
    }
}

impl Subject {
    pub(super) fn clock(&self) -> &Clock {
        match self {
            Subject::Candidate(instance) => &instance.clock,
            Subject::Member(member) => &member.clock,
        }
    }

    pub(super) fn name(&self) -> &Name {
        match self {
            Subject::Candidate(instance) => instance.election.name(),
            Subject::Member(member) => member.fleet.name(),
        }
    }

    pub(super) fn news(&self) -> &Arc<News> {
        match self {
            Subject::Candidate(instance) => &instance.news,
            Subject::Member(member) => &member.news,
        }
    }

    pub(super) fn status(&self) -> Status {
        match self {
            Subject::Candidate(instance) => Status::Candidate(Box::new(instance.status())),
            Subject::Member(member) => Status::Member(Box::new(member.status())),
        }
    }

    pub(super) fn metrics(&self) -> String {
        match self {
            Subject::Candidate(instance) => metrics::of_candidate(instance),
            Subject::Member(member) => metrics::of_member(member),
        }
    }

    /// Why a probe should have this process ended, if it should.
    pub(super) fn trouble(&self) -> Option<String> {
        match self {
            Subject::Candidate(instance) => trouble("election", instance.election.pulse()),
            Subject::Member(member) => trouble("fleet", member.fleet.pulse()),
        }
    }

    /// Passes on what happens. A member is told of it: its events have one listener, and that is whoever does the work.
    pub(super) async fn follow(self) {
        if let Subject::Candidate(instance) = self {
            let mut events = instance.election.events();
            while let Some(event) = events.next().await {
                instance.note(&event);
            }
        }
    }
}

fn trouble(what: &str, pulse: Pulse) -> Option<String> {
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
