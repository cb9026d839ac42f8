//! The log lines of `tenure run`: spelled in `docs/CLI.md`, the same on a terminal and in a pipe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure::machine::EndReason;
use tenure::{CandidateId, CandidateState, Clock, Name, StartupWait, Status, Token};

use crate::messages::{CommonMessages, say};
use crate::schedule::ClockAhead;
use crate::{startup_wait, time};

/// Logs what happens to one candidate.
#[derive(Clone, Debug)]
pub(super) struct RunMessages {
    id: CandidateId,
    pub(super) name: Name,
    ended: Arc<AtomicBool>,
}

impl RunMessages {
    pub(super) fn new(id: &CandidateId, name: &Name) -> RunMessages {
        RunMessages { id: id.clone(), name: name.clone(), ended: Arc::default() }
    }

    pub(super) fn started(&self) {
        let id = &self.id;
        say!(info, id, "started", "✅ [{id}] Leader election started. Press Ctrl+C to stop");
    }

    pub(super) fn became(&self, token: Token) {
        let id = &self.id;
        say!(info, id, "acquired", "[{id}] Successfully acquired leadership (token {token})");
        say!(info, id, "became", "🎉 [{id}] BECAME LEADER - Starting leadership duties");
    }

    pub(super) fn lost(&self, reason: &EndReason) {
        let id = &self.id;
        say!(info, id, "lost", "[{id}] Lost leadership: {}", describe_end(reason, id));
    }

    /// Records that the work has ended by itself, which is then the reason for the shutdown.
    pub(super) fn work_ended(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn released(&self, reason: &EndReason) {
        let id = &self.id;
        let reason = match reason {
            // The term was already over for the store, or about to be: this release is not worth a line.
            EndReason::Unreachable(_)
            | EndReason::StoreError(_)
            | EndReason::Paused(_)
            | EndReason::Refused(_) => return,
            EndReason::Shutdown if self.ended.load(Ordering::Relaxed) => "ended",
            reason => reason.as_str(),
        };
        say!(info, id, "released", "[{id}] Released leadership: reason={reason}");
    }

    /// Another candidate leads now. For this candidate `became` logs it.
    pub(super) fn leads(&self, leader: &str) {
        let id = &self.id;
        if leader == id.as_str() {
            return;
        }
        say!(info, id, "changed", "👥 [{id}] Status: FOLLOWER - {leader} leads");
    }

    /// This candidate holds the lease and does not lead yet.
    pub(super) fn starting(&self, wait: &StartupWait) {
        let (id, left) = (&self.id, startup_wait::left(wait));
        let (reason, hint) = (wait.reason, startup_wait::hint(wait.reason));
        say!(warn, id, "starting", "[{id}] Has the lease, starts in {left}: {reason}{hint}");
    }

    pub(super) fn heartbeat(&self, status: &Status) {
        let (id, time) = (&self.id, time::local_time_of(Clock::boot().now()));
        if let Some(wait) = &status.starting {
            let left = startup_wait::left(wait);
            say!(info, id, "beat", "👥 [{id}] Status: STARTING - has the lease, starts in {left}");
            return;
        }
        if status.is_leader {
            say!(info, id, "beat", "👑 [{id}] Status: LEADER - Heartbeat at {time}");
            return;
        }
        match not_campaigning(&status.state) {
            None => say!(info, id, "beat", "👥 [{id}] Status: FOLLOWER - Heartbeat at {time}"),
            Some(reason) => {
                let leader = status.current_leader.as_deref().map(crate::output::printable);
                let leader = leader.as_deref().unwrap_or("nobody");
                say!(info, id, "beat", "👥 [{id}] Status: FOLLOWER - {leader} leads; {reason}");
            }
        }
    }

    pub(super) fn poll(&self, count: u64) {
        let id = &self.id;
        say!(info, id, "poll", "[{id}] poll {count}");
    }

    /// Logs the result of a poll over HTTP.
    pub(super) fn polled(&self, count: u64, ok: bool, detail: Option<&str>) {
        let id = &self.id;
        let detail = detail.unwrap_or("no answer");
        match ok {
            true => say!(info, id, "poll", "[{id}] poll {count}: {detail}"),
            false => say!(warn, id, "poll", "[{id}] poll {count} failed: {detail}"),
        }
    }

    pub(super) fn ahead(&self, ahead: &ClockAhead) {
        let id = &self.id;
        let by = ahead.by.as_deref().unwrap_or("somebody");
        let idle = ahead.idle_ms.map_or("ever".to_owned(), |ms| {
            crate::duration::shown(std::time::Duration::from_millis(ms))
        });
        say!(
            warn,
            id,
            "ahead",
            "[{id}] Slots up to {} are done already: {by} led with a clock that is ahead, or ours is behind. \
             Nothing runs for {idle}",
            time::rfc3339(ahead.settled_to)
        );
    }
}

impl CommonMessages for RunMessages {
    fn id(&self) -> &CandidateId {
        &self.id
    }
}

/// The reason why a candidate in this state does not campaign, for its heartbeat.
fn not_campaigning(state: &CandidateState) -> Option<String> {
    match state {
        CandidateState::Drained => Some("drained".to_owned()),
        CandidateState::Unhealthy(reason) => Some(format!("health check fails ({reason})")),
        _ => None,
    }
}

/// Describes why a term ended.
fn describe_end(reason: &EndReason, id: &CandidateId) -> String {
    match reason {
        EndReason::Unreachable(since) => {
            format!("store unreachable since {}", time::local_time_of(*since))
        }
        EndReason::StoreError(error) => error.to_string(),
        EndReason::Paused(time) => format!(
            "this process did not run for up to {}, and its time ran out",
            crate::duration::shown(*time)
        ),
        EndReason::Refused(Some(by)) if by == id.as_str() => {
            "revoked, or taken by another candidate with this id".to_owned()
        }
        EndReason::Refused(Some(by)) => format!("the store says that it is led by {by}"),
        EndReason::Refused(None) => "the store says that it is not ours any more".to_owned(),
        EndReason::Asked => "asked to resign".to_owned(),
        EndReason::Unhealthy => "the health command fails".to_owned(),
        EndReason::Drained => "drained".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use tenure::Error;

    use super::*;

    #[test]
    fn a_lost_term_names_what_the_store_answered() {
        let id = CandidateId::new("n1").unwrap();
        for error in [Error::denied("wrong password"), Error::corrupt("'job' is not a lease")] {
            let text = error.to_string();
            assert_eq!(describe_end(&EndReason::StoreError(error), &id), text);
        }
    }
}
