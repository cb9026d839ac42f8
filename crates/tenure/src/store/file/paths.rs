//! PURE: which file belongs to which name.
//!
//! A name is written byte by byte with `,` for `/`, which is in no name. What is longer than a file name may be goes
//! into a directory called like its first 200 bytes with a `+` behind, which is in no name either. So no two names
//! share a file, and the endings keep `.` and `..` away.

use crate::lease::Name;
use crate::store::ephemeral::participants;

const STEM_MAX: usize = 200;
const RECORD: &str = ".lease";
const LOCK: &str = ".lock";

/// Where the files of one name are, below `leases/` and `locks/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordPath {
    /// The directory of a long name.
    pub(super) sub: Option<String>,
    stem: String,
}

impl RecordPath {
    pub(super) fn of(name: &Name) -> Self {
        let mut stem = name.as_str().replace('/', ",");
        if stem.len() <= STEM_MAX {
            return RecordPath { sub: None, stem };
        }
        // Names are ASCII: every byte is a character.
        let rest = stem.split_off(STEM_MAX);
        RecordPath { sub: Some(stem + "+"), stem: rest }
    }

    /// Where the lock of `name` is. The participants of an election or a fleet share one, because their records are
    /// removed when they end, and a lock file must not be: a process that opened it before would lock a file that no
    /// other process can find.
    pub(super) fn of_lock(name: &Name) -> Self {
        match participants(name).map(Name::stored) {
            Some(Ok(shared)) => Self::of(&shared),
            _ => Self::of(name),
        }
    }

    /// The file name of its record.
    pub(super) fn record(&self) -> String {
        format!("{}{RECORD}", self.stem)
    }

    /// The file name of its lock.
    pub(super) fn lock(&self) -> String {
        format!("{}{LOCK}", self.stem)
    }

    /// `name` as a path, for messages.
    pub(super) fn shown(&self, file: &str) -> String {
        match &self.sub {
            Some(sub) => format!("{sub}/{file}"),
            None => file.to_owned(),
        }
    }
}

/// Whether a directory entry is one of long names.
pub(super) fn is_sub(entry: &str) -> bool {
    entry.len() == STEM_MAX + 1 && entry.ends_with('+')
}

/// Whether the directory `sub` can hold a name that begins with `prefix`.
pub(super) fn may_hold(sub: &str, prefix: &str) -> bool {
    let begin = sub.trim_end_matches('+').replace(',', "/");
    begin.starts_with(prefix) || prefix.starts_with(&begin)
}

/// A record's file, read back.
pub(super) enum FileKind {
    /// Of this name.
    Of(Name),
    /// It ends like a record, but no name is written like this.
    Stranger(String),
    /// Not a record.
    Other,
}

/// Which name the file `entry` in `leases/` or in its directory `sub` is the record of.
pub(super) fn read_back(sub: Option<&str>, entry: &str) -> FileKind {
    let Some(stem) = entry.strip_suffix(RECORD) else {
        return FileKind::Other;
    };
    let begin = sub.map_or("", |sub| sub.trim_end_matches('+'));
    let text = format!("{begin}{stem}").replace(',', "/");
    match Name::stored(&text) {
        Ok(name)
            if RecordPath::of(&name)
                == RecordPath { sub: sub.map(str::to_owned), stem: stem.to_owned() } =>
        {
            FileKind::Of(name)
        }
        _ => FileKind::Stranger(text),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_two_names_share_a_file(
            a in "[A-Za-z0-9._:/%-]{1,320}", b in "[A-Za-z0-9._:/%-]{1,320}",
        ) {
            let (a, b) = (Name::stored(&a).unwrap(), Name::stored(&b).unwrap());
            prop_assert_eq!(RecordPath::of(&a) == RecordPath::of(&b), a == b);
            for name in [a, b] {
                let spot = RecordPath::of(&name);
                prop_assert!(spot.record().len() <= 255 && !spot.record().contains('/'));
                prop_assert!(spot.sub.as_ref().is_none_or(|sub| is_sub(sub) && !sub.contains('/')));
                let back = read_back(spot.sub.as_deref(), &spot.record());
                prop_assert!(matches!(back, FileKind::Of(found) if found == name));
            }
        }

        #[test]
        fn a_directory_of_long_names_is_found_by_every_prefix(
            name in "[a-c/]{201,320}", cut in 0..320_usize,
        ) {
            let spot = RecordPath::of(&Name::stored(&name).unwrap());
            prop_assert!(may_hold(&spot.sub.unwrap(), &name[..cut.min(name.len())]));
        }
    }

    #[test]
    fn participants_of_one_election_or_fleet_share_a_lock() {
        let lock = |name: &str| RecordPath::of_lock(&Name::stored(name).unwrap()).lock();
        for (name, of) in [
            ("job", "job.lock"),
            ("tenure:node:job:a:node:b", "tenure:node:.lock"),
            ("tenure:ask:a:node:b", "tenure:ask:.lock"),
            ("tenure:control:f", "tenure:control:f.lock"),
            ("f:node:a:node:b", "f:node:.lock"),
            ("f:lease:a:node:b", "f:lease:a:node:b.lock"),
        ] {
            assert_eq!(lock(name), of);
        }
        let long = format!("{}:node:", "x".repeat(190));
        let locks =
            ["a", "b"].map(|id| RecordPath::of_lock(&Name::stored(&(long.clone() + id)).unwrap()));
        assert_eq!(locks[0], locks[1]);
    }

    #[test]
    fn what_no_name_is_written_like_is_a_stranger() {
        for entry in [".lease", "a b.lease", "a+.lease", "ä.lease"] {
            assert!(matches!(read_back(None, entry), FileKind::Stranger(_)), "{entry}");
        }
        for entry in ["a.lock", "lease", "a.lease~", ".."] {
            assert!(matches!(read_back(None, entry), FileKind::Other), "{entry}");
        }
        let long = format!("{}+", "x".repeat(200));
        assert!(matches!(read_back(Some(&long), "y.lease"), FileKind::Of(_)));
        assert!(matches!(
            read_back(None, &format!("{}.lease", "x".repeat(201))),
            FileKind::Stranger(_)
        ));
        assert!(matches!(read_back(Some("x+"), "y.lease"), FileKind::Stranger(_)));
    }
}
