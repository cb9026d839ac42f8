//! Removes files that ended processes left in the directory: a bounded number each time it is opened. A store that was opened
//! with `existing` set removes nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::fs::AtFlags;

use super::FileStoreInner;
use super::directory::DirectoryHandle;
use super::liveness::{DeadProcesses, entries, is_unlocked, remove_unlocked};
use super::lock::{LockAttempt, NameLock};
use super::observe::list_names;
use super::paths::RecordPath;
use super::read::{ReadMode, read_record};
use super::temp_record::remove_record;
use crate::lease::{Name, Nonce};
use crate::store::ephemeral::participants;
use crate::store::record::Standing;

/// The age at which any leftover of a crashed process is removed.
const LEFTOVER_AGE: Duration = Duration::from_secs(86_400);
/// The maximum number of files of each kind to examine.
const SWEEP_MAX: usize = 1000;

/// Removes what it can. A file that it cannot remove blocks no process.
pub(super) fn sweep(shared: &FileStoreInner) {
    let directory = &shared.directory;
    let tmp = &directory.tmp;
    for name in entries(tmp).unwrap_or_default().iter().take(SWEEP_MAX) {
        if is_old(shared, tmp, name) {
            let _ = rustix::fs::unlinkat(tmp, name.as_str(), AtFlags::empty());
        }
    }
    let names = list_names(&directory.leases, "", &mut Vec::new()).unwrap_or_default();
    let participants = names.iter().filter(|name| participants(name).is_some());
    for name in
        participants.take(SWEEP_MAX).filter(|name| has_ended(shared, name, ReadMode::Unlocked))
    {
        // Check again under the lock: the candidate may be back.
        let lock = NameLock::attempt(directory, &RecordPath::of_lock(name), true);
        if let Ok(LockAttempt::Locked(lock)) = lock
            && has_ended(shared, name, ReadMode::Locked)
            && lock.check().is_ok()
        {
            let _ = remove_record(directory, name);
        }
    }
    sweep_live(shared, &names);
}

/// Whether the record of `name` is ephemeral and its term is over, or the record is unchanged for a day.
fn has_ended(shared: &FileStoreInner, name: &Name, mode: ReadMode) -> bool {
    let directory = &shared.directory;
    let old = || {
        let record_path = RecordPath::of(name);
        // Long names are few: their records stay until they are claimed again.
        record_path.sub.is_none() && is_old(shared, &directory.leases, &record_path.record())
    };
    match read_record(directory, name, mode) {
        Ok(None) => false,
        Ok(Some(found)) if found.stored.record.ephemeral => {
            let now = shared.clock.now();
            let standing =
                shared.judge.standing(directory, &found, now, &mut DeadProcesses::default());
            !matches!(standing, Standing::Live(_)) || old()
        }
        // A user's record stays, unless the name is one of Tenure's own.
        Ok(Some(_)) | Err(_) => name.is_own() && old(),
    }
}

/// Removes the liveness files of ended processes, but not a file that a record names: by that file a challenger learns that the
/// holder is dead. A record whose liveness file is gone costs its challenger the TTL, and nothing else.
fn sweep_live(shared: &FileStoreInner, names: &[Name]) {
    let (directory, live) = (&shared.directory, &shared.directory.live);
    let mut unlocked = entries(live).unwrap_or_default();
    unlocked.truncate(SWEEP_MAX);
    unlocked.retain(|id| is_unlocked(live, id, None));
    if unlocked.is_empty() {
        return;
    }
    // `None`: there are too many records to read, or one cannot be read.
    let named = || {
        let mut named = BTreeSet::new();
        for name in names {
            if let Some(found) = read_record(directory, name, ReadMode::Unlocked).ok()? {
                named.extend(found.stored.place.and_then(|place| place.live).map(|live| live.id));
            }
        }
        Some(named)
    };
    let named = if names.len() <= SWEEP_MAX { named() } else { None };
    for id in unlocked {
        let unused = named.as_ref().is_some_and(|named| !named.contains(&id));
        if (unused && Nonce::parse(&id).is_some()) || is_old(shared, live, &id) {
            remove_unlocked(live, &id);
        }
    }
}

fn is_old(shared: &FileStoreInner, handle: &DirectoryHandle, name: &str) -> bool {
    let now = Duration::from_micros(shared.clock.minting_micros()).as_secs();
    let stat = rustix::fs::statat(handle, name, AtFlags::SYMLINK_NOFOLLOW).ok();
    let changed = stat.and_then(|stat| u64::try_from(stat.st_mtime).ok());
    changed.is_some_and(|changed| now.saturating_sub(changed) > LEFTOVER_AGE.as_secs())
}
