//! PURE: the digest of a member's list of shards, from which the other members know which shards it can own.
//!
//! A shard's hash selects one of the parts of the digest, and each part is the exclusive or of 32 bits per shard. Two members
//! whose parts are equal list the same shards there; a part that is zero lists no shard. Parts that differ say only that some
//! shards differ. A member announces its digest in the checkpoint of its membership lease.

use super::Shard;
use crate::error::Result;
use crate::lease::Checkpoint;
use crate::placement;

/// Few enough for a small record, and enough that in a small fleet two shards rarely fall into the same part.
const PARTS: usize = 128;
const VERSION: u8 = 1;
/// The version and the number of shards.
const HEADER_BYTES: usize = 5;

/// A digest of a list of shards. The default stands for a member that has announced nothing: it lists no shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListDigest {
    shards: u32,
    /// Empty if nothing was announced.
    parts: Vec<u32>,
}

impl ListDigest {
    /// The digest of the shards with these [hashes](placement::hash), each given once.
    pub fn of_hashes(hashes: impl IntoIterator<Item = u64>) -> Self {
        let mut digest = ListDigest { shards: 0, parts: vec![0; PARTS] };
        for hash in hashes {
            digest.shards = digest.shards.saturating_add(1);
            digest.parts[part_of(hash)] ^= word_of(hash);
        }
        digest
    }

    /// The digest of these shards, each given once.
    pub fn of<'a>(shards: impl IntoIterator<Item = &'a Shard>) -> Self {
        ListDigest::of_hashes(shards.into_iter().map(|shard| placement::hash(shard.as_str())))
    }

    /// How many shards the list has.
    pub fn shards(&self) -> usize {
        self.shards as usize
    }

    /// Whether the member has announced a list.
    pub fn is_announced(&self) -> bool {
        !self.parts.is_empty()
    }

    /// The value of the part that a shard with this hash falls into; zero if the list has no shard in this part.
    pub fn part(&self, hash: u64) -> u32 {
        self.parts.get(part_of(hash)).copied().unwrap_or(0)
    }

    /// Encodes the digest for the checkpoint of the membership lease.
    pub fn to_checkpoint(&self) -> Result<Checkpoint> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.shards.to_be_bytes());
        bytes.extend(self.parts.iter().flat_map(|part| part.to_be_bytes()));
        Checkpoint::new(bytes)
    }

    /// Decodes the checkpoint of a membership lease. A checkpoint that cannot be read counts as not announced: the announcement
    /// grants no right, and without it a member only owns fewer shards.
    pub fn announced(checkpoint: Option<&Checkpoint>) -> Self {
        checkpoint
            .and_then(|checkpoint| Self::from_bytes(checkpoint.as_bytes()))
            .unwrap_or_default()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (header, parts) = bytes.split_at_checked(HEADER_BYTES)?;
        let (version, shards) = header.split_first()?;
        if *version != VERSION || parts.len() != 4 * PARTS {
            return None;
        }
        let word = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_be_bytes);
        let parts: Option<Vec<u32>> = parts.chunks(4).map(word).collect();
        Some(ListDigest { shards: word(shards)?, parts: parts? })
    }
}

/// The index of the part that a shard with this hash falls into.
pub(super) fn part_of(hash: u64) -> usize {
    (hash >> 32) as usize % PARTS
}

/// The value that a shard with this hash adds to its part.
pub(super) fn word_of(hash: u64) -> u32 {
    u32::try_from(hash & u64::from(u32::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: impl IntoIterator<Item = usize>) -> ListDigest {
        let shards: Vec<Shard> =
            names.into_iter().map(|name| Shard::new(&format!("s{name}")).unwrap()).collect();
        ListDigest::of(&shards)
    }

    #[test]
    fn equal_lists_have_equal_digests_in_any_order() {
        assert_eq!(of(0..1_000), of((0..1_000).rev()));
        assert_ne!(of(0..1_000), of(0..999));
        assert_eq!(of(0..1_000).shards(), 1_000);
    }

    #[test]
    fn a_part_is_zero_where_nothing_is_listed() {
        let hash = placement::hash("s1");
        assert_ne!(of([1]).part(hash), 0);
        assert_eq!(of([1]).part(hash), of([1, 2, 3]).part(hash), "small lists: a part for each");
        assert_eq!(of([]).part(hash), 0);
        assert_eq!(ListDigest::default().part(hash), 0);
        assert!(of([]).is_announced() && !ListDigest::default().is_announced());
    }

    #[test]
    fn the_stored_form_is_read_back_and_garbage_is_not_announced() {
        let digest = of(0..500);
        let checkpoint = digest.to_checkpoint().unwrap();
        assert_eq!(ListDigest::announced(Some(&checkpoint)), digest);
        assert!(checkpoint.as_bytes().len() < 600);
        for garbage in [&b""[..], b"{}", &[VERSION; 300], &[2; HEADER_BYTES + 4 * PARTS]] {
            let checkpoint = Checkpoint::new(garbage).unwrap();
            assert_eq!(ListDigest::announced(Some(&checkpoint)), ListDigest::default());
        }
        assert_eq!(ListDigest::announced(None), ListDigest::default());
    }
}
