//! The only module that gets random numbers from the kernel. The pure modules get theirs as arguments.

#![allow(clippy::disallowed_methods)]

use rustix::rand::{GetRandomFlags, getrandom};

/// 128 random bits from the kernel.
///
/// A single call for 16 bytes, which the kernel never answers in part.
pub(crate) fn random_u128() -> u128 {
    let mut bytes = [0; 16];
    loop {
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(16) => return u128::from_ne_bytes(bytes),
            Ok(_) | Err(rustix::io::Errno::INTR) => continue,
            // Without randomness two candidates could share a nonce, and the nonce distinguishes them: there is no safe way to
            // continue.
            Err(errno) => panic!("the kernel gives no random numbers: {errno}"),
        }
    }
}
