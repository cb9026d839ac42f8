//! PURE: SHA-256, for names that are too long for a lease. Whoever may add shards must not be able to make two of them
//! meet in one lease, so a hash that only spreads well is not enough; and names are stored, so it stays this one.

/// The first 128 bits of the SHA-256 of `text`.
pub(super) fn digest(text: &[u8]) -> u128 {
    let mut state = START;
    let (blocks, rest) = text.as_chunks::<64>();
    for block in blocks {
        compress(&mut state, block);
    }
    let mut last = [0; 128];
    last[..rest.len()].copy_from_slice(rest);
    last[rest.len()] = 0x80;
    let end = if rest.len() < 56 { 64 } else { 128 };
    last[end - 8..end].copy_from_slice(&(text.len() as u64 * 8).to_be_bytes());
    for block in last[..end].as_chunks::<64>().0 {
        compress(&mut state, block);
    }
    state[..4].iter().fold(0, |bits, word| bits << 32 | u128::from(*word))
}

/// FIPS 180-4, 6.2.2.
fn compress(state: &mut [u32; 8], block: &[u8; 64]) {
    let mut w = [0_u32; 64];
    for (word, bytes) in w.iter_mut().zip(block.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    for t in 16..64 {
        let small0 = w[t - 15].rotate_right(7) ^ w[t - 15].rotate_right(18) ^ (w[t - 15] >> 3);
        let small1 = w[t - 2].rotate_right(17) ^ w[t - 2].rotate_right(19) ^ (w[t - 2] >> 10);
        w[t] = w[t - 16].wrapping_add(small0).wrapping_add(w[t - 7]).wrapping_add(small1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for t in 0..64 {
        let big1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let one = [big1, choice, K[t], w[t]].iter().fold(h, |sum, x| sum.wrapping_add(*x));
        let big0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let two = big0.wrapping_add((a & b) ^ (a & c) ^ (b & c));
        (h, g, f, e) = (g, f, e, d.wrapping_add(one));
        (d, c, b, a) = (c, b, a, one.wrapping_add(two));
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(add);
    }
}

const START: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

#[rustfmt::skip]
const K: [u32; 64] = [
    0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
    0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
    0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
    0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
    0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
    0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
    0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
    0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_sha_256_of_the_standard() {
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
