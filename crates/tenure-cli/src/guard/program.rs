//! Whether a command can be run, found out before anybody campaigns for it, and what to say if not.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Access, access};

use crate::exit::Exit;

/// Why a command cannot be run.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) sentence: String,
    pub(crate) exit: Exit,
}

/// Looks where exec would look.
pub(crate) fn check(command: &OsString) -> Result<(), Refusal> {
    find(command).map_err(|error| refusal(command, &error))
}

/// What exec has said, although the command was found.
pub(crate) fn refused(command: &OsString, error: &io::Error) -> Refusal {
    match error.kind() {
        // It is there: what is not is named in its first line.
        ErrorKind::NotFound if find(command).is_ok() => {
            let error = io::Error::other("its interpreter is not found (see its first line)");
            refusal(command, &error)
        }
        _ => refusal(command, error),
    }
}

fn refusal(command: &OsString, error: &io::Error) -> Refusal {
    let shown = crate::output::printable(&command.to_string_lossy());
    let (sentence, exit) = match error.kind() {
        ErrorKind::NotFound => (
            format!("the command '{shown}' is not found: check its spelling and PATH"),
            Exit::NotFound,
        ),
        ErrorKind::PermissionDenied => (
            format!(
                "the command '{shown}' cannot be run: it is not an executable file (chmod +x?)"
            ),
            Exit::CannotRun,
        ),
        _ => (format!("the command '{shown}' cannot be run: {error}"), Exit::CannotRun),
    };
    Refusal { sentence, exit }
}

/// The first that is found and cannot be run is remembered, as a shell does.
fn find(command: &OsString) -> io::Result<()> {
    if command.is_empty() {
        return Err(io::Error::from(ErrorKind::NotFound));
    }
    if command.as_bytes().contains(&b'/') {
        return runnable(Path::new(command));
    }
    let path = env::var_os("PATH").unwrap_or_else(|| OsStr::new("/bin:/usr/bin").to_owned());
    let mut failure = io::Error::from(ErrorKind::NotFound);
    for directory in env::split_paths(&path) {
        match runnable(&directory.join(command)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => failure = error,
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
    Err(io::Error::from(ErrorKind::PermissionDenied))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_where_exec_would_find_them() {
        let exit = |command: &str| check(&command.into()).map_err(|refusal| refusal.exit).err();
        assert_eq!(exit("sh"), None);
        assert_eq!(exit("/bin/sh"), None);
        assert_eq!(exit("no-such-command-anywhere"), Some(Exit::NotFound));
        assert_eq!(exit("/no/such"), Some(Exit::NotFound));
        assert_eq!(exit("/etc/passwd"), Some(Exit::CannotRun));
        assert_eq!(exit("/tmp"), Some(Exit::CannotRun));
        assert_eq!(exit(""), Some(Exit::NotFound));
    }
}
