//! Errors of file operations, with what the operator can do about them.

use rustix::io::Errno;

use crate::error::{Error, Kind};

/// The operation `doing` on `path` failed with `errno`.
pub(super) fn failed(doing: &str, path: &str, errno: Errno) -> Error {
    let (kind, advice) = match errno {
        Errno::ACCESS | Errno::PERM => {
            (Kind::Denied, "give this user the right to it, or choose another directory")
        }
        Errno::LOOP | Errno::MLINK => {
            (Kind::Denied, "a symbolic link is not followed here: remove it")
        }
        Errno::ISDIR | Errno::NOTDIR | Errno::NXIO | Errno::NODEV => {
            (Kind::Denied, "it is not of the kind Tenure puts there: move it away")
        }
        Errno::NOSPC | Errno::DQUOT => (Kind::Unavailable, "the disk is full: make room"),
        Errno::ROFS => {
            (Kind::Unavailable, "the file system is read-only: mount it so that it can be written")
        }
        Errno::IO => (Kind::Unavailable, "the disk fails: see the kernel's log"),
        Errno::MFILE | Errno::NFILE => {
            (Kind::Unavailable, "too many files are open: raise the limit (ulimit -n)")
        }
        Errno::NOENT | Errno::STALE => {
            (Kind::Unavailable, "it has gone away: was the directory moved or removed?")
        }
        _ => (Kind::Unavailable, "see 'tenure doctor'"),
    };
    let reason = std::io::Error::from(errno);
    Error::new(kind, format!("{doing} {path}: {reason}; {advice}")).caused_by(reason)
}

/// The file at `path` does not have the required type, owner or permissions.
pub(super) fn refused(path: &str, reason: &str, advice: &str) -> Error {
    Error::denied(format!("{path} {reason}: {advice}"))
}
