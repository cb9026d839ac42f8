//! The one place that draws random numbers. The pure modules get theirs as arguments.

#![allow(clippy::disallowed_methods)]

use rustix::rand::{GetRandomFlags, getrandom};

/// 128 random bits from the kernel.
///
/// Asked for in one call of 16 bytes, which the kernel never answers in part.
pub(crate) fn random_u128() -> u128 {
    let mut bytes = [0; 16];
    loop {
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(16) => return u128::from_ne_bytes(bytes),
            Ok(_) | Err(rustix::io::Errno::INTR) => continue,
            // Without randomness two candidates could share a nonce, and a nonce is what tells
            // them apart: there is nothing safe to go on with.
            Err(errno) => panic!("the kernel gives no random numbers: {errno}"),
        }
    }
}
