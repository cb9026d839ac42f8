//! Liveness: one file per process whose lock the kernel drops when the process, and all that inherited it, is gone.
//!
//! A free lock is death only of exactly the file that the record names, seen from the boot that wrote it. A file that
//! is missing or different proves nothing: then the TTL decides.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::directory::{
    CAREFULLY, Directory, DirectoryHandle, FileId, PRIVATE_FILE, check_file, make_usable,
};
use super::error::failed;
use super::record::LivenessId;
use crate::entropy;
use crate::error::{Error, Result};
use crate::store::Grade;

/// The file that goes with this process, locked.
#[derive(Debug)]
pub(super) struct LivenessLock {
    file: OwnedFd,
    pub(super) mark: LivenessId,
}

impl AsFd for LivenessLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Kept to the end of the process: a store may be dropped and opened again while a term goes on. By process, because
/// a forked child has this map too, and the lock in it is its parent's.
static LIVES: Mutex<LivenessLocks> = Mutex::new(BTreeMap::new());

/// By directory and process.
type LivenessLocks = BTreeMap<(FileId, u32), Vec<Arc<LivenessLock>>>;

impl LivenessLock {
    /// The one of this process in `directory`, made when it is first needed.
    pub(super) fn of_this_process(directory: &Directory) -> Result<Arc<LivenessLock>> {
        let mut lives = LIVES.lock().unwrap_or_else(PoisonError::into_inner);
        let lives = lives.entry((directory.id(), std::process::id())).or_default();
        // A directory made anew may have got the number of the one before it.
        if let Some(live) = lives.iter().find(|live| live.is_in(&directory.live)) {
            return Ok(Arc::clone(live));
        }
        let live = Arc::new(Self::make(&directory.live)?);
        lives.push(Arc::clone(&live));
        Ok(live)
    }

    fn make(directory: &DirectoryHandle) -> Result<Self> {
        // A process that sweeps may take a file that has no lock yet for a dead one, and remove it.
        for _ in 0..10 {
            let id = format!("{:032x}", entropy::random_u128());
            let path = format!("{}/{id}", directory.path);
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | CAREFULLY;
            let file = rustix::fs::openat(directory, &*id, flags, PRIVATE_FILE)
                .map_err(|errno| failed("cannot make", &path, errno))?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive)
                .map_err(|errno| failed("cannot lock", &path, errno))?;
            let stat = rustix::fs::fstat(&file).map_err(|e| failed("cannot look at", &path, e))?;
            let live =
                LivenessLock { file, mark: LivenessId { id, dev: stat.st_dev, ino: stat.st_ino } };
            if live.is_in(directory) {
                check_file(&stat, &path)?;
                make_usable(&live.file, &stat, &path)?;
                return Ok(live);
            }
        }
        Err(Error::unavailable(format!("somebody keeps removing the files in {}", directory.path)))
    }

    fn is_in(&self, directory: &DirectoryHandle) -> bool {
        let there = rustix::fs::statat(directory, &*self.mark.id, AtFlags::SYMLINK_NOFOLLOW);
        let meant = FileId { dev: self.mark.dev, ino: self.mark.ino };
        there.is_ok_and(|there| FileId::from(&there) == meant)
    }
}

/// What was found out about processes in one pass. The dead stay dead, so it can be asked for many names.
#[derive(Debug, Default)]
pub(super) struct DeadProcesses(HashMap<LivenessId, bool>);

impl DeadProcesses {
    /// Whether the process of `mark` is certainly gone. The caller has seen that it is of our own boot.
    pub(super) fn is_dead(&mut self, directory: &Directory, mark: &LivenessId) -> bool {
        // Where locks are not known to exclude, a free one is no proof.
        if directory.file_system.grade == Grade::C {
            return false;
        }
        if let Some(dead) = self.0.get(mark) {
            return *dead;
        }
        let dead =
            is_free(&directory.live, &mark.id, Some(FileId { dev: mark.dev, ino: mark.ino }));
        self.0.insert(mark.clone(), dead);
        dead
    }
}

/// Whether the file is there, is the one meant, and nobody has it locked.
pub(super) fn is_free(directory: &DirectoryHandle, id: &str, meant: Option<FileId>) -> bool {
    let flags = OFlags::RDONLY | CAREFULLY;
    let Ok(file) = rustix::fs::openat(directory, id, flags, Mode::empty()) else {
        return false;
    };
    let Ok(stat) = rustix::fs::fstat(&file) else {
        return false;
    };
    let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let same = meant.is_none_or(|meant| meant == FileId::from(&stat));
    plain && same && rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok()
}

/// Removes the file unless a process has it locked. It is locked meanwhile, so that a process which has just made it locks it
/// afterwards, and sees that it is gone.
pub(super) fn remove_unlocked(directory: &DirectoryHandle, id: &str) {
    let flags = OFlags::RDONLY | CAREFULLY;
    if let Ok(file) = rustix::fs::openat(directory, id, flags, Mode::empty())
        && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
    {
        // What cannot be removed is in no process's way.
        let _ = rustix::fs::unlinkat(directory, id, AtFlags::empty());
    }
}

/// The names in a directory, except those that are no text and so none of ours.
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
