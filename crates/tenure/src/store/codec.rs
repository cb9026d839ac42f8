//! PURE: a record as bytes: one versioned JSON object.
//!
//! [`decode`] accepts exactly what [`encode`] writes: every value is validated, and the record is encoded again and compared.
//! So garbage, a field that this version does not know, and a second spelling of the same record are all Corrupt.

use std::fmt::Write as _;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::record::{LeadsFrom, MAX_HISTORY_TERMS, Record, TermRecord};
use crate::error::{Error, Result};
use crate::lease::{
    CandidateId, Checkpoint, Ended, Name, Nonce, Note, PastTerm, PastTermOutcome, Token, WaitReason,
};

/// The maximum size of a record in bytes: no longer record is written, and nothing longer is parsed.
pub const MAX_RECORD_BYTES: usize = 24 * 1024;

const FORMAT: u32 = 1;

/// The bytes of the record of `name`.
///
/// # Errors
/// Invalid, if the record is too long, which no valid record is.
pub fn encode(name: &Name, record: &Record) -> Result<Vec<u8>> {
    encode_with::<NoExtra>(name, record, record.term.as_ref().map(|_| NoExtra {})).map_err(
        |reason| Error::invalid(format!("the record of '{name}' cannot be written: {reason}")),
    )
}

/// The record of `name` in these bytes.
///
/// # Errors
/// Corrupt, if the bytes are not what [`encode`] writes for a record of this name.
pub fn decode(name: &Name, bytes: &[u8]) -> Result<Record> {
    Ok(decode_named::<NoExtra>(name, bytes)?.record)
}

/// The record of `name` in these bytes, and what the store adds to its term.
pub(crate) fn decode_named<E: Serialize + DeserializeOwned>(
    name: &Name,
    bytes: &[u8],
) -> Result<Decoded<E>> {
    let found = decode_with::<E>(bytes).map_err(|reason| {
        Error::corrupt(format!(
            "what is stored under '{name}' is not a lease of Tenure: {}. It is left as it is; remove it if no candidate \
             leads by it",
            reason.escape_debug()
        ))
    })?;
    if found.name != *name {
        return Err(Error::corrupt(format!(
            "what is stored under '{name}' is the lease of '{}': it was copied or renamed. Remove it",
            found.name
        )));
    }
    Ok(found)
}

/// A decoded record, its name, and what the store adds to its term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decoded<E> {
    pub(crate) name: Name,
    pub(crate) record: Record,
    pub(crate) extra: Option<E>,
}

/// A term without anything that a store adds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NoExtra {}

/// Encodes a record; `extra` are fields that the store adds to its term. The error says in a few words what is wrong.
pub(crate) fn encode_with<E: Serialize>(
    name: &Name,
    record: &Record,
    extra: Option<E>,
) -> Result<Vec<u8>, String> {
    let json = RecordJson {
        format: FORMAT,
        name: name.to_string(),
        origin: record.origin.get(),
        token: record.token.get(),
        before: previous_term(record.before),
        term: record.term.as_ref().zip(extra).map(|(term, extra)| TermJson::new(term, extra)),
        next: record.next.as_ref().map(ToString::to_string),
        checkpoint: record.checkpoint.as_ref().map(|checkpoint| to_hex(checkpoint.as_bytes())),
        leads_from: record.leads_from.map(|from| LeadsFromJson {
            at_us: from.at_micros,
            length_us: from.length_micros,
            reason: from.reason.as_str().to_owned(),
        }),
        ephemeral: record.ephemeral,
        history: record.history.as_ref().map(|terms| terms.iter().map(past_term_text).collect()),
    };
    let bytes = serde_json::to_vec(&json).map_err(|error| error.to_string())?;
    check_length(&bytes)?;
    Ok(bytes)
}

/// Decodes a record; the error says in a few words what is wrong with the bytes.
pub(crate) fn decode_with<E: Serialize + DeserializeOwned>(
    bytes: &[u8],
) -> Result<Decoded<E>, String> {
    check_length(bytes)?;
    let Version { format } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if format != FORMAT {
        return Err(format!("its format is {format}, and this Tenure reads {FORMAT}"));
    }
    let json: RecordJson<E> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let again = serde_json::to_vec(&json).map_err(|error| error.to_string())?;
    if again != bytes {
        return Err("it has a field or a spelling that this Tenure does not write".to_owned());
    }
    json.checked().map_err(|error| error.to_string())
}

fn check_length(bytes: &[u8]) -> Result<(), String> {
    match bytes.len() > MAX_RECORD_BYTES {
        true => Err(format!("it is longer than {MAX_RECORD_BYTES} bytes")),
        false => Ok(()),
    }
}

/// Parsed first, so that the error names a newer format.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// The record as it is written: plain values, each validated when it is read.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordJson<E> {
    format: u32,
    name: String,
    origin: u64,
    token: u64,
    before: Option<PreviousTerm>,
    term: Option<TermJson<E>>,
    next: Option<String>,
    checkpoint: Option<String>,
    /// Omitted in a record without a start-up wait, which is nearly every record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leads_from: Option<LeadsFromJson>,
    /// Omitted if false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    ephemeral: bool,
    /// Omitted in a record that keeps no history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    history: Option<Vec<String>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeadsFromJson {
    at_us: u64,
    length_us: u64,
    reason: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PreviousTerm {
    how: PreviousEnd,
    token: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PreviousEnd {
    Released,
    Expired,
    Died,
}

#[derive(Serialize, Deserialize)]
struct TermJson<E> {
    candidate: String,
    nonce: Option<String>,
    ttl_us: u64,
    since_us: u64,
    note: String,
    saved: Option<u64>,
    #[serde(flatten)]
    extra: E,
}

impl<E> TermJson<E> {
    fn new(term: &TermRecord, extra: E) -> Self {
        TermJson {
            candidate: term.candidate.to_string(),
            nonce: term.nonce.map(|nonce| nonce.to_string()),
            ttl_us: u64::try_from(term.ttl.as_micros()).unwrap_or(u64::MAX),
            since_us: term.since_micros,
            note: term.note.as_str().to_owned(),
            saved: term.saved,
            extra,
        }
    }

    fn checked(self) -> Result<(TermRecord, E)> {
        let nonce = match self.nonce {
            None => None,
            Some(text) => Some(Nonce::parse(&text).ok_or_else(|| invalid_field("nonce"))?),
        };
        let term = TermRecord {
            candidate: CandidateId::new(&self.candidate)?,
            nonce,
            ttl: Duration::from_micros(self.ttl_us),
            since_micros: self.since_us,
            note: Note::new(&self.note)?,
            saved: self.saved,
        };
        Ok((term, self.extra))
    }
}

impl<E> RecordJson<E> {
    /// Passes every value through the constructor that validates it.
    fn checked(self) -> Result<Decoded<E>> {
        let before = match self.before {
            None => Ended::Nothing,
            Some(PreviousTerm { how, token }) => {
                let token = Token::new(token)?;
                match how {
                    PreviousEnd::Released => Ended::Released(token),
                    PreviousEnd::Expired => Ended::Expired(token),
                    PreviousEnd::Died => Ended::Died(token),
                }
            }
        };
        let checkpoint = match self.checkpoint {
            None => None,
            Some(hex) => {
                Some(Checkpoint::new(from_hex(&hex).ok_or_else(|| invalid_field("checkpoint"))?)?)
            }
        };
        let (term, extra) = self.term.map(TermJson::checked).transpose()?.unzip();
        let record = Record {
            origin: Token::new(self.origin)?,
            token: Token::new(self.token)?,
            before,
            term,
            next: self.next.as_deref().map(CandidateId::new).transpose()?,
            checkpoint,
            leads_from: self.leads_from.map(LeadsFromJson::checked).transpose()?,
            ephemeral: self.ephemeral,
            history: self.history.map(|terms| checked_history(&terms)).transpose()?,
        };
        Ok(Decoded { name: Name::stored(&self.name)?, record, extra })
    }
}

impl LeadsFromJson {
    fn checked(self) -> Result<LeadsFrom> {
        let reason =
            WaitReason::parse(&self.reason).ok_or_else(|| invalid_field("start-up wait"))?;
        Ok(LeadsFrom { at_micros: self.at_us, length_micros: self.length_us, reason })
    }
}

fn previous_term(before: Ended) -> Option<PreviousTerm> {
    let (how, token) = match before {
        Ended::Nothing => return None,
        Ended::Released(token) => (PreviousEnd::Released, token),
        Ended::Expired(token) => (PreviousEnd::Expired, token),
        Ended::Died(token) => (PreviousEnd::Died, token),
    };
    Some(PreviousTerm { how, token: token.get() })
}

/// A term of the history as text: `TOKEN CANDIDATE FROM TO OUTCOME`, the times in milliseconds.
pub(crate) fn past_term_text(term: &PastTerm) -> String {
    let PastTerm { token, candidate, from, to, outcome } = term;
    format!("{token} {candidate} {from} {to} {}", outcome.as_str())
}

/// Parses the output of [`past_term_text`].
pub(crate) fn parse_past_term(text: &str) -> Option<PastTerm> {
    let mut words = text.split(' ');
    let term = PastTerm {
        token: Token::new(words.next()?.parse().ok()?).ok()?,
        candidate: CandidateId::new(words.next()?).ok()?,
        from: words.next()?.parse().ok()?,
        to: words.next()?.parse().ok()?,
        outcome: PastTermOutcome::parse(words.next()?)?,
    };
    // Written again and compared: there is exactly one spelling of each number, and nothing after the last word.
    (past_term_text(&term) == text).then_some(term)
}

fn checked_history(terms: &[String]) -> Result<Vec<PastTerm>> {
    if terms.len() > MAX_HISTORY_TERMS {
        return Err(invalid_field("history"));
    }
    let parse = |text: &String| parse_past_term(text).ok_or_else(|| invalid_field("history"));
    terms.iter().map(parse).collect()
}

pub(crate) fn invalid_field(what: &str) -> Error {
    Error::corrupt(format!("its {what} is not one"))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).filter(|_| !b.is_ascii_uppercase());
    let pair = |pair: &[u8]| match *pair {
        [high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
        _ => None,
    };
    hex.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests;
