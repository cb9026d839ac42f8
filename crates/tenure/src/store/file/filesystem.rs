//! The file systems that this store can rely on, and the default directory for leases.

use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::io::Errno;

use super::error::failed;
use crate::error::{Error, Result};
use crate::store::Grade;

/// Accepted: their locks are exclusive, their rename is atomic and their fsync is reliable, all on this machine.
const ACCEPTED: &[(u64, &str)] = &[
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xf2f5_2010, "f2fs"),
    (0x0102_1994, "tmpfs"),
    (0x794c_7630, "overlayfs"),
];

/// Refused unless forced, by name. Any other file system is refused too, by its number.
const REFUSED: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x517b, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x4d44, "FAT"),
    (0x2011_bab0, "exFAT"),
    (0x5346_544e, "NTFS"),
    (0x7366_746e, "NTFS"),
    (0x8584_58f6, "ramfs"),
    (0xca45_1a4e, "bcachefs"),
];

/// The file system of the directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSystem {
    name: Option<&'static str>,
    magic: u64,
    /// C if it is used by force although it is not in the list of accepted file systems.
    pub(super) grade: Grade,
    /// `syncfs` reports write errors, as it does since Linux 5.8.
    pub(super) syncfs_reports_errors: bool,
}

impl FileSystem {
    pub(super) fn of(directory: impl AsFd, path: &str, force: bool) -> Result<Self> {
        let found =
            rustix::fs::fstatfs(directory).map_err(|e| failed("cannot look at", path, e))?;
        // The kernel stores 32 bits here, with or without a sign.
        let magic = found.f_type.cast_unsigned() & 0xffff_ffff;
        let named = |list: &[(u64, &'static str)]| {
            list.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
        };
        let accepted = named(ACCEPTED);
        let system = FileSystem {
            name: accepted.or_else(|| named(REFUSED)),
            magic,
            grade: if accepted.is_some() { Grade::B } else { Grade::C },
            syncfs_reports_errors: syncfs_reports_errors(
                &rustix::system::uname().release().to_string_lossy(),
            ),
        };
        if accepted.is_some() || force {
            return Ok(system);
        }
        Err(Error::denied(format!(
            "{path} lies on {}, whose locks are not known to exclude: two could lead. \
             Choose a directory on {}, or, knowing that, add '?force=1'",
            system.name(),
            ACCEPTED.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", "),
        )))
    }

    pub(super) fn name(&self) -> String {
        match self.name {
            Some(name) => name.to_owned(),
            None => format!("an unknown file system ({:#x})", self.magic),
        }
    }
}

fn syncfs_reports_errors(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (5, 8)
}

/// The default directory: `/var/lib/tenure` for root, otherwise `.local/state/tenure` in the home directory of the passwd
/// entry.
///
/// It never depends on `$HOME`, `$XDG_STATE_HOME` or `/tmp`: those differ between a shell, cron and a unit of one user, and two
/// directories mean two leaders.
///
/// # Errors
/// Invalid if the user has no passwd entry with a home directory: then a directory must be given.
pub fn default_directory() -> Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    if uid == 0 {
        return Ok(PathBuf::from("/var/lib/tenure"));
    }
    let passwd = std::fs::read_to_string("/etc/passwd").map_err(|e| {
        Error::invalid(format!("cannot read /etc/passwd: {e}; give a directory: file:DIR"))
    })?;
    match home(&passwd, uid) {
        Some(home) => Ok(PathBuf::from(home).join(".local/state/tenure")),
        None => Err(Error::invalid(format!(
            "user {uid} has no home in /etc/passwd, so there is no default directory: \
             give one: file:DIR"
        ))),
    }
}

fn home(passwd: &str, uid: u32) -> Option<&str> {
    let entry = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let home = entry.filter(|fields| fields.len() == 7 && fields[2].parse() == Ok(uid));
    home.map(|fields| fields[5]).next().filter(|home| home.starts_with('/'))
}

/// Creates the missing parents of the default directory, and none if one is missing that Tenure must not create.
pub(super) fn make_default_parents(directory: &std::path::Path) -> Result<()> {
    let Some(parent) = directory.parent() else { return Ok(()) };
    let mut missing: Vec<_> =
        parent.ancestors().take_while(|parent_directory| !parent_directory.exists()).collect();
    // Tenure may create `.local` and `state`, but not a home directory or /var/lib.
    if missing.len() > 2 || (!missing.is_empty() && rustix::process::geteuid().is_root()) {
        let missing_parent = missing.pop().unwrap_or(parent);
        return Err(Error::invalid(format!(
            "{} does not exist, so there is no default directory: give one: file:DIR",
            missing_parent.display()
        )));
    }
    for parent_directory in missing.into_iter().rev() {
        match rustix::fs::mkdir(parent_directory, rustix::fs::Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => {
                return Err(failed(
                    "cannot make the directory",
                    &parent_directory.display().to_string(),
                    errno,
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_directory_comes_from_the_passwd_entry() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:1000::/home/ann:/bin/sh\n\
                      odd:x:1001:1001:::/bin/sh\nann:x:1000:1000::/elsewhere:/bin/sh\n";
        assert_eq!(home(passwd, 1000), Some("/home/ann"));
        assert_eq!(home(passwd, 1001), None);
        assert_eq!(home(passwd, 7), None);
    }

    #[test]
    fn syncfs_is_used_only_where_it_reports_errors() {
        for (release, reports) in [
            ("6.18.44-fc", true),
            ("5.8.0", true),
            ("5.7.19", false),
            ("4.19-x", false),
            ("", false),
        ] {
            assert_eq!(syncfs_reports_errors(release), reports, "{release}");
        }
    }
}
