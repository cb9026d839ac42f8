//! How terms ended: [`Ended`] for the last one, [`PastTerm`] for those that a record keeps.

use super::{CandidateId, Token};

/// How a term ended, and its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// No record was found: the name is new, or the store has lost it.
    Nothing,
    /// The holder released it.
    Released(Token),
    /// It expired, or it was revoked.
    Expired(Token),
    /// The store detected that the holder had died.
    Died(Token),
}

impl Ended {
    /// The word used as a label in metrics, logs and JSON: without the token.
    pub fn as_str(self) -> &'static str {
        match self {
            Ended::Nothing => "nothing",
            Ended::Released(_) => "released",
            Ended::Expired(_) => "expired",
            Ended::Died(_) => "died",
        }
    }

    /// The token of the term that ended, if one was found.
    pub fn token(self) -> Option<Token> {
        match self {
            Ended::Nothing => None,
            Ended::Released(token) | Ended::Expired(token) | Ended::Died(token) => Some(token),
        }
    }
}

/// A term that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PastTerm {
    /// The token of the term.
    pub token: Token,
    /// The id of its holder.
    pub candidate: CandidateId,
    /// When it began, in Unix milliseconds on the clock that tokens are minted from.
    pub from: u64,
    /// When the store recorded its end, on the same clock. A term that expired or died ended before that: the store records
    /// the end with the next grant.
    pub to: u64,
    /// How it ended.
    pub outcome: PastTermOutcome,
}

impl PastTerm {
    /// Creates the record of a term from `from` to `to`, in Unix milliseconds on the clock that tokens are minted from.
    pub fn new(
        token: Token,
        candidate: CandidateId,
        from: u64,
        to: u64,
        outcome: PastTermOutcome,
    ) -> Self {
        PastTerm { token, candidate, from, to, outcome }
    }
}

/// How a [`PastTerm`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PastTermOutcome {
    /// The holder released it.
    Released,
    /// It expired.
    Expired,
    /// The store detected that the holder had died.
    Died,
    /// An operator revoked it.
    Revoked,
}

impl PastTermOutcome {
    const ALL: [PastTermOutcome; 4] = [
        PastTermOutcome::Released,
        PastTermOutcome::Expired,
        PastTermOutcome::Died,
        PastTermOutcome::Revoked,
    ];

    /// The word used in records, and as a label in metrics, logs and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            PastTermOutcome::Released => "released",
            PastTermOutcome::Expired => "expired",
            PastTermOutcome::Died => "died",
            PastTermOutcome::Revoked => "revoked",
        }
    }

    /// Parses the output of [`PastTermOutcome::as_str`].
    pub fn parse(word: &str) -> Option<PastTermOutcome> {
        PastTermOutcome::ALL.into_iter().find(|outcome| outcome.as_str() == word)
    }
}
