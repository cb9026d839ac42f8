//! Liveness files: one file per process, whose lock the kernel drops when the process and all processes that inherited it have
//! ended.
//!
//! An unlocked file proves that the process is dead only if it is exactly the file that the record names, observed in the boot
//! that wrote the record. A file that is missing or different proves nothing: then the TTL decides.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::directory::{
    Directory, DirectoryHandle, FileId, PRIVATE_FILE, SAFE_OPEN, check_file, make_usable,
};
use super::error::failed;
use super::stored_record::LivenessId;
use crate::entropy;
use crate::error::{Error, Result};
use crate::store::Grade;

/// The liveness file of this process, locked.
#[derive(Debug)]
pub(super) struct LivenessLock {
    file: OwnedFd,
    pub(super) id: LivenessId,
}

impl AsFd for LivenessLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Kept until the process ends: a store may be dropped and opened again while a term continues. The key includes the process,
/// because a forked child has this map too, and the locks in it belong to its parent.
static LIVENESS_LOCKS: Mutex<LivenessLocks> = Mutex::new(BTreeMap::new());

/// The locks by directory and process.
type LivenessLocks = BTreeMap<(FileId, u32), Vec<Arc<LivenessLock>>>;

impl LivenessLock {
    /// The liveness lock of this process in `directory`, created when it is first needed.
    pub(super) fn of_this_process(directory: &Directory) -> Result<Arc<LivenessLock>> {
        let mut locks = LIVENESS_LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        let locks = locks.entry((directory.id(), std::process::id())).or_default();
        // A directory that was removed and created again may have got the same inode number.
        if let Some(live) = locks.iter().find(|live| live.is_in(&directory.live)) {
            return Ok(Arc::clone(live));
        }
        let live = Arc::new(Self::make(&directory.live)?);
        locks.push(Arc::clone(&live));
        Ok(live)
    }

    fn make(directory: &DirectoryHandle) -> Result<Self> {
        // A process that cleans up may treat a file that is not locked yet as one of a dead process, and remove it. Then create
        // another.
        for _ in 0..10 {
            let id = format!("{:032x}", entropy::random_u128());
            let path = format!("{}/{id}", directory.path);
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | SAFE_OPEN;
            let file = rustix::fs::openat(directory, &*id, flags, PRIVATE_FILE)
                .map_err(|errno| failed("cannot make", &path, errno))?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive)
                .map_err(|errno| failed("cannot lock", &path, errno))?;
            let stat = rustix::fs::fstat(&file).map_err(|e| failed("cannot look at", &path, e))?;
            let live =
                LivenessLock { file, id: LivenessId { id, dev: stat.st_dev, ino: stat.st_ino } };
            if live.is_in(directory) {
                check_file(&stat, &path)?;
                make_usable(&live.file, &stat, &path)?;
                return Ok(live);
            }
        }
        Err(Error::unavailable(format!(
            "another program keeps removing the files in {}",
            directory.path
        )))
    }

    fn is_in(&self, directory: &DirectoryHandle) -> bool {
        let stat = rustix::fs::statat(directory, &*self.id.id, AtFlags::SYMLINK_NOFOLLOW);
        let expected = FileId { dev: self.id.dev, ino: self.id.ino };
        stat.is_ok_and(|stat| FileId::from(&stat) == expected)
    }
}

/// The result of liveness checks in one batch. A dead process stays dead, so one result serves many names.
#[derive(Debug, Default)]
pub(super) struct DeadProcesses(HashMap<LivenessId, bool>);

impl DeadProcesses {
    /// Whether the process of `id` is certainly dead. The caller has checked that the record was written in this boot.
    pub(super) fn is_dead(&mut self, directory: &Directory, id: &LivenessId) -> bool {
        // Where locks are not known to be exclusive, a free lock proves nothing.
        if directory.file_system.grade == Grade::C {
            return false;
        }
        if let Some(dead) = self.0.get(id) {
            return *dead;
        }
        let dead = is_unlocked(&directory.live, &id.id, Some(FileId { dev: id.dev, ino: id.ino }));
        self.0.insert(id.clone(), dead);
        dead
    }
}

/// Whether the file exists, is the expected one, and no process has locked it.
pub(super) fn is_unlocked(directory: &DirectoryHandle, id: &str, expected: Option<FileId>) -> bool {
    let flags = OFlags::RDONLY | SAFE_OPEN;
    let Ok(file) = rustix::fs::openat(directory, id, flags, Mode::empty()) else {
        return false;
    };
    let Ok(stat) = rustix::fs::fstat(&file) else {
        return false;
    };
    let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let same = expected.is_none_or(|expected| expected == FileId::from(&stat));
    plain && same && rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok()
}

/// Removes the file unless a process has locked it. It is locked during the removal: a process that has just created it takes
/// its lock afterwards, and then finds that the file is gone.
pub(super) fn remove_unlocked(directory: &DirectoryHandle, id: &str) {
    let flags = OFlags::RDONLY | SAFE_OPEN;
    if let Ok(file) = rustix::fs::openat(directory, id, flags, Mode::empty())
        && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
    {
        // A file that cannot be removed blocks no process.
        let _ = rustix::fs::unlinkat(directory, id, AtFlags::empty());
    }
}

/// The names in a directory, except those that are not UTF-8: Tenure creates none.
pub(super) fn entries(directory: &DirectoryHandle) -> Result<Vec<String>> {
    let fail = |errno: Errno| failed("cannot list", &directory.path, errno);
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if let Ok(name) = entry.file_name().to_str()
            && name != "."
            && name != ".."
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}
