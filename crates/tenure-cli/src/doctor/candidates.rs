//! PURE: one sentence about the candidates that have a presence.

use tenure::Name;

use crate::candidate::{Candidate, listed};
use crate::output::printable;

/// The sentence, with the command that helps if there is one; `None` if no candidate has a presence.
pub(super) fn sentence(name: &Name, candidates: &[Candidate]) -> Option<String> {
    let first = candidates.first()?;
    let id = printable(&first.candidate_id);
    let undrain = format!("tenure undrain {name} {id}");
    let all_drained = candidates.iter().all(|candidate| candidate.state == "drained");
    Some(match (candidates.len(), all_drained) {
        (1, true) => format!("Candidate {id} is running and drained: {undrain}"),
        (2, true) => format!("2 candidates are running, both drained: {undrain}"),
        (count, true) => format!("{count} candidates are running, all drained: {undrain}"),
        (1, false) => match &first.reason {
            Some(reason) => {
                format!(
                    "Candidate {id} is running; its health check fails ({}).",
                    printable(reason)
                )
            }
            None => format!("Candidate {id} is running; its state is {}.", first.state),
        },
        (count, false) => {
            let each = candidates.iter().map(|candidate| {
                format!("{} is {}", printable(&candidate.candidate_id), candidate.shown_state())
            });
            format!("{count} candidates are running: {}.", listed(&each.collect::<Vec<_>>()))
        }
    })
}
