//! Observes and examines the directory: reads the leases in a scope, and reports what the directory is.

use std::time::Duration;

use super::FileStoreInner;
use super::batch::context;
use super::directory::{DirectoryHandle, PRIVATE_FILE, SAFE_OPEN};
use super::error::failed;
use super::liveness::{DeadProcesses, entries};
use super::paths::{FileKind, is_sub, may_hold, parse_file_name};
use super::read::{ReadMode, read_record};
use crate::entropy;
use crate::error::{Error, Result};
use crate::lease::{Lease, Name};
use crate::store::record::{FoundRecord, lease};
use crate::store::{Check, Grade, Report, Scope, Verdict};
use rustix::fs::{AtFlags, OFlags};

/// The free space in bytes below which a disk counts as full.
const MIN_FREE_BYTES: u64 = 1 << 20;

/// Every lease in `scope`, sorted by name.
pub(super) fn observe(shared: &FileStoreInner, scope: &Scope) -> Result<Vec<Result<Lease>>> {
    let mut invalid_names = Vec::new();
    let mut names = match scope {
        Scope::Names(names) => names.clone(),
        Scope::Prefix(prefix) => list_names(&shared.directory.leases, prefix, &mut invalid_names)?,
    };
    names.sort();
    names.dedup();
    let mut dead_processes = DeadProcesses::default();
    let mut leases: Vec<Result<Lease>> = Vec::with_capacity(names.len() + invalid_names.len());
    for name in &names {
        match read_record(&shared.directory, name, ReadMode::Unlocked) {
            Ok(None) => {}
            Err(error) => leases.push(Err(error)),
            Ok(Some(found)) => {
                let now = shared.clock.now();
                let standing =
                    shared.judge.standing(&shared.directory, &found, now, &mut dead_processes);
                let found_record = FoundRecord { record: &found.stored.record, standing };
                let context = context(now, shared.clock.minting_micros(), None);
                leases.push(Ok(lease(Some(found_record), name, &context)));
            }
        }
    }
    leases.extend(invalid_names.into_iter().map(Err));
    Ok(leases)
}

/// The names that begin with `prefix`. A file that is named like a record but has no valid lease name adds an error to
/// `invalid_names`.
pub(super) fn list_names(
    leases: &DirectoryHandle,
    prefix: &str,
    invalid_names: &mut Vec<Error>,
) -> Result<Vec<Name>> {
    let mut names = Vec::new();
    let mut sort =
        |sub: Option<&str>, directory: &DirectoryHandle, entry: &str| match parse_file_name(
            sub, entry,
        ) {
            FileKind::Of(name) if name.as_str().starts_with(prefix) => names.push(name),
            FileKind::Invalid(text) if text.starts_with(prefix) => {
                let path = format!("{}/{}", directory.path, entry.escape_debug());
                let reason = "is called like a lease, but no lease is called like that";
                invalid_names.push(Error::corrupt(format!("{path} {reason}: move it away")));
            }
            FileKind::Of(_) | FileKind::Invalid(_) | FileKind::Other => {}
        };
    for entry in entries(leases)? {
        if !is_sub(&entry) {
            sort(None, leases, &entry);
        } else if may_hold(&entry, prefix)
            && let Some(sub) = leases.sub(&entry, false)?
        {
            for inner in entries(&sub)? {
                sort(Some(&entry), &sub, &inner);
            }
        }
    }
    Ok(names)
}

/// Reports what the directory is, how fast it is, and what it promises.
pub(super) fn examine(shared: &FileStoreInner) -> Result<Report> {
    let directory = &shared.directory;
    directory.check_in_place()?;
    let round_trip = round_trip(shared)?;
    let system = &directory.file_system;
    let check = |what, verdict, found: String| Check { what, verdict, found };
    let file_system = match system.grade {
        Grade::C => check(
            "file system",
            Verdict::Weak,
            format!(
                "{}, used by force: its locks are not known to exclude, so two may lead",
                system.name()
            ),
        ),
        _ => check("file system", Verdict::Good, system.name()),
    };
    let path = super::directory::display_path(directory.path());
    let era = &shared.judge.era;
    Ok(Report {
        what: format!("directory {path} on {}", system.name()),
        grade: system.grade,
        round_trip,
        checks: vec![
            file_system,
            check(
                "permissions",
                Verdict::Good,
                "ours, and no other user can write in it".to_owned(),
            ),
            space(&directory.tmp)?,
            check(
                "clock",
                Verdict::Good,
                format!("boot {} in time namespace {}", era.boot, era.timens),
            ),
            check(
                "reach",
                Verdict::Good,
                "this machine only: candidates elsewhere do not see it".to_owned(),
            ),
        ],
    })
}

fn space(handle: &DirectoryHandle) -> Result<Check> {
    let what = "space";
    let found =
        rustix::fs::fstatvfs(handle).map_err(|e| failed("cannot look at", &handle.path, e))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let whole = found.f_blocks.saturating_mul(found.f_frsize);
    let inodes = found.f_files > 0 && found.f_favail < 100;
    let text = format!("{} MiB free", free >> 20);
    let (verdict, advice) = match () {
        () if free < MIN_FREE_BYTES || inodes => {
            (Verdict::Bad, ": make room, or no candidate can be elected")
        }
        () if free < whole / 100 => (Verdict::Weak, ", less than one percent: make room"),
        () => (Verdict::Good, ""),
    };
    let text = if inodes { "hardly any files can be made".to_owned() } else { text };
    Ok(Check { what, verdict, found: text + advice })
}

/// Measures what a grant costs: write, sync, rename, sync.
fn round_trip(shared: &FileStoreInner) -> Result<Duration> {
    let tmp = &shared.directory.tmp;
    let from = format!("{:032x}", entropy::random_u128());
    let to = &*format!("{from}-examined");
    let path = format!("{}/{from}", tmp.path);
    let before = shared.clock.now();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | SAFE_OPEN;
    let file = rustix::fs::openat(tmp, &*from, flags, PRIVATE_FILE)
        .map_err(|errno| failed("cannot make", &path, errno))?;
    let done = rustix::io::write(&file, &[0; 1024])
        .and_then(|_| rustix::fs::fsync(&file))
        .and_then(|()| rustix::fs::renameat(tmp, &*from, tmp, to));
    if let Err(errno) = done {
        let _ = rustix::fs::unlinkat(tmp, &*from, AtFlags::empty());
        return Err(failed("cannot write", &path, errno));
    }
    tmp.sync()?;
    let took = shared.clock.now().since(before);
    let _ = rustix::fs::unlinkat(tmp, to, AtFlags::empty());
    Ok(took)
}
