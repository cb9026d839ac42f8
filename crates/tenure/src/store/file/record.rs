//! PURE: the on-disk format of a record.
//!
//! ```text
//! {"format":1,"name":"job",…}                                   the head: changes are fsynced
//! crc=1a2b3c4d                                                  of the head
//! until=00000000000123456789 beat=00000000000000000007 crc=…    the tail: rewritten in place by renewals
//! ```
//! The head states who holds the lease; the tail states only until when, on the boot clock. A head that is not byte for byte
//! what an encoder writes is Corrupt. If the tail is damaged, the holder's time is unknown, and observation decides.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Moment;
use crate::lease::{CandidateId, Checkpoint, Ended, Name, Nonce, Note, Token, WaitReason};
use crate::store::leads_from::LeadsFrom;

/// The maximum size of a record in bytes: no longer record is written, and nothing longer is read.
pub(super) const MAX_RECORD_BYTES: usize = 16 * 1024;

const FORMAT: u32 = 1;
const CRC_LINE: usize = "crc=00000000\n".len();
pub(super) const TAIL_LEN: usize =
    "until=00000000000000000000 beat=00000000000000000000 crc=00000000\n".len();

/// All stored state of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) name: Name,
    pub(super) origin: Token,
    pub(super) token: Token,
    /// How the term before `term` ended; if there is no term now, how the last term ended.
    pub(super) before: Ended,
    pub(super) term: Option<TermRecord>,
    pub(super) next: Option<CandidateId>,
    pub(super) checkpoint: Option<Checkpoint>,
    /// On the wall clock, because the boot clock means nothing to another machine.
    pub(super) leads_from: Option<LeadsFrom>,
    /// The lease was granted to [an ephemeral claim](crate::store::ephemeral): the file is removed when the term ends.
    pub(super) ephemeral: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TermRecord {
    pub(super) candidate: CandidateId,
    /// `None` after a revocation: no candidate can renew the term, and it blocks claims until its time has passed.
    pub(super) nonce: Option<Nonce>,
    pub(super) ttl: Duration,
    pub(super) since_micros: u64,
    pub(super) note: Note,
    /// The number of the last save.
    pub(super) saved: Option<u64>,
    /// The boot on whose clock `until` was written.
    pub(super) era: BootId,
    /// Set if the term ends with its process.
    pub(super) live: Option<LivenessId>,
    /// Stored in the tail. `None`: the tail could not be read.
    pub(super) until: Option<Moment>,
}

/// One boot and one time namespace: within it, all readings of the boot clock are comparable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BootId {
    pub(super) boot: String,
    pub(super) timens: String,
}

/// The file that a process keeps locked while it lives, with its device and inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LivenessId {
    pub(super) id: String,
    pub(super) dev: u64,
    pub(super) ino: u64,
}

/// The head as it is written: plain values, each validated when it is read.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordHead {
    format: u32,
    name: String,
    origin: u64,
    token: u64,
    before: Option<PreviousTerm>,
    term: Option<HeadTerm>,
    next: Option<String>,
    checkpoint: Option<String>,
    /// Omitted in a record without a start-up wait, which is nearly every record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leads_from: Option<HeadLeadsFrom>,
    /// Omitted if false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    ephemeral: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeadLeadsFrom {
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
#[serde(deny_unknown_fields)]
struct HeadTerm {
    candidate: String,
    nonce: Option<String>,
    ttl_us: u64,
    since_us: u64,
    note: String,
    saved: Option<u64>,
    era: BootId,
    live: Option<LivenessId>,
}

/// Parsed first, so that the error names a newer format.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// A parsed record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parsed {
    pub(super) record: Record,
    /// The length of the head including its crc line: the tail begins there.
    pub(super) head_len: usize,
    /// The number of the last write; `None` if the tail could not be read.
    pub(super) beat: Option<u64>,
}

/// Parses a whole file; the error says in a few words what is wrong with it.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, String> {
    if bytes.len() > MAX_RECORD_BYTES {
        return Err(format!("it is longer than {MAX_RECORD_BYTES} bytes"));
    }
    let end = bytes.iter().position(|&b| b == b'\n').ok_or("it has no first line")?;
    let json = &bytes[..end];
    let crc_line = bytes.get(end + 1..end + 1 + CRC_LINE).ok_or("it ends in its head")?;
    let crc = crc32fast::hash(json);
    if crc_line != format!("crc={crc:08x}\n").as_bytes() {
        return Err("its checksum is wrong".to_owned());
    }
    let head_len = end + 1 + CRC_LINE;
    let version: Version = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    if version.format != FORMAT {
        return Err(format!("its format is {}, and this Tenure reads {FORMAT}", version.format));
    }
    let head: RecordHead = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let mut record = head.checked().map_err(|error| error.to_string())?;
    let tail = &bytes[head_len..];
    if tail.len() > TAIL_LEN {
        return Err("it goes on after its end".to_owned());
    }
    let tail = parse_tail(tail, crc);
    if let Some(term) = &mut record.term {
        term.until = tail.map(|(until, _)| until).filter(|&until| until != UNKNOWN_TIME);
    }
    Ok(Parsed { record, head_len, beat: tail.map(|(_, beat)| beat) })
}

/// Written for a holder whose time could not be read and must not be invented.
const UNKNOWN_TIME: Moment = Moment::from_nanos(u64::MAX);

fn parse_tail(bytes: &[u8], head_crc: u32) -> Option<(Moment, u64)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let until = parse_digits(text.strip_prefix("until=")?.get(..20)?)?;
    let beat = parse_digits(text.get(26..)?.strip_prefix(" beat=")?.get(..20)?)?;
    let until = Moment::from_nanos(until);
    // Encode again and compare: there is exactly one spelling, and the rest needs no second parser.
    (encode_tail_with(until, beat, head_crc) == bytes).then_some((until, beat))
}

fn parse_digits(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn encode_tail_with(until: Moment, beat: u64, head_crc: u32) -> Vec<u8> {
    let mut text = format!("until={:020} beat={beat:020}", until.as_nanos());
    // The tail's checksum includes the head's, so that a tail matches only one head.
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head_crc.to_le_bytes());
    crc.update(text.as_bytes());
    let _ = writeln!(text, " crc={:08x}", crc.finalize());
    text.into_bytes()
}

impl Record {
    /// The head with its crc line.
    pub(super) fn encode_head(&self) -> Result<Vec<u8>, String> {
        let json =
            serde_json::to_vec(&RecordHead::from(self)).map_err(|error| error.to_string())?;
        let crc = crc32fast::hash(&json);
        let mut bytes = json;
        bytes.extend_from_slice(format!("\ncrc={crc:08x}\n").as_bytes());
        Ok(bytes)
    }

    /// The tail for `head`, which must be the result of [`Record::encode_head`].
    pub(super) fn encode_tail(&self, head: &[u8], beat: u64) -> Vec<u8> {
        let crc = crc32fast::hash(&head[..head.len() - CRC_LINE - 1]);
        let until = match &self.term {
            Some(term) => term.until.unwrap_or(UNKNOWN_TIME),
            None => Moment::PAST,
        };
        encode_tail_with(until, beat, crc)
    }
}

impl From<&Record> for RecordHead {
    fn from(record: &Record) -> Self {
        let before = |how, token: Token| Some(PreviousTerm { how, token: token.get() });
        RecordHead {
            format: FORMAT,
            name: record.name.to_string(),
            origin: record.origin.get(),
            token: record.token.get(),
            before: match record.before {
                Ended::Nothing => None,
                Ended::Released(token) => before(PreviousEnd::Released, token),
                Ended::Expired(token) => before(PreviousEnd::Expired, token),
                Ended::Died(token) => before(PreviousEnd::Died, token),
            },
            term: record.term.as_ref().map(HeadTerm::from),
            next: record.next.as_ref().map(ToString::to_string),
            checkpoint: record.checkpoint.as_ref().map(|c| to_hex(c.as_bytes())),
            leads_from: record.leads_from.map(|from| HeadLeadsFrom {
                at_us: from.at_micros,
                length_us: from.length_micros,
                reason: from.reason.as_str().to_owned(),
            }),
            ephemeral: record.ephemeral,
        }
    }
}

impl From<&TermRecord> for HeadTerm {
    fn from(term: &TermRecord) -> Self {
        HeadTerm {
            candidate: term.candidate.to_string(),
            nonce: term.nonce.map(|nonce| nonce.to_string()),
            ttl_us: u64::try_from(term.ttl.as_micros()).unwrap_or(u64::MAX),
            since_us: term.since_micros,
            note: term.note.as_str().to_owned(),
            saved: term.saved,
            era: term.era.clone(),
            live: term.live.clone(),
        }
    }
}

impl RecordHead {
    /// Passes every value through the constructor that validates it.
    fn checked(self) -> crate::Result<Record> {
        let before = match self.before {
            None => Ended::Nothing,
            Some(PreviousTerm { how: PreviousEnd::Released, token }) => {
                Ended::Released(Token::new(token)?)
            }
            Some(PreviousTerm { how: PreviousEnd::Expired, token }) => {
                Ended::Expired(Token::new(token)?)
            }
            Some(PreviousTerm { how: PreviousEnd::Died, token }) => Ended::Died(Token::new(token)?),
        };
        let checkpoint = match self.checkpoint {
            None => None,
            Some(hex) => {
                Some(Checkpoint::new(from_hex(&hex).ok_or_else(|| invalid_field("checkpoint"))?)?)
            }
        };
        Ok(Record {
            name: Name::stored(&self.name)?,
            origin: Token::new(self.origin)?,
            token: Token::new(self.token)?,
            before,
            term: self.term.map(HeadTerm::checked).transpose()?,
            next: self.next.as_deref().map(CandidateId::new).transpose()?,
            checkpoint,
            leads_from: self.leads_from.map(HeadLeadsFrom::checked).transpose()?,
            ephemeral: self.ephemeral,
        })
    }
}

impl HeadLeadsFrom {
    fn checked(self) -> crate::Result<LeadsFrom> {
        let reason =
            WaitReason::parse(&self.reason).ok_or_else(|| invalid_field("start-up wait"))?;
        Ok(LeadsFrom { at_micros: self.at_us, length_micros: self.length_us, reason })
    }
}

impl HeadTerm {
    fn checked(self) -> crate::Result<TermRecord> {
        let nonce = match self.nonce {
            None => None,
            Some(text) => Some(Nonce::parse(&text).ok_or_else(|| invalid_field("nonce"))?),
        };
        // The id becomes a file name: accept exactly the digits that [`LivenessId`] uses, so that no path can hide in it.
        if self.live.as_ref().is_some_and(|live| Nonce::parse(&live.id).is_none()) {
            return Err(invalid_field("live file"));
        }
        Ok(TermRecord {
            candidate: CandidateId::new(&self.candidate)?,
            nonce,
            ttl: Duration::from_micros(self.ttl_us),
            since_micros: self.since_us,
            note: Note::new(&self.note)?,
            saved: self.saved,
            era: self.era,
            live: self.live,
            until: None,
        })
    }
}

fn invalid_field(what: &str) -> crate::Error {
    crate::Error::corrupt(format!("its {what} is not one"))
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
#[path = "record_tests.rs"]
mod tests;
