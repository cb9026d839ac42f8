//! The environment variables that a command, a hook or a health check gets.

use std::process::Command;

use tenure::{CandidateId, Name, Token};

/// The prefix of Tenure's own variables. They are not passed on: a store's URL may contain a password.
const PREFIX: &str = "TENURE_";

/// Removes every variable of Tenure from the command's environment.
pub(crate) fn clear(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            command.env_remove(name);
        }
    }
}

/// Removes Tenure's own variables and sets `TENURE_NAME`, `TENURE_CANDIDATE` and, with a token, `TENURE_TOKEN`. All other
/// variables are passed on.
pub(crate) fn set(
    command: &mut Command,
    name: &Name,
    candidate: &CandidateId,
    token: Option<Token>,
) {
    clear(command);
    command.env("TENURE_NAME", name.as_str()).env("TENURE_CANDIDATE", candidate.as_str());
    if let Some(token) = token {
        command.env("TENURE_TOKEN", token.to_string());
    }
}

/// The same for one shard of the fleet `name`, with `TENURE_SHARD`.
pub(crate) fn set_for_shard(
    command: &mut Command,
    name: &Name,
    candidate: &CandidateId,
    token: Token,
    shard: &str,
) {
    set(command, name, candidate, Some(token));
    command.env("TENURE_SHARD", shard);
}
