//! Whether a command can be run, found out before anybody campaigns for it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Access, access};

/// Looks where exec would look; the first that is found and cannot be run is remembered, as a shell does.
pub(crate) fn check(command: &OsString) -> io::Result<()> {
    if command.is_empty() {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    if command.as_bytes().contains(&b'/') {
        return runnable(Path::new(command));
    }
    let path = env::var_os("PATH").unwrap_or_else(|| OsStr::new("/bin:/usr/bin").to_owned());
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for directory in env::split_paths(&path) {
        match runnable(&directory.join(command)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => failure = error,
            Err(_) => {}
        }
    }
    Err(failure)
}

fn runnable(path: &Path) -> io::Result<()> {
    let is_file = fs::metadata(path)?.is_file();
    if is_file && access(path, Access::EXEC_OK).is_ok() {
        return Ok(());
    }
    Err(io::Error::from(io::ErrorKind::PermissionDenied))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_where_exec_would_find_them() {
        let kind = |command: &str| check(&command.into()).map_err(|error| error.kind());
        assert_eq!(kind("sh"), Ok(()));
        assert_eq!(kind("/bin/sh"), Ok(()));
        assert_eq!(kind("no-such-command-anywhere"), Err(io::ErrorKind::NotFound));
        assert_eq!(kind("/no/such"), Err(io::ErrorKind::NotFound));
        assert_eq!(kind("/etc/passwd"), Err(io::ErrorKind::PermissionDenied));
        assert_eq!(kind("/tmp"), Err(io::ErrorKind::PermissionDenied));
        assert_eq!(kind(""), Err(io::ErrorKind::NotFound));
    }
}
