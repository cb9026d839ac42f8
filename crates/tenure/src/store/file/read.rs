//! Reading records, and judging what is true of them now.

use std::hash::{DefaultHasher, Hasher};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::directory::{CAREFULLY, Directory, check_file};
use super::error::failed;
use super::liveness::DeadProcesses;
use super::paths::RecordPath;
use super::record::{BootId, Parsed, RECORD_MAX, Record, TermRecord, parse};
use super::rules::Standing;
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::lease::{Ended, Name};
use crate::observation::Observations;

/// How fast the clock of another boot may run against ours.
const DRIFT_PPM: u32 = 1_000;

/// How often a record that is being replaced or rewritten is read again by somebody without its lock.
const TRIES: u32 = 5;

/// A record as it was read.
#[derive(Debug)]
pub(super) struct ReadRecord {
    pub(super) record: Record,
    /// The bytes before the tail.
    pub(super) head: Vec<u8>,
    pub(super) beat: Option<u64>,
    /// Different for every write.
    mark: u128,
    /// For the next tail.
    pub(super) file: OwnedFd,
}

/// With which right a record is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpiryProof {
    /// Anybody may be writing at the same time.
    Glance,
    /// Its lock is ours, so what is read stays true.
    Locked,
}

/// Reads the record of `name`; `None` if there is none.
pub(super) fn look(
    directory: &Directory,
    name: &Name,
    right: ExpiryProof,
) -> Result<Option<ReadRecord>> {
    let spot = RecordPath::of(name);
    let file_name = spot.record();
    let sub = match &spot.sub {
        None => None,
        Some(sub) => match directory.leases.sub(sub, false)? {
            Some(sub) => Some(sub),
            None => return Ok(None),
        },
    };
    let place = sub.as_ref().unwrap_or(&directory.leases);
    let path = format!("{}/{file_name}", place.path);
    let access = if right == ExpiryProof::Locked { OFlags::RDWR } else { OFlags::RDONLY };
    let tries = if right == ExpiryProof::Locked { 1 } else { TRIES };
    for again in (0..tries).rev() {
        let file = match rustix::fs::openat(place, &*file_name, access | CAREFULLY, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed("cannot open", &path, errno)),
        };
        let stat = rustix::fs::fstat(&file).map_err(|e| failed("cannot look at", &path, e))?;
        if stat.st_nlink == 0 {
            // Replaced since it was opened.
            continue;
        }
        check_file(&stat, &path)?;
        let bytes = read_all(&file).map_err(|errno| failed("cannot read", &path, errno))?;
        let Parsed { record, head_len, beat } = parse(&bytes).map_err(|why| {
            Error::corrupt(format!(
                "{path} is not a lease of Tenure: {}. It is left as it is; move it away if nobody \
                 leads by it",
                why.escape_debug()
            ))
        })?;
        if record.name != *name {
            return Err(Error::corrupt(format!(
                "{path} is the lease of '{}', not of '{name}': it was copied or renamed. Move it \
                 away",
                record.name
            )));
        }
        if beat.is_none() && again > 0 {
            // Probably read in the middle of a renewal.
            std::thread::yield_now();
            continue;
        }
        let head = bytes[..head_len].to_vec();
        return Ok(Some(ReadRecord { record, head, beat, mark: mark(&bytes), file }));
    }
    Err(Error::unavailable(format!("{path} is being replaced all the time: try again")))
}

/// At most one byte more than a record may have, so that too long is seen and nothing huge is read.
fn read_all(file: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; RECORD_MAX + 1];
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

fn mark(bytes: &[u8]) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(salt);
        hasher.write(bytes);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

/// Who says whether a term goes on: the boot clock, the kernel's locks, or patience.
#[derive(Debug)]
pub(super) struct ExpiryJudge {
    /// Our own.
    pub(super) era: BootId,
    observations: Mutex<Observations>,
}

impl ExpiryJudge {
    pub(super) fn new(era: BootId) -> Self {
        ExpiryJudge { era, observations: Mutex::default() }
    }

    /// What is true of the record now. `now` was read *after* the record: a time before it would make the first sight
    /// of a record earlier than its writing, and its end too early.
    pub(super) fn standing(
        &self,
        directory: &Directory,
        sight: &ReadRecord,
        now: Moment,
        deaths: &mut DeadProcesses,
    ) -> Standing {
        let record = &sight.record;
        let Some(term) = &record.term else {
            return Standing::Free;
        };
        let ours = term.era == self.era;
        let left = match term.until.filter(|_| ours).and_then(|until| counted(term, until, now)) {
            Some(left) => left,
            None => self.observed(sight, term, now),
        };
        if left.is_zero() {
            return Standing::Over(Ended::Expired(record.token));
        }
        let dead = |live| ours && deaths.is_dead(directory, live);
        if term.live.as_ref().is_some_and(dead) {
            return Standing::Over(Ended::Died(record.token));
        }
        Standing::Live(left)
    }

    fn observed(&self, sight: &ReadRecord, term: &TermRecord, now: Moment) -> Duration {
        let mut observations = self.observations.lock().unwrap_or_else(PoisonError::into_inner);
        observations.left(&sight.record.name, sight.mark, term.ttl, DRIFT_PPM, now)
    }

    /// The next sight of this name is a first one.
    pub(super) fn forget(&self, name: &Name) {
        self.observations.lock().unwrap_or_else(PoisonError::into_inner).forget(name);
    }
}

/// What is left by the clock; `None` if the clock cannot be the one it was written by.
fn counted(term: &TermRecord, until: Moment, now: Moment) -> Option<Duration> {
    let left = until.since(now);
    // Never more than the TTL was granted. More is left only if the clock went back, as in a machine whose boot id
    // outlives its boots.
    (left <= term.ttl).then_some(left)
}

/// Our boot and time namespace.
pub(super) fn our_era() -> Result<BootId> {
    const BOOT: &str = "/proc/sys/kernel/random/boot_id";
    let boot = std::fs::read_to_string(BOOT).map_err(|e| {
        Error::unavailable(format!(
            "cannot read {BOOT}: {e}; without it expiry cannot be told across restarts: mount /proc"
        ))
    })?;
    let timens = match rustix::fs::readlink("/proc/self/ns/time", Vec::new()) {
        Ok(link) => link.to_string_lossy().into_owned(),
        // A kernel without time namespaces has one for all.
        Err(Errno::NOENT) => "none".to_owned(),
        Err(errno) => return Err(failed("cannot read", "/proc/self/ns/time", errno)),
    };
    Ok(BootId { boot: boot.trim().to_owned(), timens })
}
