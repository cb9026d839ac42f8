//! The lock of a name: `flock` on a file that is never unlinked.
//!
//! The batch executor holds it while it changes a record, and the cleanup while it removes one. After the write the owner of
//! the lock checks that its file is still the one at the path: if it was removed or replaced, another process may hold another
//! lock.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use super::directory::{
    Directory, DirectoryHandle, FileId, PRIVATE_FILE, SAFE_OPEN, check_file, make_usable,
};
use super::error::failed;
use super::paths::RecordPath;
use crate::error::{Blocker, Error, Result};

/// A held lock: no other process changes the name while this value exists.
#[derive(Debug)]
pub(super) struct NameLock<'a> {
    locks: &'a DirectoryHandle,
    /// The directory of a long name, if the lock file is not in `locks` itself.
    sub: Option<(String, DirectoryHandle)>,
    file_name: String,
    path: String,
    file: OwnedFd,
    id: FileId,
}

/// The result of a lock attempt.
pub(super) enum LockAttempt<'a> {
    Locked(NameLock<'a>),
    Busy,
    /// The lock file does not exist and was not to be created: no process ever locked this name.
    Missing,
}

impl<'a> NameLock<'a> {
    /// Tries to take the lock, without waiting.
    pub(super) fn attempt(
        directory: &'a Directory,
        record_path: &RecordPath,
        create_missing: bool,
    ) -> Result<LockAttempt<'a>> {
        let locks = &directory.locks;
        let sub = match &record_path.sub {
            None => None,
            Some(name) => match locks.sub(name, create_missing)? {
                Some(handle) => Some((name.clone(), handle)),
                None => return Ok(LockAttempt::Missing),
            },
        };
        let directory_handle = sub.as_ref().map_or(locks, |(_, handle)| handle);
        let file_name = record_path.lock();
        let path = format!("{}/{file_name}", directory_handle.path);
        let create = if create_missing { OFlags::CREATE } else { OFlags::empty() };
        let flags = OFlags::RDWR | create | SAFE_OPEN;
        // If the file was replaced between opening and locking, open it again: the lock that counts is on the file at the path.
        for _ in 0..10 {
            let file = match rustix::fs::openat(directory_handle, &*file_name, flags, PRIVATE_FILE)
            {
                Ok(file) => file,
                Err(Errno::NOENT) if !create_missing => return Ok(LockAttempt::Missing),
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

    /// Checks that the locked file was the one at its path all the time until now.
    ///
    /// Called *after* the record was written: a process that locks another file put in its place does so later, and therefore
    /// reads what was written here.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_at_its_path()? {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "the lock {} was removed or replaced while it was held, so another process may hold \
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

    fn is_at(&self, directory_handle: &DirectoryHandle, name: &str, id: FileId) -> Result<bool> {
        match rustix::fs::statat(directory_handle, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(FileId::from(&stat) == id),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed("cannot look at", &self.path, errno)),
        }
    }
}

impl Drop for NameLock<'_> {
    fn drop(&mut self) {
        // Unlock explicitly, because closing is not enough: a child that was forked meanwhile has the file open too.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// The error for a lock that stayed busy for too long.
pub(super) fn busy(directory: &Directory, record_path: &RecordPath, waited: Duration) -> Error {
    let path = format!("{}/{}", directory.locks.path, record_path.shown(&record_path.lock()));
    let pid = find_holder(&path);
    let owner = pid.map_or("another process".to_owned(), |pid| format!("process {pid}"));
    let message = format!(
        "waited {} ms for the lock {path}, which {owner} holds: is it stopped or hanging?",
        waited.as_millis(),
    );
    Error::unavailable(message).with_blocker(Blocker { pid })
}

/// The process that has locked the file at `path`, as the kernel lists it.
fn find_holder(path: &str) -> Option<u32> {
    let stat = rustix::fs::stat(path).ok()?;
    let (dev, ino) = (stat.st_dev, stat.st_ino);
    let file = format!("{:02x}:{:02x}:{ino}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let listed =
        |line: &str| parse_flock_line(line).filter(|(_, of)| *of == file).map(|(pid, _)| pid);
    if let Some(pid) = locks.lines().find_map(listed) {
        return Some(pid);
    }
    // On overlayfs and btrfs the list names the superblock's device (and overlayfs its own inode number), and `stat` names
    // others. The descriptor on which a process holds the lock shows the same numbers as the path.
    let mut holders = locks.lines().filter_map(parse_flock_line).map(|(pid, _)| pid);
    holders.find(|&pid| holds_lock_on(pid, FileId::from(&stat)))
}

/// The process and the file of a line of `/proc/locks`, if it says that a process holds an `flock`:
/// `1: FLOCK  ADVISORY  WRITE 4711 fe:00:5488679 0 EOF`. Lines of processes that wait have an arrow.
fn parse_flock_line(line: &str) -> Option<(u32, &str)> {
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
        // Read this first, because it cannot hang. A `stat` of another process's file can, if its file server is gone.
        info.is_ok_and(|info| info.lines().any(|line| line.starts_with("lock:")))
            && rustix::fs::stat(descriptor.path()).is_ok_and(|stat| FileId::from(&stat) == file)
    })
}
