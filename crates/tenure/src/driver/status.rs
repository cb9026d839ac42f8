//! [`Status`]: what is known of a candidate at one moment.

use std::time::Duration;

use super::candidate_state::CandidateState;
use crate::error::Error;
use crate::lease::{CandidateId, Name, StartupWait, Token};
use crate::store::Grade;

/// Where a candidate stands, at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// Of what.
    pub name: Name,
    /// Who.
    pub candidate_id: CandidateId,
    /// Whether it leads, computed when this was made.
    pub is_leader: bool,
    /// What it does now.
    pub state: CandidateState,
    /// Who leads, as far as we know.
    pub current_leader: Option<String>,
    /// The token of the term it leads.
    pub token: Option<Token>,
    /// This candidate's start-up wait, while its state is [`CandidateState::Starting`].
    pub starting: Option<StartupWait>,
    /// When the current term began, whoever leads it: Unix milliseconds, for people to read.
    pub since: Option<u64>,
    /// How long that is certain; zero unless it leads.
    pub valid_for: Duration,
    /// How often the leader changed while we looked.
    pub transitions: u64,
    /// Told not to campaign.
    pub drained: bool,
    /// Fit to lead, as far as a [health check](crate::Builder::health) says.
    pub healthy: bool,
    /// Its [priority](crate::Builder::priority).
    pub priority: i32,
    /// The store's URL, without passwords.
    pub store: String,
    /// What the store promises, as far as it is known by now.
    pub store_grade: Grade,
    /// `None` before the first answer.
    pub store_reachable: Option<bool>,
    /// The last thing that went wrong.
    pub last_error: Option<Error>,
}
