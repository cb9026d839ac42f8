//! The name of a shard, and of the lease that belongs to it.
//!
//! Shards are called whatever their owners call them; leases are not. So the shard `a b` of the fleet `poll` is the lease
//! `poll:lease:a%20b`: what may stand in a lease's name stays, every other byte is `%XX`. A shard that would make the name
//! longer than a lease's may be is cut and has `%H` and 32 digits of its SHA-256 behind it. `H` is no hexadecimal digit, so
//! no short shard is ever written like a long one; the whole name of a long one is in the note of its lease.

use std::borrow::Borrow;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::lease::{CandidateId, Lease, Name, Note};

mod digest;

const SHARD_MAX: usize = 512;
/// Leaves room for `:node:` and the longest member, and for a shard that can still be read.
const FLEET_MAX: usize = 90;
const LEASE_MAX: usize = 200;
const NOTE_MAX: usize = 512;
/// What stands between the beginning of a long shard and its hash.
const HASHED: &str = "%H";
const HASH_DIGITS: usize = 32;

/// One piece of work: any UTF-8 of 1 to 512 bytes.
///
/// ```
/// use tenure::fleet::{Shard, fleet_name};
///
/// let (fleet, shard) = (fleet_name("poll")?, Shard::new("tenant 7")?);
/// assert_eq!(shard.lease(&fleet).as_str(), "poll:lease:tenant%207");
/// assert!(Shard::new("").is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(Arc<str>);

impl Shard {
    /// The shard of this name.
    pub fn new(name: &str) -> Result<Self> {
        if name.is_empty() {
            return Err(Error::invalid("the name of a shard must not be empty"));
        }
        if name.len() > SHARD_MAX {
            return Err(Error::invalid(format!(
                "the name of a shard may have at most {SHARD_MAX} bytes, this one has {}: '{}…'",
                name.len(),
                Escaped(&name.chars().take(40).collect::<String>())
            )));
        }
        Ok(Shard(name.into()))
    }

    /// The text, as it was given: it may hold control characters. [`Display`](fmt::Display) shows it without.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The lease that belongs to it.
    #[must_use]
    pub fn lease(&self, fleet: &Name) -> Name {
        let mut name = leases_prefix(fleet);
        let begin = name.len();
        if !encode(&self.0, LEASE_MAX, &mut name) {
            name.truncate(begin);
            encode(&self.0, LEASE_MAX - HASHED.len() - HASH_DIGITS, &mut name);
            let hash = digest::digest(self.0.as_bytes());
            let _ = write!(name, "{HASHED}{hash:0HASH_DIGITS$x}");
        }
        Name::own(name)
    }

    /// What goes into the note of that lease: nothing, unless the name of the lease does not say the whole shard.
    #[must_use]
    pub fn note(&self, fleet: &Name) -> Note {
        let prefix = leases_prefix(fleet).len();
        let fits = prefix + 3 * self.0.len() <= LEASE_MAX;
        if fits || !is_hashed(&self.lease(fleet).as_str()[prefix..]) {
            return Note::default();
        }
        Note::new(&self.0).unwrap_or_else(|_| {
            // For people; there is no way back from it, as the name it is compared with says.
            let mut text = String::new();
            if !encode(&self.0, NOTE_MAX, &mut text) {
                text.truncate(NOTE_MAX - '…'.len_utf8());
                text.push('…');
            }
            Note::new(&text).unwrap_or_default()
        })
    }

    /// Whether the name of this lease does not say the whole shard.
    pub(super) fn is_cut(fleet: &Name, lease: &Name) -> bool {
        lease.as_str().strip_prefix(&leases_prefix(fleet)).is_some_and(is_hashed)
    }

    /// The shard of `fleet` that `lease` belongs to.
    ///
    /// Of a shard that was hashed this is known only while the lease is held, by its note, and only if the note hashes to the
    /// lease's name: nobody can pass one shard off as another. Whoever has the list of shards needs no note.
    pub fn of(fleet: &Name, lease: &Lease) -> Option<Shard> {
        let encoded = lease.name.as_str().strip_prefix(&leases_prefix(fleet))?;
        let shard = if is_hashed(encoded) {
            Shard::new(lease.note.as_str()).ok()?
        } else {
            Shard::new(&decode(encoded)?).ok()?
        };
        // There is one way to write it.
        (shard.lease(fleet) == lease.name).then_some(shard)
    }
}

impl Borrow<str> for Shard {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// For people: what would move a cursor or turn the reading direction is escaped.
impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Escaped(&self.0), f)
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text of somebody else's, as it may be shown.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            if c.is_control() || turns {
                write!(f, "{}", c.escape_default())?;
            } else {
                f.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// The name of a fleet: that of a lease with at most 90 bytes, and without what tells a fleet's leases from its members.
pub fn fleet_name(name: &str) -> Result<Name> {
    if name.len() > FLEET_MAX {
        return Err(Error::invalid(format!(
            "the name of a fleet may have at most {FLEET_MAX} bytes, so that its leases have room \
             for theirs; this one has {}",
            name.len()
        )));
    }
    let name = Name::new(name)?;
    // Else a shard of one fleet could be a lease of another.
    if [":lease:", ":node:"].iter().any(|word| format!("{name}:").contains(word)) {
        return Err(Error::invalid(format!(
            "the name of a fleet must not hold ':lease' or ':node', which its own leases have \
             behind it: '{name}'"
        )));
    }
    Ok(name)
}

/// How the leases of all shards of `fleet` begin.
pub fn leases_prefix(fleet: &Name) -> String {
    format!("{fleet}:lease:")
}

/// How the leases of all members of `fleet` begin.
pub fn nodes_prefix(fleet: &Name) -> String {
    format!("{fleet}:node:")
}

/// The lease which `member` of `fleet` holds on itself.
#[must_use]
pub fn node(fleet: &Name, member: &CandidateId) -> Name {
    Name::own(format!("{}{member}", nodes_prefix(fleet)))
}

/// The member of `fleet` whose lease that is.
pub fn member_of(fleet: &Name, lease: &Name) -> Option<CandidateId> {
    CandidateId::new(lease.as_str().strip_prefix(&nodes_prefix(fleet))?).ok()
}

fn is_hashed(encoded: &str) -> bool {
    encoded.contains(HASHED)
}

/// Appends `text` as it stands in a lease's name, whole characters up to `max` bytes altogether; whether all of it fitted.
fn encode(text: &str, max: usize, to: &mut String) -> bool {
    for c in text.chars() {
        let stays = c.is_ascii_alphanumeric() || "._:/-".contains(c);
        let length = if stays { 1 } else { 3 * c.len_utf8() };
        if to.len() + length > max {
            return false;
        }
        if stays {
            to.push(c);
        } else {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                let _ = write!(to, "%{byte:02X}");
            }
        }
    }
    true
}

/// What [`encode`] wrote; `None` if it is nothing like it.
fn decode(encoded: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (high, low) = (digit()?, digit()?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::error::Kind;

    fn fleet() -> Name {
        fleet_name("poll").unwrap()
    }

    fn shard(name: &str) -> Shard {
        Shard::new(name).unwrap()
    }

    fn lease(name: Name, note: Note) -> Lease {
        Lease {
            name,
            holder: None,
            token: None,
            ttl: Duration::ZERO,
            left: Duration::ZERO,
            since: None,
            note,
            next: None,
            lineage: None,
            checkpoint: None,
            store_time: None,
            wait: None,
        }
    }

    #[test]
    fn a_shard_is_anything_but_nothing_and_too_much() {
        for (name, says) in
            [(String::new(), "must not be empty"), ("ä".repeat(257), "at most 512 bytes")]
        {
            let error = Shard::new(&name).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains(says), "{error}");
        }
        for name in [" ", "\0", "\n", "%", "..", "tenure:x", "🎉", &"x".repeat(512)] {
            assert_eq!(shard(name).as_str(), name);
        }
    }

    #[test]
    fn what_is_shown_moves_no_cursor() {
        let shown = shard("a\x1b[2J\nb\u{202e}c\u{9b}ä'\"").to_string();
        assert_eq!(shown, "a\\u{1b}[2J\\nb\\u{202e}c\\u{9b}ä'\"");
    }

    /// Names are stored: what is written here must be written for ever.
    #[test]
    fn a_lease_is_called_like_this_for_ever() {
        for (name, encoded) in [
            ("session-abc", "session-abc".to_owned()),
            ("AZaz09._:/-", "AZaz09._:/-".to_owned()),
            ("a b%", "a%20b%25".to_owned()),
            ("ä\0", "%C3%A4%00".to_owned()),
            ("~+,{}*", "%7E%2B%2C%7B%7D%2A".to_owned()),
            (&"x".repeat(189), "x".repeat(189)),
            (&"x".repeat(190), format!("{}%H66649f6338ac5e7d0447ccf7002ff5b8", "x".repeat(155))),
            (
                &"ä".repeat(256),
                format!("{}%H080cf4f42be27583303f1d18f51c4f66", "%C3%A4".repeat(25)),
            ),
        ] {
            let lease = shard(name).lease(&fleet());
            let found = lease.as_str().strip_prefix("poll:lease:").unwrap();
            assert_eq!(found, encoded);
        }
    }

    #[test]
    fn a_note_that_does_not_hash_to_the_name_is_refused() {
        let (long, other) = (shard(&"x".repeat(300)), shard(&"x".repeat(301)));
        let name = long.lease(&fleet());
        let read = |note: Note| Shard::of(&fleet(), &lease(name.clone(), note));
        assert_eq!(read(long.note(&fleet())), Some(long.clone()));
        assert_eq!(read(other.note(&fleet())), None);
        assert_eq!(read(Note::default()), None);
        // With control characters there is no note to read back, and one for people.
        let wild = shard(&"\n".repeat(300));
        let note = wild.note(&fleet());
        assert!(note.as_str().starts_with("%0A%0A") && note.as_str().ends_with('…'));
        assert!(note.as_str().len() <= 512);
        assert_eq!(Shard::of(&fleet(), &lease(wild.lease(&fleet()), note)), None);
    }

    #[test]
    fn what_no_shard_is_written_like_is_none() {
        let hashed = format!("a%H{}", "0".repeat(32));
        for encoded in ["", "%", "%4", "%zz", "%41", "%c3%a4", "%FF", "%C3", "%+1", "%H", &hashed] {
            let text = format!("poll:lease:{encoded}");
            let Ok(name) = Name::stored(&text) else { continue };
            assert_eq!(Shard::of(&fleet(), &lease(name, Note::default())), None, "{encoded}");
        }
        let elsewhere = Name::stored("pol:lease:a").unwrap();
        assert_eq!(Shard::of(&fleet(), &lease(elsewhere, Note::default())), None);
    }

    #[test]
    fn a_fleet_has_a_name_that_leaves_room_and_meets_no_other() {
        for (name, says) in [
            ("", "must not be empty"),
            (&"x".repeat(91), "at most 90 bytes"),
            ("tenure:x", "begins with 'tenure:'"),
            ("a b", "' '"),
            ("a%20", "'%'"),
            ("a:lease", "must not hold"),
            ("a:node:b", "must not hold"),
        ] {
            let error = fleet_name(name).unwrap_err();
            assert!(error.to_string().contains(says), "{name}: {error}");
        }
        for name in ["lease", "a:leases", "a:nodes:b", &"x".repeat(90)] {
            assert!(fleet_name(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_member_is_read_back_from_its_lease() {
        let fleet = fleet_name(&"f".repeat(90)).unwrap();
        let member = CandidateId::new(&"m".repeat(100)).unwrap();
        let name = node(&fleet, &member);
        assert!(name.as_str().len() <= LEASE_MAX);
        assert_eq!(member_of(&fleet, &name), Some(member));
        assert_eq!(member_of(&fleet, &shard("m").lease(&fleet)), None);
        assert_eq!(member_of(&fleet, &Name::stored("g:node:m").unwrap()), None);
    }

    fn any_shard() -> impl Strategy<Value = String> {
        prop_oneof![
            "\\PC{1,60}",
            "[a-c%/: H0-9]{1,8}",
            "[a-z%]{80,130}",
            "[a-z\u{0}-\u{1f}ä%H]{60,256}",
            // Long ones that differ late.
            ("x{500,511}", "[a-c]").prop_map(|(begin, end)| begin + &end),
        ]
        .prop_filter("it fits", |text| text.len() <= SHARD_MAX)
    }

    proptest! {
        #[test]
        fn no_two_shards_share_a_lease(a in any_shard(), b in any_shard(), f in "[a-z:/]{1,90}") {
            let Ok(fleet) = fleet_name(&f) else { return Ok(()) };
            let (a, b) = (shard(&a), shard(&b));
            prop_assert_eq!(a.lease(&fleet) == b.lease(&fleet), a == b);
        }

        #[test]
        fn a_shard_is_read_back_from_its_lease(text in any_shard(), f in "[a-z:/]{1,90}") {
            let Ok(fleet) = fleet_name(&f) else { return Ok(()) };
            let it = shard(&text);
            let name = it.lease(&fleet);
            prop_assert!(name.as_str().len() <= LEASE_MAX);
            prop_assert_eq!(Name::stored(name.as_str()).unwrap(), name.clone());
            let (hashed, note) = (is_hashed(name.as_str()), it.note(&fleet));
            prop_assert_eq!(hashed, !note.as_str().is_empty());
            let back = Shard::of(&fleet, &lease(name, note));
            if hashed && text.chars().any(char::is_control) {
                prop_assert_eq!(back, None);
            } else {
                prop_assert_eq!(back, Some(it));
            }
        }

        #[test]
        fn a_short_shard_is_never_written_like_a_long_one(text in "[a-f%H0-9]{1,60}") {
            let name = shard(&text).lease(&fleet());
            prop_assert!(!is_hashed(name.as_str()));
        }

        #[test]
        fn two_fleets_share_no_lease(
            f in "([ab]|:lease|:node|:){1,4}", g in "([ab]|:lease|:node|:){1,4}",
            a in "([ab]|:lease|:node|:){1,4}", b in "([ab]|:lease|:node|:){1,4}",
        ) {
            let (Ok(f), Ok(g)) = (fleet_name(&f), fleet_name(&g)) else { return Ok(()) };
            let leases = |fleet: &Name, text: &str| {
                [shard(text).lease(fleet), node(fleet, &CandidateId::new(text).unwrap())]
            };
            for one in leases(&f, &a) {
                prop_assert!(f == g || leases(&g, &b).iter().all(|other| *other != one));
            }
        }
    }
}
