//! PURE: the hash of a name, and the rendezvous score of a member for a shard.
//!
//! Members of different versions plan side by side and must compute the same plan, so no bit of this may ever change. The test
//! vectors enforce it.

/// Added to every word before it is mixed, so that zero does not stay zero (2^64 over the golden ratio).
const SPLITMIX_INCREMENT: u64 = 0x9E37_79B9_7F4A_7C15;

/// A hash of a name: the same on every machine, in every version, forever.
///
/// Use it to assign shards and to spread work over a period. It is not cryptographic: an attacker can find two names with the
/// same hash. The only effect is that both shards prefer the same member.
#[must_use]
pub fn hash(name: &str) -> u64 {
    let bytes = name.as_bytes();
    // The length first, so that a name and the same name followed by zeros differ.
    bytes.chunks(8).fold(mix(bytes.len() as u64), |state, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(state ^ u64::from_le_bytes(word))
    })
}

/// One step of SplitMix64: every input bit affects every output bit, and no two inputs have the same output.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(SPLITMIX_INCREMENT);
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// The rendezvous score of a member for a shard: a pseudorandom number that is the same everywhere.
///
/// A single multiplication, because a plan computes it for a million shards times a hundred members.
#[inline]
pub(super) fn score(shard: u64, member: u64) -> u64 {
    // Odd, so that the multiplication loses no bit of the shard's hash.
    let product = u128::from(shard) * u128::from(member | 1);
    // The upper half folded into the lower: the cast truncates on purpose.
    #[allow(clippy::cast_possible_truncation)]
    let folded = ((product >> 64) ^ product) as u64;
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    // Computed by a second implementation in another language, from the comments above the functions.
    #[test]
    fn the_hash_never_changes() {
        for (name, expected) in [
            // The first number of SplitMix64 from seed zero, as published.
            ("", 0xE220_A839_7B1D_CDAF_u64),
            ("a", 0x5E02_5F9A_DE9E_AF3E),
            ("shard-1", 0x207F_2D7E_7228_0B36),
            ("sessions", 0x4CE1_3B06_CB46_75D1),
            ("sessions\0", 0xF6DC_7366_2BEE_6727),
            ("tenant:42/partition:7", 0x13F4_7D17_C7E1_0622),
            ("Zürich 🚲", 0x7F22_9E98_502D_4605),
        ] {
            assert_eq!(hash(name), expected, "{name:?} gives {:#018X}", hash(name));
        }
        assert_eq!(hash(&"x".repeat(512)), 0x80F4_7AB9_501D_A4C2);
    }

    #[test]
    fn the_score_never_changes() {
        for (shard, member, expected) in [
            ("shard-1", "web-1", 0x27C7_03BA_8BEE_E3DD_u64),
            ("shard-1", "web-2", 0x4DCF_BEAA_5DF6_887D),
            ("shard-2", "web-1", 0x8BCB_4C9F_16F3_7786),
        ] {
            let found = score(hash(shard), hash(member));
            assert_eq!(found, expected, "{shard} and {member} give {found:#018X}");
        }
        assert_eq!(score(u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(score(0, 1), 0);
    }

    #[test]
    fn similar_names_have_different_hashes() {
        let mut hashes: Vec<u64> = (0..200_000)
            .map(|number| hash(&format!("tenant-{:06}-shard-{:04}", number / 50, number % 50)))
            .collect();
        // Each bit is set in about half of them: eight standard deviations of room.
        for bit in 0..64 {
            let set = hashes.iter().filter(|hash| **hash >> bit & 1 == 1).count();
            assert!((98_200..=101_800).contains(&set), "bit {bit} is set in {set} of 200,000");
        }
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 200_000);
    }
}
