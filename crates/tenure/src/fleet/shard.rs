//! The name of a shard, and the name of its lease.
//!
//! A shard name is almost any text, but a lease name is not. So the shard `a b` of the fleet `poll` has the lease
//! `poll:lease:a%20b`: bytes that are allowed in a lease name stay, every other byte becomes `%XX`. If the encoded name is too
//! long for a lease, it is cut, and `%H` and 32 digits of its SHA-256 are appended. `H` is not a hexadecimal digit, so the
//! encoding of a short name never equals that of a long name. The note of the lease holds the whole name of a long shard.

use std::borrow::Borrow;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::lease::{CandidateId, Lease, Name, Note};

mod digest;

const MAX_SHARD_BYTES: usize = 512;
/// Leaves room in a lease name for `:node:` and the longest member id, and for a shard name that is still readable.
const MAX_FLEET_BYTES: usize = 90;
const MAX_LEASE_BYTES: usize = 200;
const MAX_NOTE_BYTES: usize = 512;
/// Separates the beginning of a long shard name from its hash.
const HASH_MARK: &str = "%H";
const HASH_DIGITS: usize = 32;

/// The name of one piece of work: any UTF-8 of 1 to 512 bytes.
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
    /// The shard with this name.
    pub fn new(name: &str) -> Result<Self> {
        if name.is_empty() {
            return Err(Error::invalid("the name of a shard must not be empty"));
        }
        if name.len() > MAX_SHARD_BYTES {
            return Err(Error::invalid(format!(
                "the name of a shard may have at most {MAX_SHARD_BYTES} bytes, this one has {}: '{}…'",
                name.len(),
                Escaped(&name.chars().take(40).collect::<String>())
            )));
        }
        Ok(Shard(name.into()))
    }

    /// The name as given. It may contain control characters; [`Display`](fmt::Display) escapes them.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of its lease.
    #[must_use]
    pub fn lease(&self, fleet: &Name) -> Name {
        let mut name = leases_prefix(fleet);
        let begin = name.len();
        if !encode(&self.0, MAX_LEASE_BYTES, &mut name) {
            name.truncate(begin);
            encode(&self.0, MAX_LEASE_BYTES - HASH_MARK.len() - HASH_DIGITS, &mut name);
            let hash = digest::digest(self.0.as_bytes());
            let _ = write!(name, "{HASH_MARK}{hash:0HASH_DIGITS$x}");
        }
        Name::own(name)
    }

    /// The note of its lease: the whole shard name if the lease name holds only a part of it, otherwise empty.
    #[must_use]
    pub fn note(&self, fleet: &Name) -> Note {
        let prefix = leases_prefix(fleet).len();
        let fits = prefix + 3 * self.0.len() <= MAX_LEASE_BYTES;
        if fits || !is_hashed(&self.lease(fleet).as_str()[prefix..]) {
            return Note::default();
        }
        Note::new(&self.0).unwrap_or_else(|_| {
            // Only for display. It cannot be decoded: its hash does not match the lease name.
            let mut text = String::new();
            if !encode(&self.0, MAX_NOTE_BYTES, &mut text) {
                text.truncate(MAX_NOTE_BYTES - '…'.len_utf8());
                text.push('…');
            }
            Note::new(&text).unwrap_or_default()
        })
    }

    /// Whether the name of this lease holds only a part of the shard name.
    pub(super) fn is_cut(fleet: &Name, lease: &Name) -> bool {
        lease.as_str().strip_prefix(&leases_prefix(fleet)).is_some_and(is_hashed)
    }

    /// The shard of `fleet` that `lease` belongs to.
    ///
    /// If the name is hashed, the shard is known only from the note, while the lease is held. The note counts only if it hashes
    /// to the lease name, so one shard cannot pose as another. A caller that has the list of shards does not need the note.
    pub fn of(fleet: &Name, lease: &Lease) -> Option<Shard> {
        let encoded = lease.name.as_str().strip_prefix(&leases_prefix(fleet))?;
        let shard = if is_hashed(encoded) {
            Shard::new(lease.note.as_str()).ok()?
        } else {
            Shard::new(&decode(encoded)?).ok()?
        };
        // Each shard has exactly one encoding.
        (shard.lease(fleet) == lease.name).then_some(shard)
    }
}

impl AsRef<str> for Shard {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Shard {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// For display: escapes control characters and characters that change the reading direction.
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

/// Untrusted text, escaped for display.
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

/// Checks the name of a fleet: a lease name of at most 90 bytes without `:lease` and `:node`, which separate it from the rest
/// of a lease name.
pub fn fleet_name(name: &str) -> Result<Name> {
    if name.len() > MAX_FLEET_BYTES {
        return Err(Error::invalid(format!(
            "the name of a fleet may have at most {MAX_FLEET_BYTES} bytes, so that its leases have room \
             for theirs; this one has {}",
            name.len()
        )));
    }
    let name = Name::new(name)?;
    // Otherwise two fleets could share a lease.
    if [":lease:", ":node:"].iter().any(|word| format!("{name}:").contains(word)) {
        return Err(Error::invalid(format!(
            "the name of a fleet must not hold ':lease' or ':node', which its own leases have \
             behind it: '{name}'"
        )));
    }
    Ok(name)
}

/// The prefix of the leases of all shards of `fleet`.
pub fn leases_prefix(fleet: &Name) -> String {
    format!("{fleet}:lease:")
}

/// The prefix of the membership leases of `fleet`.
pub fn nodes_prefix(fleet: &Name) -> String {
    format!("{fleet}:node:")
}

/// The name of the membership lease of `member`.
#[must_use]
pub fn node(fleet: &Name, member: &CandidateId) -> Name {
    Name::own(format!("{}{member}", nodes_prefix(fleet)))
}

/// The member of `fleet` that `lease` is the membership lease of.
pub fn member_of(fleet: &Name, lease: &Name) -> Option<CandidateId> {
    CandidateId::new(lease.as_str().strip_prefix(&nodes_prefix(fleet))?).ok()
}

fn is_hashed(encoded: &str) -> bool {
    encoded.contains(HASH_MARK)
}

/// Appends the encoding of `text` for a lease name: whole characters, up to `max` bytes in total. Returns whether all of it
/// fits.
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

/// Decodes the output of [`encode`]; `None` if it is not such an output.
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
            history: Vec::new(),
        }
    }

    #[test]
    fn a_shard_name_is_any_text_of_1_to_512_bytes() {
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
    fn the_display_form_escapes_control_characters() {
        let shown = shard("a\x1b[2J\nb\u{202e}c\u{9b}ä'\"").to_string();
        assert_eq!(shown, "a\\u{1b}[2J\\nb\\u{202e}c\\u{9b}ä'\"");
    }

    /// Lease names are stored, so this encoding must never change.
    #[test]
    fn the_encoding_of_lease_names_never_changes() {
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
        // A name with control characters gets a note for display only, which cannot be read back.
        let wild = shard(&"\n".repeat(300));
        let note = wild.note(&fleet());
        assert!(note.as_str().starts_with("%0A%0A") && note.as_str().ends_with('…'));
        assert!(note.as_str().len() <= 512);
        assert_eq!(Shard::of(&fleet(), &lease(wild.lease(&fleet()), note)), None);
    }

    #[test]
    fn a_name_that_no_shard_encodes_to_is_no_shard() {
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
    fn a_fleet_name_leaves_room_and_collides_with_no_other() {
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
        assert!(name.as_str().len() <= MAX_LEASE_BYTES);
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
            // Long names that differ only at the end.
            ("x{500,511}", "[a-c]").prop_map(|(begin, end)| begin + &end),
        ]
        .prop_filter("it fits", |text| text.len() <= MAX_SHARD_BYTES)
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
            prop_assert!(name.as_str().len() <= MAX_LEASE_BYTES);
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
        fn a_short_name_is_never_encoded_like_a_long_one(text in "[a-f%H0-9]{1,60}") {
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
