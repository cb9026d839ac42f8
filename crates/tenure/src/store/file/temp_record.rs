//! New records: written beside, synced, and then put in place.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::directory::{CAREFULLY, Directory, DirectoryHandle, PRIVATE_FILE};
use super::error::failed;
use super::paths::RecordPath;
use super::record::Record;
use crate::entropy;
use crate::error::{Error, Result};
use crate::lease::Name;

/// A record in `tmp/`, complete but for its last tail. Removed when dropped before it was put in place.
#[derive(Debug)]
pub(super) struct TempRecord<'a> {
    directory: &'a Directory,
    file_name: String,
    pub(super) head: Vec<u8>,
    placed: bool,
}

/// Whether a draft is safe on the disk at once, or somebody syncs them all later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sync {
    Now,
    Later,
}

impl<'a> TempRecord<'a> {
    /// Writes `record`, whose head is `head`, beside the records.
    pub(super) fn write(
        directory: &'a Directory,
        record: &Record,
        head: Vec<u8>,
        sync: Sync,
    ) -> Result<Self> {
        let tmp = &directory.tmp;
        let file_name = format!("{:032x}", entropy::random_u128());
        let draft = TempRecord { directory, head, file_name, placed: false };
        let path = draft.path();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | CAREFULLY;
        let file = rustix::fs::openat(tmp, &*draft.file_name, flags, PRIVATE_FILE)
            .map_err(|errno| failed("cannot make", &path, errno))?;
        // Whatever the umask took away.
        rustix::fs::fchmod(&file, PRIVATE_FILE)
            .map_err(|errno| failed("cannot change the mode of", &path, errno))?;
        let tail = record.encode_tail(&draft.head, 0);
        let whole = [&*draft.head, &*tail].concat();
        write_all(&file, &whole, 0).map_err(|errno| failed("cannot write", &path, errno))?;
        if sync == Sync::Now {
            rustix::fs::fsync(&file).map_err(|errno| failed("cannot sync", &path, errno))?;
        }
        Ok(draft)
    }

    /// Gives it the tail that is true now and puts it where the record is. Its lock must be ours.
    ///
    /// The tail needs no fsync: it means something only to this boot, and after another one observation decides.
    pub(super) fn place(mut self, record: &Record, beat: u64) -> Result<()> {
        let path = self.path();
        let flags = OFlags::WRONLY | CAREFULLY;
        let file = rustix::fs::openat(&self.directory.tmp, &*self.file_name, flags, Mode::empty())
            .map_err(|errno| failed("cannot open", &path, errno))?;
        put_tail(&file, record, &self.head, beat, &path)?;
        let spot = RecordPath::of(&record.name);
        let leases = &self.directory.leases;
        let rename = |to: &DirectoryHandle| {
            rustix::fs::renameat(&self.directory.tmp, &*self.file_name, to, spot.record())
                .map_err(|e| failed("cannot put the new record at", &spot.shown(&spot.record()), e))
        };
        match &spot.sub {
            None => rename(leases)?,
            Some(sub) => match leases.sub(sub, true)? {
                Some(sub) => rename(&sub)?,
                None => return Err(Error::unavailable(format!("{sub} vanished: try again"))),
            },
        }
        self.placed = true;
        Ok(())
    }

    fn path(&self) -> String {
        format!("{}/{}", self.directory.tmp.path, self.file_name)
    }
}

impl Drop for TempRecord<'_> {
    fn drop(&mut self) {
        if !self.placed {
            // If it cannot be removed, it is swept away a day later.
            let _ = rustix::fs::unlinkat(&self.directory.tmp, &*self.file_name, AtFlags::empty());
        }
    }
}

/// Removes the record of `name`. Its lock must be ours.
pub(super) fn remove_record(directory: &Directory, name: &Name) -> Result<()> {
    let spot = RecordPath::of(name);
    let file_name = spot.record();
    let unlink =
        |from: &DirectoryHandle| match rustix::fs::unlinkat(from, &*file_name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => {
                Err(failed("cannot remove", &format!("{}/{file_name}", from.path), errno))
            }
        };
    match &spot.sub {
        None => unlink(&directory.leases),
        Some(sub) => directory.leases.sub(sub, false)?.as_ref().map_or(Ok(()), unlink),
    }
}

/// Writes the tail in place: one write, and no fsync.
pub(super) fn put_tail(
    file: &OwnedFd,
    record: &Record,
    head: &[u8],
    beat: u64,
    path: &str,
) -> Result<()> {
    let tail = record.encode_tail(head, beat);
    write_all(file, &tail, head.len() as u64).map_err(|errno| failed("cannot write", path, errno))
}

fn write_all(file: &OwnedFd, bytes: &[u8], offset: u64) -> rustix::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(file, &bytes[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
