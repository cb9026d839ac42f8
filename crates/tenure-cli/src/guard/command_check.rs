//! Checks whether a command can be run, before the candidate campaigns for it, and words the error if not.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::geteuid;

use crate::exit::Exit;

/// Why a command cannot be run.
#[derive(Debug)]
pub(crate) struct CommandError {
    pub(crate) sentence: String,
    pub(crate) exit: Exit,
}

/// Searches for the command where exec would.
pub(crate) fn check(command: &OsString) -> Result<(), CommandError> {
    find(command).map(drop).map_err(|error| refusal(command, &error))
}

/// A warning, if a command is known to change its user and this process may not kill that user's processes.
pub(crate) fn changes_user(command: &OsString) -> Option<String> {
    if may_kill_all() {
        return None;
    }
    // A wrapper may have another name through a link.
    let path = fs::canonicalize(find(command).ok()?).ok()?;
    let file = fs::metadata(&path).ok()?;
    let is_setuid = file.mode() & 0o4000 != 0 && file.uid() != geteuid().as_raw();
    let is_known = path.file_name().is_some_and(|name| CHANGE_USER.iter().any(|it| name == *it));
    let shown = crate::output::printable(&command.to_string_lossy());
    (is_setuid || is_known).then(|| {
        format!(
            "'{shown}' runs as another user, and only root may kill it: when leadership is lost, it may keep running beside \
             the next leader's command. Run tenure as root or as that user"
        )
    })
}

/// Programs that run a command as another user.
const CHANGE_USER: [&str; 5] = ["sudo", "sudo-rs", "su", "doas", "pkexec"];

/// Whether this process may signal every other process (`CAP_KILL`).
fn may_kill_all() -> bool {
    const CAP_KILL: u32 = 5;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.map_or(geteuid().is_root(), |set| set & (1 << CAP_KILL) != 0)
}

/// The error of exec, although the command was found.
pub(crate) fn refused(command: &OsString, error: &io::Error) -> CommandError {
    match error.kind() {
        // The file exists: what is missing is the interpreter in its first line.
        ErrorKind::NotFound if find(command).is_ok() => {
            let error = io::Error::other("its interpreter is not found (see its first line)");
            refusal(command, &error)
        }
        _ => refusal(command, error),
    }
}

fn refusal(command: &OsString, error: &io::Error) -> CommandError {
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
    CommandError { sentence, exit }
}

/// Like a shell, a file that was found but cannot be run decides the error.
fn find(command: &OsString) -> io::Result<PathBuf> {
    if command.is_empty() {
        return Err(io::Error::from(ErrorKind::NotFound));
    }
    if command.as_bytes().contains(&b'/') {
        return runnable(Path::new(command).to_owned());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| OsStr::new("/bin:/usr/bin").to_owned());
    let mut failure = io::Error::from(ErrorKind::NotFound);
    for directory in env::split_paths(&path) {
        match runnable(directory.join(command)) {
            Ok(path) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => failure = error,
            Err(_) => {}
        }
    }
    Err(failure)
}

fn runnable(path: PathBuf) -> io::Result<PathBuf> {
    let is_file = fs::metadata(&path)?.is_file();
    if is_file && access(&path, Access::EXEC_OK).is_ok() {
        return Ok(path);
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
