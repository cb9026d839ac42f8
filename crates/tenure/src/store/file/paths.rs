//! PURE: maps names to file names and back.
//!
//! A name is written byte by byte, with `,` for `/`; no name contains `,`. A name longer than a file name may be goes into a
//! directory named after its first 200 bytes followed by `+`, which no name contains either. So no two names share a file, and
//! the suffixes exclude `.` and `..`.

use crate::lease::Name;
use crate::store::ephemeral::participants;

const MAX_STEM_BYTES: usize = 200;
const RECORD_SUFFIX: &str = ".lease";
const LOCK_SUFFIX: &str = ".lock";

/// The paths of one name's files, below `leases/` and `locks/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordPath {
    /// The directory of a long name.
    pub(super) sub: Option<String>,
    stem: String,
}

impl RecordPath {
    pub(super) fn of(name: &Name) -> Self {
        let mut stem = name.as_str().replace('/', ",");
        if stem.len() <= MAX_STEM_BYTES {
            return RecordPath { sub: None, stem };
        }
        // Names are ASCII, so every byte is a character.
        let rest = stem.split_off(MAX_STEM_BYTES);
        RecordPath { sub: Some(stem + "+"), stem: rest }
    }

    /// The lock of `name`. The participants of an election or a fleet share one lock, because their records are removed when
    /// they end, and a lock file must never be removed: a process that opened it before would lock a file that no other process
    /// can find.
    pub(super) fn of_lock(name: &Name) -> Self {
        match participants(name).map(Name::stored) {
            Some(Ok(shared)) => Self::of(&shared),
            _ => Self::of(name),
        }
    }

    /// The file name of its record.
    pub(super) fn record(&self) -> String {
        format!("{}{RECORD_SUFFIX}", self.stem)
    }

    /// The file name of its lock.
    pub(super) fn lock(&self) -> String {
        format!("{}{LOCK_SUFFIX}", self.stem)
    }

    /// The relative path of `file`, for messages.
    pub(super) fn shown(&self, file: &str) -> String {
        match &self.sub {
            Some(sub) => format!("{sub}/{file}"),
            None => file.to_owned(),
        }
    }
}

/// Whether a directory entry is a directory of long names.
pub(super) fn is_sub(entry: &str) -> bool {
    entry.len() == MAX_STEM_BYTES + 1 && entry.ends_with('+')
}

/// Whether the directory `sub` can hold a name that begins with `prefix`.
pub(super) fn may_hold(sub: &str, prefix: &str) -> bool {
    let start = sub.trim_end_matches('+').replace(',', "/");
    start.starts_with(prefix) || prefix.starts_with(&start)
}

/// What a file name in `leases/` stands for.
pub(super) enum FileKind {
    /// The record of this name.
    Of(Name),
    /// It has the suffix of a record, but no valid name is written like this.
    Invalid(String),
    /// Not a record.
    Other,
}

/// Parses the file name `entry` in `leases/`, or in its directory `sub`.
pub(super) fn parse_file_name(sub: Option<&str>, entry: &str) -> FileKind {
    let Some(stem) = entry.strip_suffix(RECORD_SUFFIX) else {
        return FileKind::Other;
    };
    let start = sub.map_or("", |sub| sub.trim_end_matches('+'));
    let text = format!("{start}{stem}").replace(',', "/");
    match Name::stored(&text) {
        Ok(name)
            if RecordPath::of(&name)
                == RecordPath { sub: sub.map(str::to_owned), stem: stem.to_owned() } =>
        {
            FileKind::Of(name)
        }
        _ => FileKind::Invalid(text),
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
                let record_path = RecordPath::of(&name);
                prop_assert!(record_path.record().len() <= 255 && !record_path.record().contains('/'));
                prop_assert!(record_path.sub.as_ref().is_none_or(|sub| is_sub(sub) && !sub.contains('/')));
                let back = parse_file_name(record_path.sub.as_deref(), &record_path.record());
                prop_assert!(matches!(back, FileKind::Of(found) if found == name));
            }
        }

        #[test]
        fn a_directory_of_long_names_is_found_by_every_prefix(
            name in "[a-c/]{201,320}", cut in 0..320_usize,
        ) {
            let record_path = RecordPath::of(&Name::stored(&name).unwrap());
            prop_assert!(may_hold(&record_path.sub.unwrap(), &name[..cut.min(name.len())]));
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
    fn file_names_that_no_lease_has_are_invalid() {
        for entry in [".lease", "a b.lease", "a+.lease", "ä.lease"] {
            assert!(matches!(parse_file_name(None, entry), FileKind::Invalid(_)), "{entry}");
        }
        for entry in ["a.lock", "lease", "a.lease~", ".."] {
            assert!(matches!(parse_file_name(None, entry), FileKind::Other), "{entry}");
        }
        let long = format!("{}+", "x".repeat(200));
        assert!(matches!(parse_file_name(Some(&long), "y.lease"), FileKind::Of(_)));
        assert!(matches!(
            parse_file_name(None, &format!("{}.lease", "x".repeat(201))),
            FileKind::Invalid(_)
        ));
        assert!(matches!(parse_file_name(Some("x+"), "y.lease"), FileKind::Invalid(_)));
    }
}
