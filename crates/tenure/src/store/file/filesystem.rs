//! Which file systems keep the promises this store rests on, and the default place for leases.

use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::io::Errno;

use super::error::failed;
use crate::error::{Error, Result};
use crate::store::Grade;

/// Those whose locks exclude, whose rename is atomic and whose fsync is true, all on this machine.
const ALLOWED: &[(u64, &str)] = &[
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xf2f5_2010, "f2fs"),
    (0x0102_1994, "tmpfs"),
    (0x794c_7630, "overlayfs"),
];

/// Named in the refusal. Anything else is refused too, by its number.
const KNOWN: &[(u64, &str)] = &[
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

/// What the directory lies on.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSystem {
    name: Option<&'static str>,
    magic: u64,
    /// C if it is used although it is not one of those that are known to be good.
    pub(super) grade: Grade,
    /// `syncfs` says when it failed, which it does since Linux 5.8.
    pub(super) syncfs_tells: bool,
}

impl FileSystem {
    pub(super) fn of(directory: impl AsFd, path: &str, force: bool) -> Result<Self> {
        let found =
            rustix::fs::fstatfs(directory).map_err(|e| failed("cannot look at", path, e))?;
        // The kernel keeps 32 bits here, with or without a sign.
        let magic = found.f_type.cast_unsigned() & 0xffff_ffff;
        let named = |list: &[(u64, &'static str)]| {
            list.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
        };
        let allowed = named(ALLOWED);
        let system = FileSystem {
            name: allowed.or_else(|| named(KNOWN)),
            magic,
            grade: if allowed.is_some() { Grade::B } else { Grade::C },
            syncfs_tells: syncfs_tells(&rustix::system::uname().release().to_string_lossy()),
        };
        if allowed.is_some() || force {
            return Ok(system);
        }
        Err(Error::denied(format!(
            "{path} lies on {}, whose locks are not known to exclude: two could lead. \
             Choose a directory on {}, or, knowing that, add '?force=1'",
            system.name(),
            ALLOWED.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", "),
        )))
    }

    pub(super) fn name(&self) -> String {
        match self.name {
            Some(name) => name.to_owned(),
            None => format!("an unknown file system ({:#x})", self.magic),
        }
    }
}

fn syncfs_tells(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (5, 8)
}

/// Where leases are if nobody says where: `/var/lib/tenure` for root, else `.local/state/tenure` in the home of the
/// passwd entry.
///
/// Never by `$HOME`, `$XDG_STATE_HOME` or `/tmp`: those differ between a shell, cron and a unit of one user, and two
/// directories are two leaders.
///
/// # Errors
/// Invalid if the user has no passwd entry with a home: then a directory must be given.
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

/// Makes what is missing above the default directory, and nothing where the first of it is missing.
pub(super) fn make_default_parents(directory: &std::path::Path) -> Result<()> {
    let Some(parent) = directory.parent() else { return Ok(()) };
    let mut missing: Vec<_> = parent.ancestors().take_while(|above| !above.exists()).collect();
    // `.local` and `state` are ours to make; a home or /var/lib is not.
    if missing.len() > 2 || (!missing.is_empty() && rustix::process::geteuid().is_root()) {
        let gone = missing.pop().unwrap_or(parent);
        return Err(Error::invalid(format!(
            "{} does not exist, so there is no default directory: give one: file:DIR",
            gone.display()
        )));
    }
    for above in missing.into_iter().rev() {
        match rustix::fs::mkdir(above, rustix::fs::Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => {
                return Err(failed(
                    "cannot make the directory",
                    &above.display().to_string(),
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
    fn a_home_is_that_of_the_passwd_entry() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:1000::/home/ann:/bin/sh\n\
                      odd:x:1001:1001:::/bin/sh\nann:x:1000:1000::/elsewhere:/bin/sh\n";
        assert_eq!(home(passwd, 1000), Some("/home/ann"));
        assert_eq!(home(passwd, 1001), None);
        assert_eq!(home(passwd, 7), None);
    }

    #[test]
    fn syncfs_is_trusted_only_where_it_tells() {
        for (release, tells) in [
            ("6.18.44-fc", true),
            ("5.8.0", true),
            ("5.7.19", false),
            ("4.19-x", false),
            ("", false),
        ] {
            assert_eq!(syncfs_tells(release), tells, "{release}");
        }
    }
}
