//! [`CandidateState`]: the states of a candidate, used by the status, presence, JSON and HTTP.

use std::fmt;

use crate::machine::Phase;

/// The state of a candidate, as the candidate reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CandidateState {
    /// The candidate campaigns. Another candidate leads, or none does yet.
    #[default]
    Waiting,
    /// The candidate holds the lease and does not lead yet (start-up wait).
    Starting,
    /// The candidate leads.
    Leading,
    /// The work is stopping, the lease is being released, or the candidate ends.
    Stopping,
    /// The candidate is drained: it does not campaign.
    Drained,
    /// The health check fails with this reason, so the candidate does not campaign.
    Unhealthy(String),
}

impl CandidateState {
    /// The state of a candidate in `phase`. While work runs, the phase decides. A waiting candidate is reported as drained or
    /// unhealthy, in this order.
    pub(crate) fn new(phase: Phase, drained: bool, unhealthy: Option<&str>) -> Self {
        match (phase, unhealthy) {
            (Phase::Starting, _) => CandidateState::Starting,
            (Phase::Leading, _) => CandidateState::Leading,
            (Phase::Resigning | Phase::Stopped, _) => CandidateState::Stopping,
            (Phase::Waiting, _) if drained => CandidateState::Drained,
            (Phase::Waiting, Some(reason)) => CandidateState::Unhealthy(reason.to_owned()),
            (Phase::Waiting, None) => CandidateState::Waiting,
        }
    }

    /// Parses a state from its JSON word, with the reason if it has one. Returns `None` for an unknown word.
    pub(crate) fn parse(word: &str, reason: Option<&str>) -> Option<Self> {
        Some(match word {
            "waiting" => CandidateState::Waiting,
            "starting" => CandidateState::Starting,
            "leading" => CandidateState::Leading,
            "stopping" => CandidateState::Stopping,
            "drained" => CandidateState::Drained,
            "unhealthy" => CandidateState::Unhealthy(reason.unwrap_or_default().to_owned()),
            _ => return None,
        })
    }

    /// The word used as a label in metrics, logs and JSON: without the reason of [`CandidateState::Unhealthy`].
    pub fn as_str(&self) -> &'static str {
        match self {
            CandidateState::Waiting => "waiting",
            CandidateState::Starting => "starting",
            CandidateState::Leading => "leading",
            CandidateState::Stopping => "stopping",
            CandidateState::Drained => "drained",
            CandidateState::Unhealthy(_) => "unhealthy",
        }
    }

    /// The reason why the candidate is unhealthy.
    pub fn reason(&self) -> Option<&str> {
        match self {
            CandidateState::Unhealthy(reason) => Some(reason),
            _ => None,
        }
    }

    /// Whether the candidate would claim a free lease.
    pub fn campaigns(&self) -> bool {
        !matches!(
            self,
            CandidateState::Stopping | CandidateState::Drained | CandidateState::Unhealthy(_)
        )
    }
}

impl fmt::Display for CandidateState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason() {
            Some(reason) => write!(f, "{} ({reason})", self.as_str()),
            None => f.write_str(self.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phase_comes_first_while_work_may_run_and_drained_before_unhealthy() {
        let state =
            |phase, drained, unhealthy| CandidateState::new(phase, drained, unhealthy).to_string();
        assert_eq!(state(Phase::Leading, true, Some("exit 1")), "leading");
        assert_eq!(state(Phase::Resigning, true, None), "stopping");
        assert_eq!(state(Phase::Stopped, false, None), "stopping");
        assert_eq!(state(Phase::Waiting, true, Some("exit 1")), "drained");
        assert_eq!(state(Phase::Waiting, false, Some("exit 1")), "unhealthy (exit 1)");
        assert_eq!(state(Phase::Waiting, false, None), "waiting");
        assert_eq!(state(Phase::Starting, false, None), "starting");
    }

    #[test]
    fn each_word_is_read_back() {
        for word in ["waiting", "starting", "leading", "stopping", "drained", "unhealthy"] {
            assert_eq!(CandidateState::parse(word, None).unwrap().as_str(), word);
        }
        assert_eq!(CandidateState::parse("asleep", None), None);
    }
}
