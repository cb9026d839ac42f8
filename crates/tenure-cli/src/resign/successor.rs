//! PURE: which candidates can take over from a leader that resigns, and sentences about the result.

use tenure::{CandidateId, Name};

use crate::candidate::{Candidate, listed};
use crate::output::printable;

/// What presence says about a named successor, checked before the request is sent to the leader.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SuccessorCheck {
    Ready,
    /// No candidate has a presence, so nothing is known: the request is sent anyway.
    Unknown,
    /// No request is sent to the leader; the reason.
    Refused(String),
}

/// Whether `to` can take over from `leader`.
pub(crate) fn check(
    name: &Name,
    leader: &str,
    to: &CandidateId,
    candidates: &[Candidate],
) -> SuccessorCheck {
    if candidates.is_empty() {
        return SuccessorCheck::Unknown;
    }
    let why = match candidates.iter().find(|candidate| candidate.candidate_id == to.as_str()) {
        Some(candidate) if candidate.could_lead() => return SuccessorCheck::Ready,
        Some(candidate) if candidate.state == "drained" => {
            format!("'{to}' is drained ('tenure undrain {name} {to}' ends that)")
        }
        Some(candidate) => format!("'{to}' is {}", candidate.shown_state()),
        None => format!("no candidate '{to}' of '{name}' is running, or it uses --no-presence"),
    };
    let others =
        candidates.iter().filter(|other| other.could_lead() && other.candidate_id != leader);
    let others: Vec<String> = others.map(|other| printable(&other.candidate_id)).collect();
    let others = match &others[..] {
        [] => "No other candidate could lead".to_owned(),
        others => format!("{} could lead", listed(others)),
    };
    let leader = printable(leader);
    SuccessorCheck::Refused(format!("'{leader}' still leads '{name}': {why}. {others}."))
}

/// The sentence for a leader that released the lease and leads again, because no other candidate acquired it.
pub(super) fn leads_again(leader: &str, candidates: &[Candidate]) -> String {
    let others = candidates.iter().filter(|other| other.candidate_id != leader);
    let others: Vec<String> = others
        .map(|other| format!("{} is {}", printable(&other.candidate_id), other.shown_state()))
        .collect();
    let others = match &others[..] {
        [] => "none is running".to_owned(),
        others => listed(others),
    };
    let leader = printable(leader);
    format!(
        "{leader} handed over, but no other candidate was ready ({others}): {leader} leads again"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: &str, state: &'static str, reason: Option<&str>) -> Candidate {
        Candidate {
            candidate_id: id.to_owned(),
            url: None,
            state,
            reason: reason.map(str::to_owned),
            priority: 0,
        }
    }

    fn verdict(to: &str, candidates: &[Candidate]) -> SuccessorCheck {
        check(&Name::new("job").unwrap(), "web-1", &CandidateId::new(to).unwrap(), candidates)
    }

    #[test]
    fn only_a_candidate_that_could_lead_is_accepted_as_successor() {
        let candidates = [
            candidate("web-1", "leading", None),
            candidate("web-2", "drained", None),
            candidate("web-3", "waiting", None),
            candidate("web-4", "unhealthy", Some("exit 1")),
            candidate("web-5", "unknown", None),
        ];
        assert_eq!(verdict("web-3", &candidates), SuccessorCheck::Ready);
        assert_eq!(verdict("web-5", &candidates), SuccessorCheck::Ready);
        for (to, why) in [
            ("web-2", "'web-2' is drained ('tenure undrain job web-2' ends that)"),
            ("web-4", "'web-4' is unhealthy (exit 1)"),
            ("web-9", "no candidate 'web-9' of 'job' is running, or it uses --no-presence"),
        ] {
            let text = format!("'web-1' still leads 'job': {why}. web-3 and web-5 could lead.");
            assert_eq!(verdict(to, &candidates), SuccessorCheck::Refused(text));
        }
        assert_eq!(verdict("web-2", &[]), SuccessorCheck::Unknown);
        let SuccessorCheck::Refused(text) = verdict("web-2", &candidates[..2]) else {
            panic!("refused")
        };
        assert!(text.ends_with("No other candidate could lead."), "{text}");
    }

    #[test]
    fn a_leader_that_leads_again_is_reported_with_the_reason() {
        let candidates = [candidate("web-1", "leading", None), candidate("web-2", "drained", None)];
        assert_eq!(
            leads_again("web-1", &candidates),
            "web-1 handed over, but no other candidate was ready (web-2 is drained): web-1 leads again"
        );
        assert!(leads_again("web-1", &candidates[..1]).contains("(none is running)"));
    }
}
