//! Temporary records: a new record is written to `tmp/`, synced, and then renamed into place. So no reader ever finds a partly
//! written head.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::directory::{Directory, DirectoryHandle, PRIVATE_FILE, SAFE_OPEN};
use super::error::failed;
use super::paths::RecordPath;
use super::stored_record::StoredRecord;
use crate::entropy;
use crate::error::{Error, Result};
use crate::lease::Name;

/// A record in `tmp/`, complete except for its final tail. Dropping it before it is in place removes the file.
#[derive(Debug)]
pub(super) struct TempRecord<'a> {
    directory: &'a Directory,
    file_name: String,
    pub(super) head: Vec<u8>,
    placed: bool,
}

/// Whether a temporary record is synced at once, or together with the others of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sync {
    Now,
    Later,
}

impl<'a> TempRecord<'a> {
    /// Writes `record`, whose head is `head`, to a temporary file.
    pub(super) fn write(
        directory: &'a Directory,
        record: &StoredRecord,
        head: Vec<u8>,
        sync: Sync,
    ) -> Result<Self> {
        let tmp = &directory.tmp;
        let file_name = format!("{:032x}", entropy::random_u128());
        let temp_record = TempRecord { directory, head, file_name, placed: false };
        let path = temp_record.path();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | SAFE_OPEN;
        let file = rustix::fs::openat(tmp, &*temp_record.file_name, flags, PRIVATE_FILE)
            .map_err(|errno| failed("cannot make", &path, errno))?;
        // Restore the mode bits that the umask removed.
        rustix::fs::fchmod(&file, PRIVATE_FILE)
            .map_err(|errno| failed("cannot change the mode of", &path, errno))?;
        let tail = record.encode_tail(&temp_record.head, 0);
        let bytes = [&*temp_record.head, &*tail].concat();
        write_all(&file, &bytes, 0).map_err(|errno| failed("cannot write", &path, errno))?;
        if sync == Sync::Now {
            rustix::fs::fsync(&file).map_err(|errno| failed("cannot sync", &path, errno))?;
        }
        Ok(temp_record)
    }

    /// Writes the current tail and renames the file into the place of the record. The caller must hold the lock.
    ///
    /// The tail needs no fsync: it is meaningful only in this boot, and after a reboot observation decides.
    pub(super) fn place(mut self, record: &StoredRecord, beat: u64) -> Result<()> {
        let path = self.path();
        let flags = OFlags::WRONLY | SAFE_OPEN;
        let file = rustix::fs::openat(&self.directory.tmp, &*self.file_name, flags, Mode::empty())
            .map_err(|errno| failed("cannot open", &path, errno))?;
        write_tail(&file, record, &self.head, beat, &path)?;
        let record_path = RecordPath::of(&record.name);
        let leases = &self.directory.leases;
        let rename = |to: &DirectoryHandle| {
            rustix::fs::renameat(&self.directory.tmp, &*self.file_name, to, record_path.record())
                .map_err(|e| {
                    failed(
                        "cannot put the new record at",
                        &record_path.shown(&record_path.record()),
                        e,
                    )
                })
        };
        match &record_path.sub {
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
            // If it cannot be removed, the cleanup removes it a day later.
            let _ = rustix::fs::unlinkat(&self.directory.tmp, &*self.file_name, AtFlags::empty());
        }
    }
}

/// Removes the record of `name`. The caller must hold the lock.
pub(super) fn remove_record(directory: &Directory, name: &Name) -> Result<()> {
    let record_path = RecordPath::of(name);
    let file_name = record_path.record();
    let unlink =
        |from: &DirectoryHandle| match rustix::fs::unlinkat(from, &*file_name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => {
                Err(failed("cannot remove", &format!("{}/{file_name}", from.path), errno))
            }
        };
    match &record_path.sub {
        None => unlink(&directory.leases),
        Some(sub) => directory.leases.sub(sub, false)?.as_ref().map_or(Ok(()), unlink),
    }
}

/// Writes the tail in place: one write, and no fsync.
pub(super) fn write_tail(
    file: &OwnedFd,
    record: &StoredRecord,
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
