//! What a command, a hook or a health check finds in its environment.

use std::process::Command;

use tenure::{CandidateId, Name, Token};

/// Ours begin with this. What we are told is ours alone: a store's URL may hold a password.
const OURS: &str = "TENURE_";

/// Takes away every variable of ours.
pub(crate) fn cleared(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(OURS.as_bytes()) {
            command.env_remove(name);
        }
    }
}

/// Everything else is passed on, and three are added.
pub(crate) fn of(
    command: &mut Command,
    name: &Name,
    candidate: &CandidateId,
    token: Option<Token>,
) {
    cleared(command);
    command.env("TENURE_NAME", name.as_str()).env("TENURE_CANDIDATE", candidate.as_str());
    if let Some(token) = token {
        command.env("TENURE_TOKEN", token.to_string());
    }
}

/// The same for one shard of the fleet `name`.
pub(crate) fn of_shard(
    command: &mut Command,
    name: &Name,
    candidate: &CandidateId,
    token: Token,
    shard: &str,
) {
    of(command, name, candidate, Some(token));
    command.env("TENURE_SHARD", shard);
}
