//! PURE: the hash in the lease name of a shard whose own name is too long for a lease.
//!
//! A user that may add shards must not be able to choose two names that share one lease, so the hash is a cryptographic one.
//! The names of leases are stored, so it never changes.

use hmac_sha256::Hash;

/// The first 128 bits of the SHA-256 of `text`.
pub(super) fn digest(text: &[u8]) -> u128 {
    Hash::hash(text)[..16].iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_the_sha_256_of_fips_180_4() {
        // The first two are the standard's own.
        for (text, bits) in [
            (b"abc".to_vec(), 0xba7816bf_8f01cfea_414140de_5dae2223_u128),
            (
                b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq".to_vec(),
                0x248d6a61_d20638b8_e5c02693_0c3e6039,
            ),
            (vec![b'a'; 0], 0xe3b0c442_98fc1c14_9afbf4c8_996fb924),
            (vec![b'a'; 55], 0x9f4390f8_d30c2dd9_2ec9f095_b65e2b9a),
            (vec![b'a'; 56], 0xb35439a4_ac6f0948_b6d6f9e3_c6af0f5f),
            (vec![b'a'; 63], 0x7d3e74a0_5d7db15b_ce4ad9ec_0658ea98),
            (vec![b'a'; 64], 0xffe054fe_7ae0cb6d_c65c3af9_b61d5209),
            (vec![b'a'; 65], 0x635361c4_8bb9eab1_4198e76e_a8ab7f1a),
            (vec![b'a'; 119], 0x31eba51c_313a5c08_226adf18_d4a359cf),
            (vec![b'a'; 120], 0x2f3d3354_32c70b58_0af0e8e1_b3674a7c),
            (vec![b'a'; 512], 0x471be655_8b665e4f_6dd49f11_84814d14),
        ] {
            assert_eq!(digest(&text), bits, "{} bytes", text.len());
        }
    }
}
