//! Looking without touching: what is in a scope, and what the directory is like.

use std::time::Duration;

use super::FileStoreInner;
use super::directory::{CAREFULLY, DirectoryHandle, PRIVATE_FILE};
use super::error::failed;
use super::liveness::{DeadProcesses, entries};
use super::paths::{FileKind, is_sub, may_hold, read_back};
use super::read::{ExpiryProof, look};
use super::rules::{FoundRecord, RuleContext, lease};
use crate::entropy;
use crate::error::{Error, Result};
use crate::lease::{Lease, Name};
use crate::store::{Check, Grade, Report, Scope, Verdict};
use rustix::fs::{AtFlags, OFlags};

/// Below this a disk counts as full.
const SPACE_BAD: u64 = 1 << 20;

/// Every lease in `scope`, in the order of their names.
pub(super) fn observe(shared: &FileStoreInner, scope: &Scope) -> Result<Vec<Result<Lease>>> {
    let mut strangers = Vec::new();
    let mut names = match scope {
        Scope::Names(names) => names.clone(),
        Scope::Prefix(prefix) => below(&shared.directory.leases, prefix, &mut strangers)?,
    };
    names.sort();
    names.dedup();
    let mut deaths = DeadProcesses::default();
    let mut leases: Vec<Result<Lease>> = Vec::with_capacity(names.len() + strangers.len());
    for name in &names {
        match look(&shared.directory, name, ExpiryProof::Glance) {
            Ok(None) => {}
            Err(error) => leases.push(Err(error)),
            Ok(Some(sight)) => {
                let now = shared.clock.now();
                let standing = shared.judge.standing(&shared.directory, &sight, now, &mut deaths);
                let judged = FoundRecord { record: &sight.record, standing };
                let era = &shared.judge.era;
                let at = RuleContext { now, minting_micros: 0, era, live: None, floor: None };
                leases.push(Ok(lease(Some(judged), name, at)));
            }
        }
    }
    leases.extend(strangers.into_iter().map(Err));
    Ok(leases)
}

/// The names that begin with `prefix`; what only looks like a record goes to `strangers`.
pub(super) fn below(
    leases: &DirectoryHandle,
    prefix: &str,
    strangers: &mut Vec<Error>,
) -> Result<Vec<Name>> {
    let mut names = Vec::new();
    let mut sort =
        |sub: Option<&str>, directory: &DirectoryHandle, entry: &str| match read_back(sub, entry) {
            FileKind::Of(name) if name.as_str().starts_with(prefix) => names.push(name),
            FileKind::Stranger(text) if text.starts_with(prefix) => {
                let path = format!("{}/{}", directory.path, entry.escape_debug());
                let why = "is called like a lease, but no lease is called like that";
                strangers.push(Error::corrupt(format!("{path} {why}: move it away")));
            }
            FileKind::Of(_) | FileKind::Stranger(_) | FileKind::Other => {}
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

/// What the directory is, how fast, and what it promises.
pub(super) fn examine(shared: &FileStoreInner) -> Result<Report> {
    let directory = &shared.directory;
    directory.still_there()?;
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
    let path = super::directory::shown(directory.path());
    let era = &shared.judge.era;
    Ok(Report {
        what: format!("directory {path} on {}", system.name()),
        grade: system.grade,
        round_trip,
        checks: vec![
            file_system,
            check("permissions", Verdict::Good, "ours, and nobody else can write in it".to_owned()),
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
    let said = format!("{} MiB free", free >> 20);
    let (verdict, advice) = match () {
        () if free < SPACE_BAD || inodes => (Verdict::Bad, ": make room, or nobody can be elected"),
        () if free < whole / 100 => (Verdict::Weak, ", less than one percent: make room"),
        () => (Verdict::Good, ""),
    };
    let said = if inodes { "hardly any files can be made".to_owned() } else { said };
    Ok(Check { what, verdict, found: said + advice })
}

/// What a grant costs: write, sync, rename, sync.
fn round_trip(shared: &FileStoreInner) -> Result<Duration> {
    let tmp = &shared.directory.tmp;
    let from = format!("{:032x}", entropy::random_u128());
    let to = &*format!("{from}-examined");
    let path = format!("{}/{from}", tmp.path);
    let before = shared.clock.now();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | CAREFULLY;
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
