//! Opens the directory of a store: checks its owner and permissions, and whether it is still at its path.
//!
//! Every directory is opened once, without following a link. Everything below is accessed through those handles.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::FileOptions;
use super::error::{failed, refused};
use super::filesystem::FileSystem;
use super::liveness::entries;
use crate::error::{Error, Result};

pub(super) const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Does not block on a FIFO, follow a link or acquire a controlling terminal.
pub(super) const SAFE_OPEN: OFlags =
    OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

pub(super) const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
const PRIVATE_DIRECTORY: Mode = Mode::RWXU;

/// The subdirectories of a store. The first is created first.
const SUBDIRECTORIES: [&str; 4] = ["leases", "locks", "live", "tmp"];
/// Exists in the top directory of some file systems.
const LOST_AND_FOUND: &str = "lost+found";

const WRITABLE_BY_OTHERS: u32 = 0o022;
const WRITABLE_BY_ALL: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The open directory of a store.
#[derive(Debug)]
pub(super) struct Directory {
    /// Absolute, and without a symbolic link in it when it was opened.
    path: PathBuf,
    top: DirectoryHandle,
    pub(super) leases: DirectoryHandle,
    pub(super) locks: DirectoryHandle,
    pub(super) live: DirectoryHandle,
    pub(super) tmp: DirectoryHandle,
    pub(super) file_system: FileSystem,
}

/// An open directory and its identity.
#[derive(Debug)]
pub(super) struct DirectoryHandle {
    fd: OwnedFd,
    id: FileId,
    /// For messages.
    pub(super) path: String,
}

/// The identity of a file on this machine, valid as long as the file is open somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId {
    pub(super) dev: u64,
    pub(super) ino: u64,
}

impl From<&Stat> for FileId {
    fn from(stat: &Stat) -> Self {
        FileId { dev: stat.st_dev, ino: stat.st_ino }
    }
}

impl AsFd for DirectoryHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Directory {
    /// Whether a store was ever created at `path`.
    pub(super) fn exists(path: &Path) -> Result<bool> {
        let path = resolve_path(path)?;
        match rustix::fs::lstat(&path) {
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(failed("cannot look at", &display_path(&path), errno)),
            Ok(_) => {}
        }
        let top = DirectoryHandle::open(CWD, &path, &display_path(&path))?;
        Ok(entries(&top)?.iter().any(|entry| entry != LOST_AND_FOUND))
    }

    /// Opens the directory, and creates what is missing unless `options.existing` is set.
    pub(super) fn open(path: &Path, options: FileOptions) -> Result<Self> {
        let path = resolve_path(path)?;
        let top = match options.existing {
            true => DirectoryHandle::open(CWD, &path, &display_path(&path))?,
            false => DirectoryHandle::open_or_create(CWD, &path, &display_path(&path))?,
        };
        let file_system = FileSystem::of(&top, &top.path, options.force)?;
        check_contents(&top)?;
        let below = |name: &str| {
            let path = format!("{}/{name}", top.path);
            let handle = match options.existing {
                true => DirectoryHandle::open(&top, Path::new(name), &path)?,
                false => DirectoryHandle::open_or_create(&top, Path::new(name), &path)?,
            };
            if handle.id.dev == top.id.dev {
                return Ok(handle);
            }
            Err(refused(
                &handle.path,
                "is another file system",
                "unmount it, or give Tenure a directory of its own",
            ))
        };
        let [leases, locks, live, tmp] = SUBDIRECTORIES.map(below);
        let (leases, locks, live, tmp) = (leases?, locks?, live?, tmp?);
        top.sync()?;
        Ok(Directory { path, top, leases, locks, live, tmp, file_system })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn id(&self) -> FileId {
        self.top.id
    }

    /// Checks that the paths through which other processes open this store still lead to the same directories, and that no
    /// other user can write in them.
    ///
    /// Without this check, a directory that is moved away would keep its leader while another one is elected in its
    /// replacement.
    pub(super) fn check_in_place(&self) -> Result<()> {
        let moved = |path: &str| {
            Error::unavailable(format!(
                "{path} was moved away or replaced while it was in use, so what is written here \
                 would not be read by the others: put it back, or restart every program that uses it"
            ))
        };
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        let parts = [(CWD, &*self.path, &self.top)].into_iter().chain(
            [("leases", &self.leases), ("locks", &self.locks)]
                .map(|(name, part)| (self.top.as_fd(), Path::new(name), part)),
        );
        for (at, name, part) in parts {
            match rustix::fs::statat(at, name, no_follow) {
                Ok(stat) if FileId::from(&stat) == part.id => check_directory(&stat, &part.path)?,
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => return Err(moved(&part.path)),
                Err(errno) => return Err(failed("cannot look at", &part.path, errno)),
            }
        }
        Ok(())
    }
}

impl DirectoryHandle {
    /// Opens the directory `name`, creating it if it does not exist. This user must own it, and no other user may write in it.
    fn open_or_create(at: impl AsFd, name: &Path, path: &str) -> Result<Self> {
        let created = rustix::fs::mkdirat(&at, name, PRIVATE_DIRECTORY);
        match created {
            Ok(()) | Err(Errno::EXIST) => {}
            // A directory that exists can be used without the permission to create one.
            Err(errno) => {
                if rustix::fs::statat(&at, name, AtFlags::SYMLINK_NOFOLLOW).is_err() {
                    return Err(failed("cannot make the directory", path, errno));
                }
            }
        }
        let handle = Self::open(at, name, path)?;
        if created.is_ok() {
            // Restore the mode bits that the umask removed.
            rustix::fs::fchmod(&handle, PRIVATE_DIRECTORY)
                .map_err(|errno| failed("cannot change the mode of", path, errno))?;
        }
        Ok(handle)
    }

    fn open(at: impl AsFd, name: &Path, path: &str) -> Result<Self> {
        let fd = match rustix::fs::openat(&at, name, DIRECTORY, Mode::empty()) {
            Ok(fd) => fd,
            Err(errno @ (Errno::NOTDIR | Errno::LOOP)) => {
                return Err(open_error(at, name, path, errno));
            }
            Err(errno) => return Err(failed("cannot open the directory", path, errno)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed("cannot look at", path, e))?;
        check_directory(&stat, path)?;
        Ok(DirectoryHandle { id: FileId::from(&stat), fd, path: path.to_owned() })
    }

    /// The directory of long names `sub` in this one; `None` if it does not exist and is not to be created.
    pub(super) fn sub(&self, sub: &str, create_missing: bool) -> Result<Option<DirectoryHandle>> {
        let path = format!("{}/{sub}", self.path);
        if create_missing {
            return Self::open_or_create(self, Path::new(sub), &path).map(Some);
        }
        match rustix::fs::statat(self, sub, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            _ => Self::open(self, Path::new(sub), &path).map(Some),
        }
    }

    pub(super) fn id(&self) -> FileId {
        self.id
    }

    /// Opens the same directory once more: the kernel reports a failed write once for each open file description, so a caller
    /// that waits for a sync must not share one.
    pub(super) fn reopen(&self) -> Result<DirectoryHandle> {
        let fd = rustix::fs::openat(self, ".", DIRECTORY, Mode::empty())
            .map_err(|errno| failed("cannot open the directory", &self.path, errno))?;
        Ok(DirectoryHandle { fd, id: self.id, path: self.path.clone() })
    }

    /// Returns when the changes in this directory will survive a power failure.
    pub(super) fn sync(&self) -> Result<()> {
        rustix::fs::fsync(self)
            .map_err(|errno| failed("cannot sync the directory", &self.path, errno))
    }
}

/// Refuses a directory with files in it that is not a store, which is probably a mistake: `/etc`, a home directory, a working
/// directory.
fn check_contents(top: &DirectoryHandle) -> Result<()> {
    let entries = entries(top)?;
    if entries.iter().any(|entry| entry == SUBDIRECTORIES[0]) {
        return Ok(());
    }
    let expected = |entry: &str| SUBDIRECTORIES.contains(&entry) || entry == LOST_AND_FOUND;
    match entries.iter().filter(|entry| !expected(entry)).min() {
        None => Ok(()),
        Some(first) => Err(refused(
            &top.path,
            &format!("holds no leases, but other files ('{}')", first.escape_debug()),
            &format!("give Tenure a directory of its own, such as {}/tenure", top.path),
        )),
    }
}

fn open_error(at: impl AsFd, name: &Path, path: &str, errno: Errno) -> Error {
    let link = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
    if link {
        return refused(path, "is a symbolic link", "give the directory it leads to instead");
    }
    failed("cannot open the directory", path, errno)
}

/// Checks that this user owns the directory and that no other user can write in it.
fn check_directory(stat: &Stat, path: &str) -> Result<()> {
    check_owner(stat, path)?;
    if stat.st_mode & WRITABLE_BY_OTHERS != 0 {
        let mode = stat.st_mode & 0o7777;
        return Err(refused(
            path,
            &format!("can be written by others (mode {mode:04o})"),
            "chmod go-w it, after looking who has been there",
        ));
    }
    Ok(())
}

fn check_owner(stat: &Stat, path: &str) -> Result<()> {
    let this_user = rustix::process::geteuid().as_raw();
    if stat.st_uid == this_user {
        return Ok(());
    }
    let reason = format!("belongs to user {}, and this process is user {this_user}", stat.st_uid);
    Err(refused(path, &reason, "run as its owner, or choose another directory"))
}

/// Checks that this is a regular file with one name, that this user owns it, and that no other user can write it.
pub(super) fn check_file(stat: &Stat, path: &str) -> Result<()> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused(path, "is not a plain file", "move it away"));
    }
    check_owner(stat, path)?;
    if stat.st_mode & WRITABLE_BY_OTHERS != 0 {
        let mode = stat.st_mode & 0o7777;
        let reason = format!("can be written by others (mode {mode:04o})");
        return Err(refused(path, &reason, "chmod go-w it, after looking who has been there"));
    }
    if stat.st_nlink != 1 {
        let reason = format!("has {} names", stat.st_nlink);
        return Err(refused(path, &reason, "remove the hard links, so that only Tenure's is left"));
    }
    Ok(())
}

/// Restores the owner's read and write permission if an unusual umask removed it.
pub(super) fn make_usable(file: &OwnedFd, stat: &Stat, path: &str) -> Result<()> {
    if stat.st_mode & 0o600 == 0o600 {
        return Ok(());
    }
    rustix::fs::fchmod(file, PRIVATE_FILE)
        .map_err(|errno| failed("cannot change the mode of", path, errno))
}

/// The path that is used: absolute, not through another user's link, and a private subdirectory where all users may write.
fn resolve_path(path: &Path) -> Result<PathBuf> {
    let given = display_path(path);
    let absolute = std::path::absolute(path)
        .map_err(|e| Error::invalid(format!("'{given}' is not a directory's path: {e}")))?;
    let (Some(parent), Some(last)) = (absolute.parent(), absolute.file_name()) else {
        return Err(Error::invalid(format!(
            "'{given}' cannot hold leases: give a directory of its own, such as /var/lib/tenure"
        )));
    };
    check_links(parent)?;
    let parent = std::fs::canonicalize(parent).map_err(|e| match Errno::from_io_error(&e) {
        Some(Errno::NOENT) => Error::invalid(format!(
            "{} does not exist, so '{given}' cannot be made in it: make it first",
            display_path(parent)
        )),
        Some(errno) => failed("cannot enter", &display_path(parent), errno),
        None => Error::unavailable(format!("cannot enter {}: {e}", display_path(parent))),
    })?;
    for above in parent.ancestors() {
        let stat = rustix::fs::stat(above)
            .map_err(|e| failed("cannot look at", &display_path(above), e))?;
        if is_open_to_all(&stat) && stat.st_mode & STICKY == 0 {
            let reason =
                "can be written by all users, who could put another directory in its place";
            return Err(refused(&display_path(above), reason, "chmod o-w it, or choose another"));
        }
    }
    let path = parent.join(last);
    match rustix::fs::lstat(&path) {
        Ok(stat) if is_open_to_all(&stat) && stat.st_mode & STICKY != 0 => {
            let private = path.join(format!("tenure-{}", rustix::process::geteuid().as_raw()));
            tracing::info!(
                "all users may write in {}: the leases are in {}",
                display_path(&path),
                display_path(&private)
            );
            Ok(private)
        }
        _ => Ok(path),
    }
}

fn is_open_to_all(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
        && stat.st_mode & WRITABLE_BY_ALL != 0
}

/// A link on the path may belong to root or to this user. Another user's link could lead two candidates to two directories.
fn check_links(parent: &Path) -> Result<()> {
    let this_user = rustix::process::geteuid().as_raw();
    for above in parent.ancestors() {
        let Ok(stat) = rustix::fs::lstat(above) else { continue };
        let link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        if link && stat.st_uid != 0 && stat.st_uid != this_user {
            let reason = format!("is a symbolic link of user {}", stat.st_uid);
            return Err(refused(&display_path(above), &reason, "give the path without it"));
        }
    }
    Ok(())
}

/// The path for messages, escaped: a path may contain any bytes.
pub(super) fn display_path(path: &Path) -> String {
    path.display().to_string().escape_debug().to_string()
}
