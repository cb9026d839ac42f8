//! PURE: a record as it is stored in a file.
//!
//! ```text
//! {"format":1,"name":"job",…}                                   the head: changes are fsynced
//! crc=1a2b3c4d                                                  of the head
//! until=00000000000123456789 beat=00000000000000000007 crc=…    the tail: rewritten in place by renewals
//! ```
//! The head is the record, as [`codec`](crate::store::codec) writes it; its term also states the boot of its clock and the
//! liveness file of its process. The tail states only until when the term lasts, on the boot clock. A head that is not byte for
//! byte what an encoder writes is Corrupt. If the tail is damaged, the holder's time is unknown, and observation decides.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::clock::Moment;
use crate::lease::{Name, Nonce};
use crate::store::codec::{self, Decoded, invalid_field};
use crate::store::record::Record;

const CRC_LINE: usize = "crc=00000000\n".len();
pub(super) const TAIL_LEN: usize =
    "until=00000000000000000000 beat=00000000000000000000 crc=00000000\n".len();

/// The maximum size of a file: nothing longer is read.
pub(super) const MAX_FILE_BYTES: usize = codec::MAX_RECORD_BYTES + 1 + CRC_LINE + TAIL_LEN;

/// All stored state of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredRecord {
    pub(super) name: Name,
    pub(super) record: Record,
    /// Where the record's term is held; `None` exactly if the record has no term.
    pub(super) place: Option<TermPlace>,
}

/// Where and until when a term is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TermPlace {
    /// The boot on whose clock `until` was written.
    pub(super) era: BootId,
    /// Set if the term ends with its process.
    pub(super) live: Option<LivenessId>,
    /// Stored in the tail. `None`: the tail could not be read.
    #[serde(skip)]
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

/// A parsed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parsed {
    pub(super) stored: StoredRecord,
    /// The length of the head including its crc line: the tail begins there.
    pub(super) head_len: usize,
    /// The number of the last write; `None` if the tail could not be read.
    pub(super) beat: Option<u64>,
}

/// Parses a whole file; the error says in a few words what is wrong with it.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, String> {
    if bytes.len() > MAX_FILE_BYTES {
        return Err(format!("it is longer than {MAX_FILE_BYTES} bytes"));
    }
    let end = bytes.iter().position(|&b| b == b'\n').ok_or("it has no first line")?;
    let json = &bytes[..end];
    let crc_line = bytes.get(end + 1..end + 1 + CRC_LINE).ok_or("it ends in its head")?;
    let crc = crc32fast::hash(json);
    if crc_line != format!("crc={crc:08x}\n").as_bytes() {
        return Err("its checksum is wrong".to_owned());
    }
    let head_len = end + 1 + CRC_LINE;
    let Decoded { name, record, extra } = codec::decode_with::<TermPlace>(json)?;
    let mut place = extra;
    let tail = &bytes[head_len..];
    if tail.len() > TAIL_LEN {
        return Err("it goes on after its end".to_owned());
    }
    let tail = parse_tail(tail, crc);
    if let Some(place) = &mut place {
        place.check_liveness_id()?;
        place.until = tail.map(|(until, _)| until).filter(|&until| until != UNKNOWN_TIME);
    }
    let stored = StoredRecord { name, record, place };
    Ok(Parsed { stored, head_len, beat: tail.map(|(_, beat)| beat) })
}

impl TermPlace {
    /// The id becomes a file name: accept exactly the digits that [`LivenessId`] uses, so that no path can hide in it.
    fn check_liveness_id(&self) -> Result<(), String> {
        match &self.live {
            Some(live) if Nonce::parse(&live.id).is_none() => {
                Err(invalid_field("live file").to_string())
            }
            _ => Ok(()),
        }
    }
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

impl StoredRecord {
    /// The head with its crc line.
    pub(super) fn encode_head(&self) -> Result<Vec<u8>, String> {
        let mut bytes = codec::encode_with(&self.name, &self.record, self.place.as_ref())?;
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(format!("\ncrc={crc:08x}\n").as_bytes());
        Ok(bytes)
    }

    /// The tail for `head`, which must be the result of [`StoredRecord::encode_head`].
    pub(super) fn encode_tail(&self, head: &[u8], beat: u64) -> Vec<u8> {
        let crc = crc32fast::hash(&head[..head.len() - CRC_LINE - 1]);
        let until = match &self.place {
            Some(place) => place.until.unwrap_or(UNKNOWN_TIME),
            None => Moment::PAST,
        };
        encode_tail_with(until, beat, crc)
    }
}

#[cfg(test)]
mod tests;
