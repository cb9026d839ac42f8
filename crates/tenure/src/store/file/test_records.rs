//! Test support: the paths of a name's files, and records as another process would write them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::paths::RecordPath;
use super::stored_record::{BootId, StoredRecord, TermPlace};
use crate::error::{Error, Result};
use crate::lease::{CandidateId, Name, Nonce, Note, Token};
use crate::store::record::{Record, TermRecord};

/// The path of a name's record in `directory`.
pub fn record_path(directory: &Path, name: &Name) -> PathBuf {
    let path = RecordPath::of(name);
    directory.join("leases").join(path.shown(&path.record()))
}

/// The path of a name's lock in `directory`.
pub fn lock_path(directory: &Path, name: &Name) -> PathBuf {
    let path = RecordPath::of_lock(name);
    directory.join("locks").join(path.shown(&path.lock()))
}

/// Writes the record of a free name whose last token is `token`.
pub fn free(directory: &Path, name: &Name, token: Token) -> Result<()> {
    let stored = StoredRecord { name: name.clone(), record: Record::new(token), place: None };
    put(directory, &stored, 0)
}

/// Writes the record of a holder in another boot; `beat` differs from one renewal to the next.
pub fn of_another_boot(
    directory: &Path,
    name: &Name,
    token: Token,
    ttl: Duration,
    beat: u64,
) -> Result<()> {
    let mut record = Record::new(token);
    record.term = Some(TermRecord {
        candidate: CandidateId::new("elsewhere")?,
        nonce: Some(Nonce::from_bits(7)),
        ttl,
        since_micros: 0,
        note: Note::default(),
        saved: None,
    });
    let place = TermPlace {
        era: BootId { boot: "another".to_owned(), timens: "another".to_owned() },
        live: None,
        // Long past on the clock of this boot, which says nothing about the clock of the other.
        until: Some(crate::Moment::from_nanos(1)),
    };
    put(directory, &StoredRecord { name: name.clone(), record, place: Some(place) }, beat)
}

fn put(directory: &Path, record: &StoredRecord, beat: u64) -> Result<()> {
    let head = record.encode_head().map_err(Error::invalid)?;
    let bytes = [&*head, &*record.encode_tail(&head, beat)].concat();
    let path = record_path(directory, &record.name);
    let fail = |e: std::io::Error| Error::unavailable(format!("{}: {e}", path.display()));
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(fail)?;
    }
    std::fs::write(&path, bytes).map_err(fail)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, mode).map_err(fail)
}
