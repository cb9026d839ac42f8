//! Reads a file that decides what this process does, after checking who can write it.
//!
//! The file is opened once; type, owner and mode are those of the open descriptor, and the content is read from the same
//! descriptor. So a name that another user exchanges between two steps cannot separate what was checked from what is read. No
//! other settings code opens a file or queries its state by path: a test below checks the sources.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, open, readlinkat, statat};
use rustix::io::Errno;
use rustix::process::geteuid;

const OPEN_BLOCKING: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOCTTY);
/// Opening a FIFO without a writer returns at once.
const OPEN_NONBLOCKING: OFlags = OPEN_BLOCKING.union(OFlags::NONBLOCK);
const OPEN_LINK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// The kernel's own limit for symbolic links on one path.
const MAX_LINKS: usize = 40;

const GROUP_OR_OTHERS_WRITE: u32 = 0o022;
const OTHERS_WRITE: u32 = 0o002;
const GROUP_OR_OTHERS: u32 = 0o077;

/// Which files are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrustRule {
    /// Found at its usual path: a regular file. The file, and every symbolic link that leads to it, belongs to this user or to
    /// root, and neither its group nor others can write it.
    Found,
    /// Named by the operator: any owner, mode and type. `--config /dev/null` is the way to use no file at all, and a shell
    /// gives a pipe for `--env-file <(CMD)`; both are read to their end.
    Named,
    /// Named by the operator, and secret: a regular file that belongs to this user or to root, and that only its owner can read
    /// or write.
    Secret,
}

/// The content of an accepted file.
pub(crate) struct TrustedFile {
    pub(crate) bytes: Vec<u8>,
    /// Whether its group or others can read or write it.
    pub(crate) exposed: bool,
}

/// Why a file is not accepted.
#[derive(Debug)]
pub(crate) enum UntrustedReason {
    Io(io::Error),
    NotRegular,
    /// Larger than this many bytes.
    TooLarge(u64),
    /// A symbolic link of another user.
    Link {
        owner: u32,
    },
    Owner {
        owner: u32,
        mode: u32,
    },
    /// Its mode allows too much.
    Mode {
        owner: u32,
        mode: u32,
    },
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn read(
    path: &Path,
    rule: TrustRule,
    limit: u64,
) -> Result<TrustedFile, UntrustedReason> {
    let fd = match rule {
        TrustRule::Found => open_checking_links(path)?,
        TrustRule::Named => open(path, OPEN_BLOCKING, Mode::empty())?,
        TrustRule::Secret => open(path, OPEN_NONBLOCKING, Mode::empty())?,
    };
    let stat = fstat(&fd)?;
    check(&stat, rule)?;
    let mut bytes = Vec::new();
    File::from(fd).take(limit + 1).read_to_end(&mut bytes).map_err(UntrustedReason::Io)?;
    if bytes.len() as u64 > limit {
        return Err(UntrustedReason::TooLarge(limit));
    }
    Ok(TrustedFile { bytes, exposed: stat.st_mode & GROUP_OR_OTHERS != 0 })
}

/// Reads a file by [`TrustRule::Found`]; `None` if there is no such file, or none that this user can see.
pub(crate) fn find(path: &Path, limit: u64) -> Result<Option<TrustedFile>, UntrustedReason> {
    match read(path, TrustRule::Found, limit) {
        Ok(file) => Ok(Some(file)),
        Err(UntrustedReason::Io(error)) if is_absent(path, error.kind()) => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

/// Whether the file is absent. A directory that this user may not search (the home of the user who ran `sudo`) hides whether
/// there is a file in it.
fn is_absent(path: &Path, kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::NotFound | ErrorKind::NotADirectory => true,
        ErrorKind::PermissionDenied => statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_err(),
        _ => false,
    }
}

/// Opens the file, and follows symbolic links at the end of the path itself: a link of another user could lead to any file of
/// this one.
fn open_checking_links(path: &Path) -> Result<OwnedFd, UntrustedReason> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match open(&path, OPEN_NONBLOCKING | OFlags::NOFOLLOW, Mode::empty()) {
            Err(Errno::LOOP) => path = target(&path)?,
            opened => return Ok(opened?),
        }
    }
    Err(Errno::LOOP.into())
}

/// The target of the link at `path`.
fn target(path: &Path) -> Result<PathBuf, UntrustedReason> {
    let link = open(path, OPEN_LINK, Mode::empty())?;
    let stat = fstat(&link)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        // Replaced since it was found to be a link: the caller opens it again.
        return Ok(path.to_owned());
    }
    if !is_trusted(stat.st_uid) {
        return Err(UntrustedReason::Link { owner: stat.st_uid });
    }
    let target = readlinkat(&link, "", Vec::new())?;
    Ok(path.parent().unwrap_or(Path::new("")).join(OsStr::from_bytes(target.as_bytes())))
}

fn check(stat: &Stat, rule: TrustRule) -> Result<(), UntrustedReason> {
    let refused = match rule {
        TrustRule::Named => return Ok(()),
        TrustRule::Found => GROUP_OR_OTHERS_WRITE,
        TrustRule::Secret => GROUP_OR_OTHERS,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(UntrustedReason::NotRegular);
    }
    let (owner, mode) = (stat.st_uid, stat.st_mode & 0o7777);
    match is_trusted(owner) {
        false => Err(UntrustedReason::Owner { owner, mode }),
        true if mode & refused != 0 => Err(UntrustedReason::Mode { owner, mode }),
        true => Ok(()),
    }
}

fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == geteuid().as_raw()
}

impl From<Errno> for UntrustedReason {
    fn from(errno: Errno) -> UntrustedReason {
        UntrustedReason::Io(errno.into())
    }
}

/// A predicate for a message that names the file first.
impl fmt::Display for UntrustedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own_uid = geteuid().as_raw();
        match self {
            UntrustedReason::Io(error) => error.fmt(f),
            UntrustedReason::NotRegular => f.write_str("is not a regular file"),
            UntrustedReason::TooLarge(limit) => write!(f, "is larger than {limit} bytes"),
            UntrustedReason::Link { owner } => {
                write!(f, "is a symbolic link of user {owner}, and this process is user {own_uid}")
            }
            UntrustedReason::Owner { owner, mode } => {
                write!(
                    f,
                    "belongs to user {owner} (mode {mode:03o}), and this process is user {own_uid}"
                )
            }
            UntrustedReason::Mode { owner, mode } => {
                let who = if mode & OTHERS_WRITE != 0 { "everybody" } else { "its group" };
                write!(f, "can be written by {who} (owner {owner}, mode {mode:03o})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{RenameFlags, mkfifoat, renameat_with};
    use tenure_rig::servers::Scratch;

    use super::*;

    fn put(scratch: &Scratch, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = scratch.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    fn text(path: &Path, rule: TrustRule) -> Result<String, String> {
        match read(path, rule, 100) {
            Ok(file) => Ok(String::from_utf8(file.bytes).unwrap()),
            Err(refusal) => Err(refusal.to_string()),
        }
    }

    #[test]
    fn each_rule_checks_the_mode() {
        let scratch = Scratch::new();
        for (mode, found, secret) in [
            (0o600, None, None),
            (0o644, None, Some("mode 644")),
            (0o664, Some("can be written by its group (owner "), Some("mode 664")),
            (0o646, Some("can be written by everybody (owner "), Some("mode 646")),
            (0o620, Some("mode 620"), Some("mode 620")),
        ] {
            let path = put(&scratch, "file", "text", mode);
            assert_eq!(text(&path, TrustRule::Named).as_deref(), Ok("text"));
            for (rule, expected) in [(TrustRule::Found, found), (TrustRule::Secret, secret)] {
                match (text(&path, rule), expected) {
                    (Ok(text), None) => assert_eq!(text, "text"),
                    (Err(error), Some(says)) => assert!(error.contains(says), "{error}"),
                    (other, _) => panic!("mode {mode:o}, {rule:?}: {other:?}"),
                }
            }
            assert_eq!(read(&path, TrustRule::Named, 100).unwrap().exposed, mode != 0o600);
        }
    }

    #[test]
    fn only_a_regular_file_of_limited_size_is_found() {
        let scratch = Scratch::new();
        let fifo = scratch.path().join("fifo");
        mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        for path in [&*fifo, scratch.path(), Path::new("/dev/null")] {
            for rule in [TrustRule::Found, TrustRule::Secret] {
                assert_eq!(text(path, rule).unwrap_err(), "is not a regular file");
            }
        }
        assert_eq!(text(Path::new("/dev/null"), TrustRule::Named).as_deref(), Ok(""));
        assert_eq!(
            text(&put(&scratch, "a", &"x".repeat(100), 0o600), TrustRule::Found).unwrap().len(),
            100
        );
        let larger = put(&scratch, "b", &"x".repeat(101), 0o600);
        assert_eq!(text(&larger, TrustRule::Named).unwrap_err(), "is larger than 100 bytes");
        assert!(find(&scratch.path().join("none"), 100).unwrap().is_none());
        assert!(find(&larger.join("none"), 100).unwrap().is_none());
    }

    #[test]
    fn own_links_are_followed_to_the_checked_file() {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path().join("version")).unwrap();
        put(&scratch, "version/file", "text", 0o644);
        // As Kubernetes mounts a ConfigMap.
        symlink("version", scratch.path().join("data")).unwrap();
        symlink("data/file", scratch.path().join("link")).unwrap();
        symlink(scratch.path().join("link"), scratch.path().join("first")).unwrap();
        assert_eq!(text(&scratch.path().join("first"), TrustRule::Found).as_deref(), Ok("text"));
        put(&scratch, "version/file", "text", 0o666);
        let error = text(&scratch.path().join("first"), TrustRule::Found).unwrap_err();
        assert!(error.contains("everybody"), "{error}");
        symlink("loop", scratch.path().join("loop")).unwrap();
        assert!(text(&scratch.path().join("loop"), TrustRule::Found).is_err());
        symlink("nowhere", scratch.path().join("dangling")).unwrap();
        assert!(find(&scratch.path().join("dangling"), 100).unwrap().is_none());
    }

    /// The attack of `untrusted::` in the system tests, with modes instead of owners, so that it needs no second user.
    #[test]
    fn a_file_exchanged_during_the_read_is_never_used() {
        let scratch = Scratch::new();
        let private = put(&scratch, "private", "private", 0o600);
        let path = put(&scratch, "file", "written by others", 0o666);
        let stop = AtomicBool::new(false);
        let (mut used, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    renameat_with(CWD, &private, CWD, &path, RenameFlags::EXCHANGE).unwrap();
                }
            });
            for tries in 0..200_000 {
                match text(&path, TrustRule::Found) {
                    Ok(text) if text == "private" => used += 1,
                    Ok(_) => break,
                    Err(_) => refused += 1,
                }
                if tries > 20_000 && used > 0 && refused > 0 {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(used + refused > 20_000, "used after {} tries", used + refused);
        assert!(used > 0 && refused > 0, "the exchange had no effect: {used}, {refused}");
    }

    /// A check by path and a read by path could concern two different files.
    #[test]
    fn settings_are_opened_and_checked_here_only() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let entries = fs::read_dir(sources.join("settings")).unwrap();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| !path.ends_with("trusted_file.rs"));
        let others = ["settings.rs", "run/instance_env.rs", "store_url.rs", "http/auth.rs"];
        files.extend(others.map(|name| sources.join(name)));
        assert!(files.len() > 10, "{files:?}");
        for path in files {
            let text = fs::read_to_string(&path).unwrap();
            let (shipped, _) = text.split_once("#[cfg(test)]").unwrap_or((&text, ""));
            for by_path in ["fs::", "File::open", ".exists()", ".is_file()", ".metadata()"] {
                let found = shipped.contains(by_path);
                assert!(!found, "{by_path} in {}: use settings::trusted_file", path.display());
            }
        }
    }
}
