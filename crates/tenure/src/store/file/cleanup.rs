//! Removing what processes that have ended left in the directory: a bounded number of files each time it is opened.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::fs::AtFlags;

use super::FileStoreInner;
use super::directory::DirectoryHandle;
use super::liveness::{DeadProcesses, entries, is_free, remove_unlocked};
use super::lock::{LockAttempt, NameLock};
use super::observe::below;
use super::paths::RecordPath;
use super::read::{ExpiryProof, look};
use super::rules::Standing;
use super::temp_record::remove_record;
use crate::lease::{Name, Nonce};
use crate::store::ephemeral::participants;

/// The longest that anything of a process that crashed stays.
const LEFTOVER_AGE: Duration = Duration::from_secs(86_400);
/// The most files that are examined, of each kind.
const SWEEP_MAX: usize = 1000;

/// Removes what it can. What it cannot remove is in no process's way.
pub(super) fn sweep(shared: &FileStoreInner) {
    let directory = &shared.directory;
    let tmp = &directory.tmp;
    for name in entries(tmp).unwrap_or_default().iter().take(SWEEP_MAX) {
        if is_old(shared, tmp, name) {
            let _ = rustix::fs::unlinkat(tmp, name.as_str(), AtFlags::empty());
        }
    }
    let names = below(&directory.leases, "", &mut Vec::new()).unwrap_or_default();
    let participants = names.iter().filter(|name| participants(name).is_some());
    for name in
        participants.take(SWEEP_MAX).filter(|name| has_ended(shared, name, ExpiryProof::Glance))
    {
        // Once more under the lock: the candidate may be back.
        let lock = NameLock::attempt(directory, &RecordPath::of_lock(name), true);
        if let Ok(LockAttempt::Locked(lock)) = lock
            && has_ended(shared, name, ExpiryProof::Locked)
            && lock.check().is_ok()
        {
            let _ = remove_record(directory, name);
        }
    }
    sweep_live(shared, &names);
}

/// Whether the record of `name` is ephemeral and its term over; or it lies there for a day.
fn has_ended(shared: &FileStoreInner, name: &Name, right: ExpiryProof) -> bool {
    let directory = &shared.directory;
    let old = || {
        let spot = RecordPath::of(name);
        // Long names are few: they stay until they are claimed again.
        spot.sub.is_none() && is_old(shared, &directory.leases, &spot.record())
    };
    match look(directory, name, right) {
        Ok(None) => false,
        Ok(Some(sight)) if sight.record.ephemeral => {
            let now = shared.clock.now();
            let standing =
                shared.judge.standing(directory, &sight, now, &mut DeadProcesses::default());
            !matches!(standing, Standing::Live(_)) || old()
        }
        // Of a user, unless the name is Tenure's own.
        Ok(Some(_)) | Err(_) => name.is_own() && old(),
    }
}

/// Removes the files of processes that have ended, but not one that a record names: by that file a challenger sees that the
/// holder is dead. A record whose file is gone costs its challenger the TTL, and nothing else.
fn sweep_live(shared: &FileStoreInner, names: &[Name]) {
    let (directory, live) = (&shared.directory, &shared.directory.live);
    let mut unlocked = entries(live).unwrap_or_default();
    unlocked.truncate(SWEEP_MAX);
    unlocked.retain(|id| is_free(live, id, None));
    if unlocked.is_empty() {
        return;
    }
    // `None`: there are too many records to read, or one cannot be read.
    let named = || {
        let mut named = BTreeSet::new();
        for name in names {
            if let Some(sight) = look(directory, name, ExpiryProof::Glance).ok()? {
                named.extend(sight.record.term.and_then(|term| term.live).map(|live| live.id));
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
