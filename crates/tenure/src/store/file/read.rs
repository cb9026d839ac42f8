//! Reads records and judges whether the term in them is live.
//!
//! The batch executor reads a record first without and then under its lock; observe and watch read without it. The boot clock
//! judges expiry if the record was written in this boot and time namespace, otherwise observation does: the record must stay
//! unchanged for its TTL. A term that ends with its process is over as soon as the process's liveness file is unlocked.

use std::hash::{DefaultHasher, Hasher};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::directory::{Directory, SAFE_OPEN, check_file};
use super::error::failed;
use super::liveness::DeadProcesses;
use super::paths::RecordPath;
use super::stored_record::{BootId, MAX_FILE_BYTES, Parsed, StoredRecord, parse};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::lease::{Ended, Name};
use crate::observation::Observations;
use crate::store::record::Standing;

/// The assumed maximum drift of another boot's clock against the clock of this one.
const DRIFT_PPM: u32 = 1_000;

/// How often a reader without the lock tries to read a record that is being replaced or rewritten.
const READ_ATTEMPTS: u32 = 5;

/// A record as it was read.
#[derive(Debug)]
pub(super) struct ReadRecord {
    pub(super) stored: StoredRecord,
    /// The bytes before the tail.
    pub(super) head: Vec<u8>,
    pub(super) beat: Option<u64>,
    /// A hash of the whole file: different for every write.
    fingerprint: u128,
    /// The open file, for writing the next tail.
    pub(super) file: OwnedFd,
}

/// Whether the reader holds the lock of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadMode {
    /// Another process may be writing at the same time.
    Unlocked,
    /// The caller holds the lock, so the record stays as it was read.
    Locked,
}

/// Reads the record of `name`; `None` if there is none.
pub(super) fn read_record(
    directory: &Directory,
    name: &Name,
    mode: ReadMode,
) -> Result<Option<ReadRecord>> {
    let record_path = RecordPath::of(name);
    let file_name = record_path.record();
    let sub = match &record_path.sub {
        None => None,
        Some(sub) => match directory.leases.sub(sub, false)? {
            Some(sub) => Some(sub),
            None => return Ok(None),
        },
    };
    let directory_handle = sub.as_ref().unwrap_or(&directory.leases);
    let path = format!("{}/{file_name}", directory_handle.path);
    let access = if mode == ReadMode::Locked { OFlags::RDWR } else { OFlags::RDONLY };
    let attempts = if mode == ReadMode::Locked { 1 } else { READ_ATTEMPTS };
    for attempts_left in (0..attempts).rev() {
        let file = match rustix::fs::openat(
            directory_handle,
            &*file_name,
            access | SAFE_OPEN,
            Mode::empty(),
        ) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed("cannot open", &path, errno)),
        };
        let stat = rustix::fs::fstat(&file).map_err(|e| failed("cannot look at", &path, e))?;
        if stat.st_nlink == 0 {
            // The file was replaced after it was opened.
            continue;
        }
        check_file(&stat, &path)?;
        let bytes = read_all(&file).map_err(|errno| failed("cannot read", &path, errno))?;
        let Parsed { stored, head_len, beat } = parse(&bytes).map_err(|reason| {
            Error::corrupt(format!(
                "{path} is not a lease of Tenure: {}. It is left as it is; move it away if no \
                 candidate leads by it",
                reason.escape_debug()
            ))
        })?;
        if stored.name != *name {
            return Err(Error::corrupt(format!(
                "{path} is the lease of '{}', not of '{name}': it was copied or renamed. Move it \
                 away",
                stored.name
            )));
        }
        if beat.is_none() && attempts_left > 0 {
            // The file was probably read in the middle of a renewal.
            std::thread::yield_now();
            continue;
        }
        let head = bytes[..head_len].to_vec();
        return Ok(Some(ReadRecord { stored, head, beat, fingerprint: fingerprint(&bytes), file }));
    }
    Err(Error::unavailable(format!("{path} is being replaced all the time: try again")))
}

/// Reads at most one byte more than a record may have: enough to detect a file that is too long, without reading a huge one.
fn read_all(file: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; MAX_FILE_BYTES + 1];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(file, &mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn fingerprint(bytes: &[u8]) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(salt);
        hasher.write(bytes);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

/// Judges whether a term is live: by the boot clock, by the kernel's locks, or by observation over time.
#[derive(Debug)]
pub(super) struct ExpiryJudge {
    /// The boot and time namespace of this process.
    pub(super) era: BootId,
    observations: Mutex<Observations>,
}

impl ExpiryJudge {
    pub(super) fn new(era: BootId) -> Self {
        ExpiryJudge { era, observations: Mutex::default() }
    }

    /// The state of the record's term. `now` was read *after* the record: an earlier time would date the first observation
    /// before the record was written, and so judge the term expired too early.
    pub(super) fn standing(
        &self,
        directory: &Directory,
        found: &ReadRecord,
        now: Moment,
        dead_processes: &mut DeadProcesses,
    ) -> Standing {
        let StoredRecord { record, place, .. } = &found.stored;
        let (Some(term), Some(place)) = (&record.term, place) else {
            return Standing::Free;
        };
        let same_boot = place.era == self.era;
        let until = place.until.filter(|_| same_boot);
        let left = match until.and_then(|until| left_by_clock(term.ttl, until, now)) {
            Some(left) => left,
            None => self.left_by_observation(found, term.ttl, now),
        };
        let dead = |live| same_boot && dead_processes.is_dead(directory, live);
        if !left.is_zero() && place.live.as_ref().is_some_and(dead) {
            return Standing::Over(Ended::Died(record.token));
        }
        Standing::of(record, left)
    }

    fn left_by_observation(&self, found: &ReadRecord, ttl: Duration, now: Moment) -> Duration {
        let mut observations = self.observations.lock().unwrap_or_else(PoisonError::into_inner);
        observations.left(&found.stored.name, found.fingerprint, ttl, DRIFT_PPM, now)
    }

    /// Drops what was observed of this name: its next observation counts as the first.
    pub(super) fn forget(&self, name: &Name) {
        self.observations.lock().unwrap_or_else(PoisonError::into_inner).forget(name);
    }
}

/// The remaining time by the clock; `None` if the record cannot have been written on this clock.
fn left_by_clock(ttl: Duration, until: Moment, now: Moment) -> Option<Duration> {
    let left = until.since(now);
    // No more than the TTL was granted. More is left only if the clock went back, as in a machine whose boot id outlives its
    // boots.
    (left <= ttl).then_some(left)
}

/// The boot and time namespace of this process.
pub(super) fn current_boot_id() -> Result<BootId> {
    const BOOT: &str = "/proc/sys/kernel/random/boot_id";
    let boot = std::fs::read_to_string(BOOT).map_err(|e| {
        Error::unavailable(format!(
            "cannot read {BOOT}: {e}; without it expiry cannot be told across restarts: mount /proc"
        ))
    })?;
    let timens = match rustix::fs::readlink("/proc/self/ns/time", Vec::new()) {
        Ok(link) => link.to_string_lossy().into_owned(),
        // Without time namespaces, all processes share one clock.
        Err(Errno::NOENT) => "none".to_owned(),
        Err(errno) => return Err(failed("cannot read", "/proc/self/ns/time", errno)),
    };
    Ok(BootId { boot: boot.trim().to_owned(), timens })
}
