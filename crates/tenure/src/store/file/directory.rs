//! Opening the directory: whose it may be, how it is entered, and whether it is still where it was.
//!
//! Every directory is opened once, without following a link, and everything below is reached through those handles.

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

/// Neither hangs on a FIFO nor follows a link nor becomes a terminal's.
pub(super) const CAREFULLY: OFlags =
    OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

pub(super) const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
const PRIVATE_DIRECTORY: Mode = Mode::RWXU;

/// The directories in a store. The first is made first.
const PARTS: [&str; 4] = ["leases", "locks", "live", "tmp"];
/// In the top directory of a file system.
const LOST_AND_FOUND: &str = "lost+found";

const WRITABLE_BY_OTHERS: u32 = 0o022;
const WRITABLE_BY_ALL: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The directory of a store, open.
#[derive(Debug)]
pub(super) struct Directory {
    /// Absolute, and without a link in it when it was opened.
    path: PathBuf,
    top: DirectoryHandle,
    pub(super) leases: DirectoryHandle,
    pub(super) locks: DirectoryHandle,
    pub(super) live: DirectoryHandle,
    pub(super) tmp: DirectoryHandle,
    pub(super) file_system: FileSystem,
}

/// An open directory and which one it is.
#[derive(Debug)]
pub(super) struct DirectoryHandle {
    fd: OwnedFd,
    id: FileId,
    /// For messages.
    pub(super) path: String,
}

/// Which file, on this machine, as long as it is open somewhere.
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
    /// Whether a store was ever made at `path`.
    pub(super) fn exists(path: &Path) -> Result<bool> {
        let path = entered(path)?;
        match rustix::fs::lstat(&path) {
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(failed("cannot look at", &shown(&path), errno)),
            Ok(_) => {}
        }
        let top = DirectoryHandle::open(CWD, &path, &shown(&path))?;
        Ok(entries(&top)?.iter().any(|entry| entry != LOST_AND_FOUND))
    }

    /// Opens it, and makes what is missing of it unless only what exists is wanted.
    pub(super) fn open(path: &Path, options: FileOptions) -> Result<Self> {
        let path = entered(path)?;
        let top = match options.existing {
            true => DirectoryHandle::open(CWD, &path, &shown(&path))?,
            false => DirectoryHandle::enter(CWD, &path, &shown(&path))?,
        };
        let file_system = FileSystem::of(&top, &top.path, options.force)?;
        check_contents(&top)?;
        let below = |name: &str| {
            let path = format!("{}/{name}", top.path);
            let handle = match options.existing {
                true => DirectoryHandle::open(&top, Path::new(name), &path)?,
                false => DirectoryHandle::enter(&top, Path::new(name), &path)?,
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
        let [leases, locks, live, tmp] = PARTS.map(below);
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

    /// That the paths by which others come here still lead here, and nobody else has got in.
    ///
    /// Without this a directory that is moved away would keep its leader while another one is elected in the new one.
    pub(super) fn still_there(&self) -> Result<()> {
        let moved = |path: &str| {
            Error::unavailable(format!(
                "{path} was moved away or replaced while it was in use, so what is written here \
                 would be seen by nobody: put it back, or restart whoever uses it"
            ))
        };
        let follow = AtFlags::SYMLINK_NOFOLLOW;
        let parts = [(CWD, &*self.path, &self.top)].into_iter().chain(
            [("leases", &self.leases), ("locks", &self.locks)]
                .map(|(name, part)| (self.top.as_fd(), Path::new(name), part)),
        );
        for (at, name, part) in parts {
            match rustix::fs::statat(at, name, follow) {
                Ok(stat) if FileId::from(&stat) == part.id => check_directory(&stat, &part.path)?,
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => return Err(moved(&part.path)),
                Err(errno) => return Err(failed("cannot look at", &part.path, errno)),
            }
        }
        Ok(())
    }
}

impl DirectoryHandle {
    /// Opens the directory `name`, making it if it is not there; it must be ours alone.
    fn enter(at: impl AsFd, name: &Path, path: &str) -> Result<Self> {
        let made = rustix::fs::mkdirat(&at, name, PRIVATE_DIRECTORY);
        match made {
            Ok(()) | Err(Errno::EXIST) => {}
            // A directory that is there can be used without the right to make one.
            Err(errno) => {
                if rustix::fs::statat(&at, name, AtFlags::SYMLINK_NOFOLLOW).is_err() {
                    return Err(failed("cannot make the directory", path, errno));
                }
            }
        }
        let handle = Self::open(at, name, path)?;
        if made.is_ok() {
            // Whatever the umask took away.
            rustix::fs::fchmod(&handle, PRIVATE_DIRECTORY)
                .map_err(|errno| failed("cannot change the mode of", path, errno))?;
        }
        Ok(handle)
    }

    fn open(at: impl AsFd, name: &Path, path: &str) -> Result<Self> {
        let fd = match rustix::fs::openat(&at, name, DIRECTORY, Mode::empty()) {
            Ok(fd) => fd,
            Err(errno @ (Errno::NOTDIR | Errno::LOOP)) => {
                return Err(not_entered(at, name, path, errno));
            }
            Err(errno) => return Err(failed("cannot open the directory", path, errno)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed("cannot look at", path, e))?;
        check_directory(&stat, path)?;
        Ok(DirectoryHandle { id: FileId::from(&stat), fd, path: path.to_owned() })
    }

    /// The directory of long names `sub` in this one; `None` if it is not there and is not to be made.
    pub(super) fn sub(&self, sub: &str, make: bool) -> Result<Option<DirectoryHandle>> {
        let path = format!("{}/{sub}", self.path);
        if make {
            return Self::enter(self, Path::new(sub), &path).map(Some);
        }
        match rustix::fs::statat(self, sub, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            _ => Self::open(self, Path::new(sub), &path).map(Some),
        }
    }

    pub(super) fn id(&self) -> FileId {
        self.id
    }

    /// The same directory, opened once more: the kernel tells of a failed write once for each time a file is open,
    /// so whoever waits for a sync must not share.
    pub(super) fn again(&self) -> Result<DirectoryHandle> {
        let fd = rustix::fs::openat(self, ".", DIRECTORY, Mode::empty())
            .map_err(|errno| failed("cannot open the directory", &self.path, errno))?;
        Ok(DirectoryHandle { fd, id: self.id, path: self.path.clone() })
    }

    /// Returns when what was done in this directory will survive a power cut.
    pub(super) fn sync(&self) -> Result<()> {
        rustix::fs::fsync(self)
            .map_err(|errno| failed("cannot sync the directory", &self.path, errno))
    }
}

/// A directory with files in it that is not a store is a mistake: `/etc`, a home, a working directory.
fn check_contents(top: &DirectoryHandle) -> Result<()> {
    let entries = entries(top)?;
    if entries.iter().any(|entry| entry == PARTS[0]) {
        return Ok(());
    }
    let ours = |entry: &str| PARTS.contains(&entry) || entry == LOST_AND_FOUND;
    match entries.iter().filter(|entry| !ours(entry)).min() {
        None => Ok(()),
        Some(first) => Err(refused(
            &top.path,
            &format!("holds no leases, but other files ('{}')", first.escape_debug()),
            &format!("give Tenure a directory of its own, such as {}/tenure", top.path),
        )),
    }
}

fn not_entered(at: impl AsFd, name: &Path, path: &str, errno: Errno) -> Error {
    let link = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
    if link {
        return refused(path, "is a symbolic link", "give the directory it leads to instead");
    }
    failed("cannot open the directory", path, errno)
}

/// A directory of our own in which nobody else can write.
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
    let we = rustix::process::geteuid().as_raw();
    if stat.st_uid == we {
        return Ok(());
    }
    let why = format!("belongs to user {}, and this process is user {we}", stat.st_uid);
    Err(refused(path, &why, "run as its owner, or choose another directory"))
}

/// A plain file of our own, with one name, in which nobody else can write.
pub(super) fn check_file(stat: &Stat, path: &str) -> Result<()> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused(path, "is not a plain file", "move it away"));
    }
    check_owner(stat, path)?;
    if stat.st_mode & WRITABLE_BY_OTHERS != 0 {
        let mode = stat.st_mode & 0o7777;
        let why = format!("can be written by others (mode {mode:04o})");
        return Err(refused(path, &why, "chmod go-w it, after looking who has been there"));
    }
    if stat.st_nlink != 1 {
        let why = format!("has {} names", stat.st_nlink);
        return Err(refused(path, &why, "remove the hard links, so that only Tenure's is left"));
    }
    Ok(())
}

/// Gives the owner back what an odd umask took away.
pub(super) fn make_usable(file: &OwnedFd, stat: &Stat, path: &str) -> Result<()> {
    if stat.st_mode & 0o600 == 0o600 {
        return Ok(());
    }
    rustix::fs::fchmod(file, PRIVATE_FILE)
        .map_err(|errno| failed("cannot change the mode of", path, errno))
}

/// The path that is really used: absolute, through no stranger's link, and private where everybody may write.
fn entered(path: &Path) -> Result<PathBuf> {
    let given = shown(path);
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
            shown(parent)
        )),
        Some(errno) => failed("cannot enter", &shown(parent), errno),
        None => Error::unavailable(format!("cannot enter {}: {e}", shown(parent))),
    })?;
    for above in parent.ancestors() {
        let stat =
            rustix::fs::stat(above).map_err(|e| failed("cannot look at", &shown(above), e))?;
        if is_open_to_all(&stat) && stat.st_mode & STICKY == 0 {
            let why = "can be written by everybody, who could put another directory in its place";
            return Err(refused(&shown(above), why, "chmod o-w it, or choose another"));
        }
    }
    let path = parent.join(last);
    match rustix::fs::lstat(&path) {
        Ok(stat) if is_open_to_all(&stat) && stat.st_mode & STICKY != 0 => {
            let private = path.join(format!("tenure-{}", rustix::process::geteuid().as_raw()));
            tracing::info!(
                "everybody may write in {}: the leases are in {}",
                shown(&path),
                shown(&private)
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

/// A link on the way may be root's or ours. A stranger's could lead two candidates to two directories.
fn check_links(parent: &Path) -> Result<()> {
    let we = rustix::process::geteuid().as_raw();
    for above in parent.ancestors() {
        let Ok(stat) = rustix::fs::lstat(above) else { continue };
        let link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        if link && stat.st_uid != 0 && stat.st_uid != we {
            let why = format!("is a symbolic link of user {}", stat.st_uid);
            return Err(refused(&shown(above), &why, "give the path without it"));
        }
    }
    Ok(())
}

/// For messages; a path may contain anything.
pub(super) fn shown(path: &Path) -> String {
    path.display().to_string().escape_debug().to_string()
}
