//! The lock of a name: `flock` on a file that is never unlinked.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use super::directory::{
    CAREFULLY, Directory, DirectoryHandle, FileId, PRIVATE_FILE, check_file, make_usable,
};
use super::error::failed;
use super::paths::RecordPath;
use crate::error::{Error, Result};

/// A name that nobody else changes while this lives.
#[derive(Debug)]
pub(super) struct NameLock<'a> {
    locks: &'a DirectoryHandle,
    /// Where its file is, if that is not `locks` itself: the directory of a long name.
    sub: Option<(String, DirectoryHandle)>,
    file_name: String,
    path: String,
    file: OwnedFd,
    id: FileId,
}

/// How a try came out.
pub(super) enum LockAttempt<'a> {
    Locked(NameLock<'a>),
    Busy,
    /// There is no such file, and it was not to be made: nobody ever locked this name.
    Missing,
}

impl<'a> NameLock<'a> {
    /// Tries to lock, without waiting.
    pub(super) fn attempt(
        directory: &'a Directory,
        spot: &RecordPath,
        make: bool,
    ) -> Result<LockAttempt<'a>> {
        let locks = &directory.locks;
        let sub = match &spot.sub {
            None => None,
            Some(name) => match locks.sub(name, make)? {
                Some(handle) => Some((name.clone(), handle)),
                None => return Ok(LockAttempt::Missing),
            },
        };
        let place = sub.as_ref().map_or(locks, |(_, handle)| handle);
        let file_name = spot.lock();
        let path = format!("{}/{file_name}", place.path);
        let create = if make { OFlags::CREATE } else { OFlags::empty() };
        let flags = OFlags::RDWR | create | CAREFULLY;
        // Replaced between opening and locking: the lock that counts is the one at the path.
        for _ in 0..10 {
            let file = match rustix::fs::openat(place, &*file_name, flags, PRIVATE_FILE) {
                Ok(file) => file,
                Err(Errno::NOENT) if !make => return Ok(LockAttempt::Missing),
                Err(errno) => return Err(failed("cannot open the lock", &path, errno)),
            };
            let stat = rustix::fs::fstat(&file).map_err(|e| failed("cannot look at", &path, e))?;
            if stat.st_nlink == 0 {
                continue;
            }
            check_file(&stat, &path)?;
            make_usable(&file, &stat, &path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(LockAttempt::Busy),
                Err(errno) => return Err(failed("cannot lock", &path, errno)),
            }
            let id = FileId::from(&stat);
            let lock = NameLock { locks, sub, file_name, path, file, id };
            if lock.is_at_its_path()? {
                return Ok(LockAttempt::Locked(lock));
            }
            return Ok(LockAttempt::Busy);
        }
        Ok(LockAttempt::Busy)
    }

    /// That the lock was the one at its path all the time until now.
    ///
    /// Asked *after* the record was written: whoever locks another file that was put in its place does so later, and
    /// therefore sees what we wrote.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_at_its_path()? {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "the lock {} was removed or replaced while it was held, so somebody else may hold \
             another one: leave the files in 'locks' alone",
            self.path
        )))
    }

    fn is_at_its_path(&self) -> Result<bool> {
        let Some((name, sub)) = &self.sub else {
            return self.is_at(self.locks, &self.file_name, self.id);
        };
        Ok(self.is_at(sub, &self.file_name, self.id)? && self.is_at(self.locks, name, sub.id())?)
    }

    fn is_at(&self, place: &DirectoryHandle, name: &str, id: FileId) -> Result<bool> {
        match rustix::fs::statat(place, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(FileId::from(&stat) == id),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed("cannot look at", &self.path, errno)),
        }
    }
}

impl Drop for NameLock<'_> {
    fn drop(&mut self) {
        // Not only closed: a child that was forked meanwhile has the file open too.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// What is said when the lock was busy for too long.
pub(super) fn busy(directory: &Directory, spot: &RecordPath, waited: Duration) -> Error {
    let path = format!("{}/{}", directory.locks.path, spot.shown(&spot.lock()));
    let by = holder(&path);
    let whom = by.map_or("another process".to_owned(), |pid| format!("process {pid}"));
    let message = format!(
        "waited {} ms for the lock {path}, which {whom} holds: is it stopped or hanging?",
        waited.as_millis(),
    );
    Error::unavailable(message).caused_by(LockHolder { by })
}

/// The cause of an error about a name that another process has locked, and for longer than it should: it is stopped in
/// the middle of a change, or hangs in the file system. Nobody can change the name before it goes on or is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// Which process, where that can be seen.
    pub by: Option<u32>,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            Some(pid) => write!(f, "locked by process {pid}"),
            None => f.write_str("locked by another process"),
        }
    }
}

impl std::error::Error for LockHolder {}

/// The process that has locked the file at `path`, as the kernel lists it.
fn holder(path: &str) -> Option<u32> {
    let stat = rustix::fs::stat(path).ok()?;
    let (dev, ino) = (stat.st_dev, stat.st_ino);
    let file = format!("{:02x}:{:02x}:{ino}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let listed = |line: &str| flock_line(line).filter(|(_, of)| *of == file).map(|(pid, _)| pid);
    if let Some(pid) = locks.lines().find_map(listed) {
        return Some(pid);
    }
    // On overlayfs and btrfs the list names the superblock's device (and overlayfs its own inode number), and `stat` names
    // others. The descriptor on which a process holds the lock shows the same numbers as the path.
    let mut holders = locks.lines().filter_map(flock_line).map(|(pid, _)| pid);
    holders.find(|&pid| holds_lock_on(pid, FileId::from(&stat)))
}

/// The process and the file of a line of `/proc/locks`, if it says that a process holds an `flock`:
/// `1: FLOCK  ADVISORY  WRITE 4711 fe:00:5488679 0 EOF`. Lines of processes that wait have an arrow.
fn flock_line(line: &str) -> Option<(u32, &str)> {
    let mut words = line.split_whitespace().skip(1);
    let held = words.next()? == "FLOCK";
    let pid = words.nth(2)?.parse().ok()?;
    held.then_some((pid, words.next()?))
}

/// Whether the process `pid` has a descriptor of `file` that holds a lock.
fn holds_lock_on(pid: u32, file: FileId) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|descriptor| {
        let number = descriptor.file_name();
        let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.display()));
        // First: it cannot hang. A `stat` of another process's file can, on a server that is gone.
        info.is_ok_and(|info| info.lines().any(|line| line.starts_with("lock:")))
            && rustix::fs::stat(descriptor.path()).is_ok_and(|stat| FileId::from(&stat) == file)
    })
}
