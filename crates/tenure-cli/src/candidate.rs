//! A candidate as shown by `status`, `doctor`, `resign` and HTTP.

use serde::Serialize;
use tenure::CandidateState;
use tenure::presence::Node;

use crate::output;

/// A candidate in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Candidate {
    pub(crate) candidate_id: String,
    pub(crate) url: Option<String>,
    /// One of `waiting`, `starting`, `leading`, `stopping`, `drained`, `unhealthy`; `unknown` if presence has no state.
    pub(crate) state: &'static str,
    /// Why the candidate is unhealthy.
    pub(crate) reason: Option<String>,
    pub(crate) priority: i32,
}

impl Candidate {
    /// The candidate `node` of a lease with the given holder and its state. The lease, not presence, decides which candidate
    /// holds it: presence is written later.
    pub(crate) fn new(node: &Node, holder: Option<(&str, &'static str)>) -> Candidate {
        let reported = node.state.as_ref();
        let held = holder.filter(|(id, _)| *id == node.id.as_str()).map(|(_, state)| state);
        let state = match (held, reported) {
            (Some(_), Some(CandidateState::Stopping)) => "stopping",
            (Some(held), _) => held,
            // The candidate no longer holds the lease, but has not updated its presence yet.
            (None, Some(CandidateState::Leading | CandidateState::Starting)) => "waiting",
            (None, Some(state)) => state.as_str(),
            (None, None) => "unknown",
        };
        let reason = reported.and_then(CandidateState::reason).filter(|_| state == "unhealthy");
        Candidate {
            candidate_id: node.id.to_string(),
            url: node.url.clone(),
            state,
            reason: reason.map(str::to_owned),
            priority: node.priority,
        }
    }

    /// Whether the candidate could acquire the lease if it were free, as far as presence tells.
    pub(crate) fn could_lead(&self) -> bool {
        !matches!(self.state, "stopping" | "drained" | "unhealthy")
    }

    /// `drained`, or `unhealthy (exit 127: …)`.
    pub(crate) fn shown_state(&self) -> String {
        match &self.reason {
            Some(reason) => format!("{} ({})", self.state, output::printable(reason)),
            None => self.state.to_owned(),
        }
    }
}

/// `web-2, web-3 and web-4`.
pub(crate) fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use tenure::CandidateId;

    use super::*;

    fn state(reported: Option<CandidateState>, holder: Option<(&str, &'static str)>) -> String {
        let id = CandidateId::new("a").unwrap();
        let node = Node { id, url: None, priority: 0, state: reported, since: None };
        Candidate::new(&node, holder).shown_state()
    }

    #[test]
    fn the_lease_decides_who_leads_and_presence_decides_the_rest() {
        use CandidateState::{Drained, Leading, Stopping, Unhealthy, Waiting};
        let a = Some(("a", "leading"));
        let b = Some(("b", "leading"));
        assert_eq!(state(Some(Waiting), a), "leading");
        assert_eq!(state(Some(Stopping), a), "stopping");
        assert_eq!(state(None, Some(("a", "starting"))), "starting");
        assert_eq!(state(Some(Leading), b), "waiting");
        assert_eq!(state(Some(Drained), b), "drained");
        assert_eq!(state(Some(Unhealthy("exit 1".to_owned())), None), "unhealthy (exit 1)");
        assert_eq!(state(None, b), "unknown");
    }

    #[test]
    fn names_are_joined_with_commas_and_and() {
        let list = |names: &[&str]| {
            listed(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!((list(&["a"]), list(&["a", "b"])), ("a".to_owned(), "a and b".to_owned()));
        assert_eq!(list(&["a", "b", "c"]), "a, b and c");
    }
}
